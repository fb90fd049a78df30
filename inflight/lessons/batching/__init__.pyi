from . import run_files
from .charts import slot_map, slot_map_summary, who_pays, who_pays_summary
from .dashboard import board
from .explorables import simulated_slots
from .full_queue import run_from_full_queue
from .simulate import latencies

__all__ = [
    "board",
    "latencies",
    "run_files",
    "run_from_full_queue",
    "simulated_slots",
    "slot_map",
    "slot_map_summary",
    "who_pays",
    "who_pays_summary",
]
