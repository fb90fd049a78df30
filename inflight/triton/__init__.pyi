from . import repository, telemetry
from .client.client import Client
from .repository import GPT2
from .serving.server import Server

__all__ = [
    "GPT2",
    "Client",
    "Server",
    "repository",
    "telemetry",
]
