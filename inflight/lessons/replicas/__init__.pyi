from . import load, simulate, watching
from .service import Replicas

__all__ = ["Replicas", "load", "simulate", "watching"]
