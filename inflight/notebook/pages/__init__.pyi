from . import blanks, progress, session, workspace
from .comparison import told_apart

__all__ = ["blanks", "progress", "session", "told_apart", "workspace"]
