from . import promised_blocks
from .charts import block_tables, iterations_around, kv_blocks, kv_blocks_summary
from .dashboard import board
from .together import run_behind

__all__ = [
    "block_tables",
    "board",
    "iterations_around",
    "kv_blocks",
    "kv_blocks_summary",
    "promised_blocks",
    "run_behind",
]
