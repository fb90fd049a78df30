from . import rehearsal
from .charts import service_against_load
from .contract import BIAS, LECTURE, QUALITY, SHARE, Contract, contract_for, drawn_for, in_time, tally, tokenizer
from .deployment import KNOBS, MIB, bring_in, bytes_per_token, configs, engine_of, measure, rehearse, with_ids
from .rehearsal import Prices
from .stack import OwnClient, clock, prices_of

__all__ = [
    "BIAS",
    "KNOBS",
    "LECTURE",
    "MIB",
    "QUALITY",
    "SHARE",
    "Contract",
    "OwnClient",
    "Prices",
    "bring_in",
    "bytes_per_token",
    "clock",
    "configs",
    "contract_for",
    "drawn_for",
    "engine_of",
    "in_time",
    "measure",
    "prices_of",
    "rehearsal",
    "rehearse",
    "service_against_load",
    "tally",
    "tokenizer",
    "with_ids",
]
