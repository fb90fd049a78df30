"""OpenAI's protocol in front of a running Triton."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"server": ["OpenAIServer"]})
