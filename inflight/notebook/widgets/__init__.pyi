from .playground import ConfigEditor, Playground, field
from .prediction import predict

__all__ = ["ConfigEditor", "Playground", "field", "predict"]
