from . import promised_blocks
from .charts import block_tables, iterations_around, kv_blocks, kv_blocks_summary
from .dashboard import board
from .together import log_behind

__all__ = [
    "block_tables",
    "board",
    "iterations_around",
    "kv_blocks",
    "kv_blocks_summary",
    "log_behind",
    "promised_blocks",
]
