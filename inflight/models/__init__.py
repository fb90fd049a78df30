"""Models that run without an engine: the baseline through Hugging Face transformers, GPT-2, an embedding."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
