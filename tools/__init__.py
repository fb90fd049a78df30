"""What only an author of the course runs: the maker of notebooks, and what holds them to their sources."""
