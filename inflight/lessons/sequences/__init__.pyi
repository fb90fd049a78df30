from . import streams
from .voice import FRAME, Piece, Voice, two_lines

__all__ = ["FRAME", "Piece", "Voice", "streams", "two_lines"]
