from .charts import curve, curve_summary
from .explorables import memory
from .matmuls import KERNELS, Matmuls, operations

__all__ = ["KERNELS", "Matmuls", "curve", "curve_summary", "memory", "operations"]
