"""What asks a server: `client` for text, `connection` for any tensor; `request` has what a request may say."""
