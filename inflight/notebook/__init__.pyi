from . import charts, checks, pages, widgets
from .checks import check, parts, record
from .pages import blanks, progress, session, told_apart

__all__ = [
    "blanks",
    "charts",
    "check",
    "checks",
    "pages",
    "parts",
    "progress",
    "record",
    "session",
    "told_apart",
    "widgets",
]
