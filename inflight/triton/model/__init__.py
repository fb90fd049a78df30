"""What Triton's Python models are made of, in processes of their own: `python_model` for all of them."""
