from .charts import gaps, gaps_summary, prices, prices_summary
from .service import DECODER, PREFILLER, Apart, load

__all__ = ["DECODER", "PREFILLER", "Apart", "gaps", "gaps_summary", "load", "prices", "prices_summary"]
