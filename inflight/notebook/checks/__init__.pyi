from . import parts, record
from .graders import grades
from .grading import check

__all__ = ["check", "grades", "parts", "record"]
