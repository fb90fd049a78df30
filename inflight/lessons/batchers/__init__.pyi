from . import batch_run, custom_batching
from .charts import batches, batches_summary
from .dashboard import board
from .performance_analyzer import perf_analyzer

__all__ = ["batch_run", "batches", "batches_summary", "board", "custom_batching", "perf_analyzer"]
