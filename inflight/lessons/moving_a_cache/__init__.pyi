from .charts import gaps, gaps_summary, lines, lines_summary
from .service import DECODER, PREFILLER, Apart

__all__ = ["DECODER", "PREFILLER", "Apart", "gaps", "gaps_summary", "lines", "lines_summary"]
