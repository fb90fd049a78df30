"""The engine's model on a CPU: makes a graph of a checkpoint and a program of the graph, and runs it.

Reading order: `steps` (from a file to a program), `four_bits` (makes its 4-bit weights exact), `runner` (one
iteration).
"""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
