"""What an engine has that a checkpoint has not: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"explorables": ["memory"]})
