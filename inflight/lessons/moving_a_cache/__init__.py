"""A cache that moves between engines, and outlives them: what this lesson alone uses."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
