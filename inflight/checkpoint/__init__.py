"""Checkpoints: weights and tokenizer on disk."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["q4_1", "tokenizer", "weights"],
    submod_attrs={
        "own_quantizer": ["quantized"],
        "sources": ["DEFAULT", "Checkpoint", "cache_dir", "fetch"],
        "tokenizer": ["load_tokenizer"],
        "weights": ["GgufFile"],
    },
)
