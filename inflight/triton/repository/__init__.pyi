from . import batchers as batchers
from .assembly import assemble as assemble
from .assembly import refit as refit
from .editing import (
    edit as edit,
)
from .editing import (
    get_parameter as get_parameter,
)
from .editing import (
    get_value as get_value,
)
from .editing import (
    note_files as note_files,
)
from .editing import (
    set_value as set_value,
)
from .editing import (
    spec as spec,
)
from .ensembles import ensemble_edges as ensemble_edges
from .layout import (
    BASELINE as BASELINE,
)
from .layout import (
    BATCH_COST as BATCH_COST,
)
from .layout import (
    BLS as BLS,
)
from .layout import (
    CONFIG as CONFIG,
)
from .layout import (
    EMBEDDING as EMBEDDING,
)
from .layout import (
    GPT2 as GPT2,
)
from .layout import (
    PIPELINE as PIPELINE,
)
from .layout import (
    TEMPLATES as TEMPLATES,
)
from .layout import (
    models as models,
)
from .layout import (
    serves_llmapi as serves_llmapi,
)
from .parameters import (
    DEFAULTS as DEFAULTS,
)
from .parameters import (
    PARAMETERS as PARAMETERS,
)
from .parameters import (
    Parameter as Parameter,
)
from .parameters import (
    typed_parameters as typed_parameters,
)
from .pbtxt import (
    fill as fill,
)
from .pbtxt import (
    parse as parse,
)
from .pbtxt import (
    read_config as read_config,
)
from .pbtxt import (
    to_text as to_text,
)
from .pbtxt import (
    write_config as write_config,
)
from .validation import problems as problems
