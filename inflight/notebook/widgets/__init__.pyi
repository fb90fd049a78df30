from .config_editor import ConfigEditor, field
from .playground import Playground
from .prediction import predict

__all__ = ["ConfigEditor", "Playground", "field", "predict"]
