from . import blanks, progress, session, syllabus, workspace
from .comparison import told_apart

__all__ = ["blanks", "progress", "session", "syllabus", "told_apart", "workspace"]
