from . import embedding, gpt2, gpt2_checkpoint, gpt2_network, huggingface

__all__ = ["embedding", "gpt2", "gpt2_checkpoint", "gpt2_network", "huggingface"]
