from .charts import gains, gains_summary, steps, steps_summary
from .explorables import turning_point

__all__ = ["gains", "gains_summary", "steps", "steps_summary", "turning_point"]
