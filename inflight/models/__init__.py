"""Models that run without an engine: the baseline through Hugging Face transformers, GPT-2, an embedding."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["embedding", "gpt2", "gpt2_checkpoint", "gpt2_network", "huggingface"],
    submod_attrs={},
)
