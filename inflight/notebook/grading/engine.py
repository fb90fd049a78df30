"""Lab 01: how much memory an engine takes, which one a service needs, and what company changes."""

import random
from collections.abc import Callable

from inflight import checkpoint, engine
from inflight.engine.config import BuildConfig
from inflight.engine.sizing import Sizing
from inflight.errors import CourseError
from inflight.notebook.grading.checker import grades
from inflight.notebook.grading.finding import NOT_YET, Finding


def _sizing() -> Sizing:
    """The arithmetic of the course's own model."""
    source = checkpoint.fetch()
    return Sizing(checkpoint.GgufFile(source.path), engine.read(engine.cached(source)).pretrained_config)


@grades("1.1", "Memory is users × tokens × bytes a token: once the weights are there, they have no part in it.")
def _users_that_fit(users_that_fit: Callable, _choose: random.Random) -> dict[str, Callable[[], Finding]]:
    sizing, config = _sizing(), BuildConfig()

    def fits(lengths: tuple[int, ...], hint: str) -> Finding:
        for tokens in lengths:
            got = users_that_fit(4e9, tokens)
            if got is None:
                return NOT_YET
            if got != int(4e9 // sizing.kv_bytes_per_user(config, tokens)):
                return f"With {tokens:,} tokens each, your function says {got} users. {hint}"
        return None

    formula = "Divide the memory by the bytes of one user: blocks × 32 × 2 × layers × KV heads × head size × 4."
    rounded = "Their last block is theirs alone: round up to whole blocks before you divide."
    return {
        "bytes a token": lambda: fits((1504, 64, 2048), formula),
        "whole blocks": lambda: fits((1500, 33, 1, 700), rounded),
    }


@grades(
    "1.2",
    "A service's limits decide its engine: shorter answers, or smaller numbers in the cache, make room for users.",
)
def _engine_for_a_service(answer: object, _choose: random.Random) -> Finding | dict[str, Finding]:
    if not isinstance(answer, dict):
        return "Give a dict of build options, as {'max_batch_size': 16}."
    unknown = set(answer) - set(BuildConfig.__dataclass_fields__)
    if unknown:
        return f"{unknown.pop()!r} is no build option; their names are the parameters of BuildConfig."
    try:
        config = BuildConfig(**answer)
    except CourseError as error:
        return str(error)
    findings: dict[str, Finding] = {}
    for part, name, needed in (
        ("users", "max_batch_size", 16),
        ("prompts", "max_input_len", 200),
        ("answers", "max_seq_len", 256),
    ):
        given = getattr(config, name)
        findings[part] = None if given >= needed else f"{name} is {given}: the service needs {needed}."
    taken = config.max_batch_size * _sizing().kv_bytes_per_user(config, config.max_seq_len)
    too_much = f"The KV cache of all slots takes {taken / 1e6:.1f} MB; it must fit into 64."
    return {**findings, "memory": too_much if taken > 64e6 else None}


@grades("1.3", "With activations as they are, company changed no word: each answer was computed as if it were alone.")
def _company_changes_nothing(answer: object, _choose: random.Random) -> dict[str, Finding]:
    answers = dict(zip(("alone", "in company"), answer, strict=True))
    findings = {part: _of_32_tokens(ids) for part, ids in answers.items()}
    if any(findings.values()):
        return findings
    differ = "They differ, so the engine rounds its activations: build it with quant_algo W4A16."
    alike = list(answers["alone"]) == list(answers["in company"])
    return {**findings, "the same words": None if alike else differ}


def _of_32_tokens(ids: list[int] | None) -> Finding:
    if ids is None:
        return NOT_YET
    return None if len(ids) == 32 else f"Each answer must have 32 tokens; one of yours has {len(ids)}."
