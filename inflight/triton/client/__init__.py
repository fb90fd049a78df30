"""What asks a server: `client` for text, `connection` for any tensor."""
