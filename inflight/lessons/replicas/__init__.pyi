from . import load, simulate, watching
from .load import rehearsal
from .service import Replicas

__all__ = ["Replicas", "load", "rehearsal", "simulate", "watching"]
