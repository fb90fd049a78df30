from . import four_bits, steps

__all__ = ["four_bits", "steps"]
