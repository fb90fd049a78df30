from . import gpt2_client
from .charts import race, through_each_pass, through_each_pass_summary
from .dashboard import board
from .lab_model import Gpt2Model
from .pass_log import passes
from .rivals import Rival, rivals
from .triton_config import config

__all__ = [
    "Gpt2Model",
    "Rival",
    "board",
    "config",
    "gpt2_client",
    "passes",
    "race",
    "rivals",
    "through_each_pass",
    "through_each_pass_summary",
]
