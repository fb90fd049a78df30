from . import rehearsal, service
from .charts import cost_against_service, front_in_words, service_against_load
from .rehearsal import Prices
from .stack import OwnClient, prices_of

__all__ = [
    "OwnClient",
    "Prices",
    "cost_against_service",
    "front_in_words",
    "prices_of",
    "rehearsal",
    "service",
    "service_against_load",
]
