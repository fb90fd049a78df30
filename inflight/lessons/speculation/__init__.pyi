from .charts import RESULTS, gains, gains_summary, steps, steps_summary
from .counting import columns
from .explorables import turning_point

__all__ = ["RESULTS", "columns", "gains", "gains_summary", "steps", "steps_summary", "turning_point"]
