from . import batch_run, custom_batching
from .charts import batches, batches_summary, latencies
from .dashboard import board

__all__ = ["batch_run", "batches", "batches_summary", "board", "custom_batching", "latencies"]
