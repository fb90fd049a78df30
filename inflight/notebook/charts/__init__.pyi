from . import palette
from .display import show, table

__all__ = ["palette", "show", "table"]
