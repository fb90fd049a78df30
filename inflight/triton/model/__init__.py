"""What Triton's Python models are made of, in processes of their own: `python_model`, `engine_model`, `iterative`."""
