"""Why the same answer feels fast or slow: what this lesson alone uses."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
