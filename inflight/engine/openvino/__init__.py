"""The engine's model on a CPU: a checkpoint made a graph, the graph made a program, and the program run.

Reading order: `steps` (from a file to a program), `four_bits` (what is mended on the way), `runner` (one iteration).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["four_bits", "steps"])
