from . import gpt2_client
from .charts import race, through_each_pass, through_each_pass_summary
from .dashboard import board
from .lab_model import Gpt2Model
from .pass_log import passes
from .triton_config import config

__all__ = [
    "Gpt2Model",
    "board",
    "config",
    "gpt2_client",
    "passes",
    "race",
    "through_each_pass",
    "through_each_pass_summary",
]
