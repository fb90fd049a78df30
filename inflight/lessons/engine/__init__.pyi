from .charts import curve, curve_summary
from .explorables import memory
from .matmuls import KERNELS, OnlyProducts, operations

__all__ = ["KERNELS", "OnlyProducts", "curve", "curve_summary", "memory", "operations"]
