"""Lab 02: what flows through an ensemble, a repository that is broken for the learner, and one that gets an output."""

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import TYPE_INT32

from inflight.errors import CourseError
from inflight.notebook.grading.checker import grades
from inflight.notebook.grading.finding import NOT_YET, Finding
from inflight.triton import repository

# Faults of exercise 2.2: file, what stands there, what is put there instead.
_FAULTS = (
    ("postprocessing", 'name: "TOKENS_BATCH"\n  data_type: TYPE_INT32', 'name: "TOKENS_BATCH"\n  data_type: TYPE_FP32'),
    ("tensorrt_llm", '"guaranteed_no_evict"', '"guaranteed_no_eviction"'),
    ("ensemble", 'key: "input_ids"\n      value: "_INPUT_ID"', 'key: "input_ids"\n      value: "_INPUT_IDS"'),
    ("ensemble", 'key: "input_lengths"\n      value: "_REQUEST_INPUT_LEN"',
     'key: "input_lengths"\n      value: "_REQUEST_OUTPUT_LEN"'),
    ("ensemble", 'key: "request_output_len"\n      value: "_REQUEST_OUTPUT_LEN"',
     'key: "request_output_len"\n      value: "_REQUEST_INPUT_LEN"'),
)  # fmt: skip


def break_repository(repo: Path) -> Path:
    """Put the faults of exercise 2.2 into a repository in good order, and return its path.

    Raises
    ------
    CourseError
        The repository was changed before, so that a fault does not fit.
    """
    for model, intact, faulty in _FAULTS:
        path = repo / model / repository.CONFIG
        text = path.read_text(encoding="utf-8")
        if intact not in text:
            raise CourseError(f"{path} is not as it was assembled. Assemble the repository again, then break it.")
        path.write_text(text.replace(intact, faulty), encoding="utf-8")
    return repo


def _edges(repo: Path) -> set[repository.Edge]:
    return set(repository.ensemble_edges(repo))


def _maps(repo: Path) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], str]]:
    """(model, its own name) -> the ensemble's tensor, of what is taken and of what is given, fit they or not."""
    config = repository.read_config(repo / "ensemble" / repository.CONFIG)
    steps = config.ensemble_scheduling.step
    taken = {(step.model_name, own): tensor for step in steps for own, tensor in step.input_map.items()}
    given = {(step.model_name, own): tensor for step in steps for own, tensor in step.output_map.items()}
    return taken | {("client", output.name): output.name for output in config.output}, given


def _first_problem(repo: Path) -> str | None:
    """What the check says first about a repository, with paths as they are in it."""
    problems = repository.check(repo)
    return f"The check says: {str(problems[0]).replace(f'{repo}/', '')}" if problems else None


@contextlib.contextmanager
def _assembled() -> Iterator[Path]:
    """A repository as it should be. Its engine is never opened, so it need not be there."""
    with tempfile.TemporaryDirectory() as folder:
        yield repository.assemble(Path(folder) / "repo", Path(folder) / "engine")


@grades("2.1", "Its name in the ensemble is all that connects a tensor: who asks for that name gets it.")
def _takers(takers: Callable, _choose: random.Random) -> dict[str, Callable[[], Finding]]:
    def asked(is_taken: bool) -> Finding:
        with _assembled() as repo:
            edges = _edges(repo)
            for tensor in sorted({edge.tensor for edge in edges} | {"no_such_tensor"}):
                right = {
                    (edge.target, edge.input) for edge in edges if edge.tensor == tensor and edge.target != "client"
                }
                if bool(right) != is_taken:
                    continue
                got = takers(repo, tensor)
                if got is None:
                    return NOT_YET
                if set(got) != right or len(got) != len(right):
                    return f"For {tensor!r} the ensemble's steps say {sorted(right)}, and your function {got}."
        return None

    return {"a tensor that is taken": lambda: asked(True), "one that nobody takes": lambda: asked(False)}


@grades("2.2", "A check compares names, types and shapes; what a tensor means, only a test of the answer finds.")
def _repaired(repo: Path, _choose: random.Random) -> dict[str, Finding] | Finding:
    try:
        taken, _ = _maps(repo)
        engine, postprocessing = (
            repository.read_config(repo / model / repository.CONFIG) for model in ("tensorrt_llm", "postprocessing")
        )
    except CourseError:
        return _first_problem(repo)
    with _assembled() as reference:
        right_taken, _ = _maps(reference)
    policy = repository.get_parameter(engine, "batch_scheduler_policy")
    types = {field.name: field.data_type for field in postprocessing.input}

    def connected(*inputs: str) -> bool:
        return all(taken.get(("tensorrt_llm", name)) == right_taken[("tensorrt_llm", name)] for name in inputs)

    right = {
        "the type": types.get("TOKENS_BATCH") == TYPE_INT32,
        "the policy": policy == "guaranteed_no_evict",
        "the unknown tensor": connected("input_ids"),
        "the two that changed places": connected("input_lengths", "request_output_len"),
    }
    hints = {
        "the type": "postprocessing's TOKENS_BATCH has another type than the tensor that it gets.",
        "the policy": f"batch_scheduler_policy is {policy!r}; before it was guaranteed_no_evict.",
        "the unknown tensor": "tensorrt_llm's input_ids asks for a tensor that nobody gives.",
        "the two that changed places": "Not every input gets its own tensor: look at what is connected with what.",
    }
    findings = {part: None if right[part] else hints[part] for part in right}
    if not all(right.values()):
        return findings
    changed = None if taken == right_taken else "The ensemble connects something else than before."
    return {**findings, "all else": _first_problem(repo) or changed}


@grades("2.3", "One tensor may go to several takers: an ensemble runs no code of its own, it only says who gets what.")
def _extended(repo: Path, _choose: random.Random) -> dict[str, Finding] | Finding:
    try:
        taken, given = _maps(repo)
    except CourseError:
        return _first_problem(repo)
    prompt_tokens = given.get(("preprocessing", "REQUEST_INPUT_LEN"))
    to_the_engine = taken.get(("tensorrt_llm", "input_lengths")) == prompt_tokens
    to_the_client = prompt_tokens == "prompt_tokens" and ("client", "prompt_tokens") in taken
    not_to_the_engine = "tensorrt_llm's input_lengths no longer gets preprocessing's REQUEST_INPUT_LEN."
    not_to_the_client = "The ensemble has no output prompt_tokens that carries preprocessing's REQUEST_INPUT_LEN."
    return {
        "the client's output": None if to_the_client else not_to_the_client,
        "the engine's input": None if to_the_engine else not_to_the_engine,
        "the check": _first_problem(repo),
    }
