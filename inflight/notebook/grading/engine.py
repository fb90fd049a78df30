"""Lab 01: how much memory an engine takes, which one a service needs, and what company changes."""

from inflight import checkpoint, engine
from inflight.engine.config import BuildConfig
from inflight.engine.sizing import Sizing
from inflight.errors import CourseError
from inflight.notebook.grading.checker import grades


def _sizing() -> Sizing:
    """The arithmetic of the course's own model."""
    source = checkpoint.fetch()
    return Sizing(checkpoint.GgufFile(source.path), engine.read(engine.cached(source)).pretrained_config)


@grades("1.1")
def _users_that_fit(answer: object) -> str | None:
    sizing, config = _sizing(), BuildConfig()
    if answer == int(4e9 // sizing.kv_bytes_per_user(config, 1500)):
        return None
    if answer == int(4e9 // (1500 * sizing.kv_bytes_per_token(config))):
        return "Nearly: 1,500 tokens take whole blocks of 32. Round up to blocks before you divide."
    return "Divide the memory by the bytes of one user: blocks × 32 × 2 × layers × KV heads × head size × 4."


@grades("1.2")
def _engine_for_a_service(answer: object) -> str | None:
    if not isinstance(answer, dict):
        return "Give a dict of build options, as {'max_batch_size': 16}."
    unknown = set(answer) - set(BuildConfig.__dataclass_fields__)
    if unknown:
        return f"{unknown.pop()!r} is no build option; their names are the parameters of BuildConfig."
    try:
        config = BuildConfig(**answer)
    except CourseError as error:
        return str(error)
    for name, needed in {"max_batch_size": 16, "max_input_len": 200, "max_seq_len": 256}.items():
        if getattr(config, name) < needed:
            return f"{name} is {getattr(config, name)}: the service needs {needed}."
    taken = config.max_batch_size * _sizing().kv_bytes_per_user(config, config.max_seq_len)
    return f"The KV cache of all slots takes {taken / 1e6:.1f} MB; it must fit into 64." if taken > 64e6 else None


@grades("1.3")
def _company_changes_nothing(answer: object) -> str | None:
    alone, in_company = (list(ids) for ids in answer)
    if len(alone) != 32 or len(in_company) != 32:
        return f"Both answers must have 32 tokens; yours have {len(alone)} and {len(in_company)}."
    if alone != in_company:
        return "They differ, so the engine rounds its activations: build it with quant_algo W4A16."
    return None
