from .server import OpenAIServer as OpenAIServer
