"""Where the second request finds what the first one left: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["streams"])
