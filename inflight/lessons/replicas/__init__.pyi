from . import load, simulate, watching
from .charts import lanes, lanes_summary, watched, watched_summary
from .service import Replicas

__all__ = ["Replicas", "lanes", "lanes_summary", "load", "simulate", "watched", "watched_summary", "watching"]
