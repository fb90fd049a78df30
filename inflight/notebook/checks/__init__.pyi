from . import parts, record
from .grading import check, grades

__all__ = ["check", "grades", "parts", "record"]
