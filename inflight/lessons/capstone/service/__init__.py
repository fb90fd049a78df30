"""The chat service of lesson 09: its contract, and how it is deployed."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
