"""Triton: a model repository from templates, a server of it, a client, and what the server tells of itself."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
