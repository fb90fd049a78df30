"""A running server: one from the wheel (`process`), or any that runs already (`attached`)."""
