from . import repository as repository
from . import telemetry as telemetry
from .client.client import Client as Client
from .repository import GPT2 as GPT2
from .repository import batchers as batchers
from .serving.server import Server as Server
