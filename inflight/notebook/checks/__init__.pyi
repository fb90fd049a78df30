from . import parts, record
from .checking import check
from .graders import grades

__all__ = ["check", "grades", "parts", "record"]
