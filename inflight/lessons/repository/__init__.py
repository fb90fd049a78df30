"""What Triton loads, and what flows where: what this lesson alone uses."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
