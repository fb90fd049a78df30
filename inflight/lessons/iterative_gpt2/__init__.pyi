from . import gpt2_client
from .charts import race, race_summary
from .dashboard import board
from .log import executions, passes

__all__ = ["board", "executions", "gpt2_client", "passes", "race", "race_summary"]
