from . import charts, checks, pages, widgets
from .charts import palette
from .checks import check, parts, record
from .pages import blanks, progress, session, syllabus, told_apart, workspace

__all__ = [
    "blanks",
    "charts",
    "check",
    "checks",
    "pages",
    "palette",
    "parts",
    "progress",
    "record",
    "session",
    "syllabus",
    "told_apart",
    "widgets",
    "workspace",
]
