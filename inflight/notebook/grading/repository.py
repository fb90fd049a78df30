"""Lab 02: what flows through an ensemble, a repository that is broken for the learner, and one that gets an output."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from inflight.errors import CourseError
from inflight.notebook.grading.checker import NOT_YET, grades
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


def _first_problem(repo: Path) -> str | None:
    """What the check says first about a repository, with paths as they are in it."""
    problems = repository.check(repo)
    return f"The check says: {str(problems[0]).replace(f'{repo}/', '')}" if problems else None


@contextlib.contextmanager
def _assembled() -> Iterator[Path]:
    """A repository as it should be. Its engine is never opened, so it need not be there."""
    with tempfile.TemporaryDirectory() as folder:
        yield repository.assemble(Path(folder) / "repo", Path(folder) / "engine")


@grades("2.1")
def _takers(takers: Callable) -> str | None:
    with _assembled() as repo:
        edges = _edges(repo)
        for tensor in sorted({edge.tensor for edge in edges} | {"no_such_tensor"}):
            got = takers(repo, tensor)
            if got is None:
                return NOT_YET
            right = {(edge.target, edge.input) for edge in edges if edge.tensor == tensor and edge.target != "client"}
            if set(got) != right or len(got) != len(right):
                return f"For {tensor!r} the ensemble's steps say {sorted(right)}, and your function {got}."
    return None


@grades("2.2")
def _repaired(repo: Path) -> str | None:
    problem = _first_problem(repo)
    if problem:
        return problem
    with _assembled() as reference:
        crossed = _edges(repo) - _edges(reference)
        config = repository.read_config(repo / "tensorrt_llm" / repository.CONFIG)
    if crossed:
        return "The check is content, but not every input gets its own tensor: look at what is connected with what."
    if repository.get_parameter(config, "batch_scheduler_policy") != "guaranteed_no_evict":
        return "The repository would start, with another scheduling policy than before: it was guaranteed_no_evict."
    return None


@grades("2.3")
def _extended(repo: Path) -> str | None:
    problem = _first_problem(repo)
    if problem:
        return problem
    edges = {(edge.source, edge.output, edge.target, edge.input) for edge in _edges(repo)}
    if ("preprocessing", "REQUEST_INPUT_LEN", "tensorrt_llm", "input_lengths") not in edges:
        return "tensorrt_llm's input_lengths no longer gets preprocessing's REQUEST_INPUT_LEN."
    if ("preprocessing", "REQUEST_INPUT_LEN", "client", "prompt_tokens") not in edges:
        return "The ensemble has no output prompt_tokens that carries preprocessing's REQUEST_INPUT_LEN."
    return None
