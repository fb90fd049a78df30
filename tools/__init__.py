"""What only an author of the course runs: the maker of notebooks, of datasets and of checkpoints."""
