from . import q4_1, tokenizer, weights
from .own_quantizer import quantized
from .sources import DEFAULT, Checkpoint, cache_dir, fetch
from .tokenizer import load_tokenizer
from .weights import GgufFile

__all__ = [
    "DEFAULT",
    "Checkpoint",
    "GgufFile",
    "cache_dir",
    "fetch",
    "load_tokenizer",
    "q4_1",
    "quantized",
    "tokenizer",
    "weights",
]
