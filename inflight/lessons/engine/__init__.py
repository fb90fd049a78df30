"""Why one user gets so little of the machine: what this lesson alone uses."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
