from . import (
    embedding as embedding,
)
from . import (
    gpt2 as gpt2,
)
from . import (
    gpt2_checkpoint as gpt2_checkpoint,
)
from . import (
    gpt2_network as gpt2_network,
)
from . import (
    huggingface as huggingface,
)
