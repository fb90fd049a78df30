"""Checkpoints: weights and tokenizer on disk, verified by SHA-256."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["q4_1", "tokenizer", "weights"],
    submod_attrs={
        "names": ["DEFAULT"],
        "own_quantizer": ["quantized"],
        "sources": ["Checkpoint", "cache_dir", "cached_path", "fetch"],
        "tokenizer": ["load_tokenizer"],
        "weights": ["GgufFile"],
    },
)
