from .server import OpenAIServer

__all__ = ["OpenAIServer"]
