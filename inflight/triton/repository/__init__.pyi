from . import batchers
from .assembly import assemble, refit
from .editing import edit, get_parameter, get_value, note_files, set_value, spec
from .ensembles import ensemble_edges
from .layout import BASELINE, BATCH_COST, BLS, CONFIG, EMBEDDING, GPT2, PIPELINE, TEMPLATES, models, serves_llmapi
from .parameters import DEFAULTS, PARAMETERS, Parameter, typed_parameters
from .pbtxt import fill, parse, read_config, to_text, write_config
from .validation import problems

__all__ = [
    "BASELINE",
    "BATCH_COST",
    "BLS",
    "CONFIG",
    "DEFAULTS",
    "EMBEDDING",
    "GPT2",
    "PARAMETERS",
    "PIPELINE",
    "TEMPLATES",
    "Parameter",
    "assemble",
    "batchers",
    "edit",
    "ensemble_edges",
    "fill",
    "get_parameter",
    "get_value",
    "models",
    "note_files",
    "parse",
    "problems",
    "read_config",
    "refit",
    "serves_llmapi",
    "set_value",
    "spec",
    "to_text",
    "typed_parameters",
    "write_config",
]
