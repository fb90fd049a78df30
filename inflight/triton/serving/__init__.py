"""A running server: one from the wheel (`process`, `keeper`, `records`), or any (`attached`, `address`)."""
