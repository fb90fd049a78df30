from . import promised_blocks
from .charts import block_tables, iterations_around, kv_blocks, kv_blocks_summary, of_longest_prompt
from .dashboard import board
from .together import run_behind

__all__ = [
    "block_tables",
    "board",
    "iterations_around",
    "kv_blocks",
    "kv_blocks_summary",
    "of_longest_prompt",
    "promised_blocks",
    "run_behind",
]
