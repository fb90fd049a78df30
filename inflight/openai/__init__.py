"""OpenAI's protocol in front of a running Triton."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
