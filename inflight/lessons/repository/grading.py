"""Lab 02: a model of one's own in the ensemble, repositories repaired, and a check of one's own."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from tritonclient.grpc import InferResult
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from inflight.checkpoint import load_tokenizer
from inflight.errors import CourseError
from inflight.lessons.repository.served import ANSWER_S, PIPELINE, served, stand_ins
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import load
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Finding, Measured, Wrong, asked
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.triton import repository
from inflight.triton.client.connection import Connection, text

MASK, MASKED = "mask", "[e-mail]"
HOSTS = ("", ".org", ".com", ".co.uk", ".info", ".de")
WORDS = ("black", "hole", "where", "light", "old", "stars", "does", "not", "come", "back", "however", "long")


def _read(repo: Path) -> dict[str, ModelConfig]:
    """The configs by model. CourseError: what is wrong first of all in the repository, with paths as they are in it."""
    problems = repository.problems(repo)
    if problems:
        raise CourseError(f"In its files: {problems[0]}")
    return {name: repository.read_config(Path(repo) / name / repository.CONFIG) for name in repository.models(repo)}


def _ask(connection: Connection, prompt: str, most: int) -> str:
    arrays = {"text_input": text(prompt), "max_tokens": np.array([[most]], np.int32)}
    return _texts(connection.infer("ensemble", arrays, ANSWER_S), "text_output")[0]


def _texts(reply: InferResult, name: str) -> list[str]:
    return [text.decode("utf-8", "replace") for text in reply.as_numpy(name).reshape(-1)]


def _right(prompt: str, most: int, encode: Callable[[str], list[int]] | None = None) -> str:
    """Return the right answer of the pipeline of stand-ins."""
    ids = (encode or stand_ins().prompt_ids)(prompt)
    return stand_ins().answer_text(stand_ins().answer_ids(ids, most))


# 2.1 ------------------------------------------------------------------------------------------------------------------


@grades("2.1", "A step of an ensemble sees only tensors; the maps say where each comes from and where it goes.",
        keeps="repository")  # fmt: skip
def _with_a_model_of_ones_own(repo: Path, choose: random.Random) -> dict[str, Finding] | Finding:
    if not _is_folder(repo):
        return Wrong("Set extended to the path of your repository: extended = repo")
    if (lost := _lost(_read(repo)["ensemble"])) != RIGHT:
        return {"the ensemble": lost, "hidden prompts": NOT_YET, "several rows": NOT_YET}
    with served(Path(repo)) as connection:
        return {
            "the ensemble": RIGHT,
            "hidden prompts": _answered_masked(connection, _hidden_addresses(choose)),
            "several rows": _rows_masked(connection, choose),
        }


def _is_folder(path: object) -> bool:
    try:
        return isinstance(path, str | Path) and Path(path).is_dir()
    except (OSError, ValueError):  # a text that is no path
        return False


def _lost(config: ModelConfig) -> Finding:
    """Say what an ensemble lacks that the course's own, with `mask`, has for its clients and for its models."""
    courses = repository.read_config(COURSES_OWN["repository"] / "ensemble" / repository.CONFIG)
    for kind in ("input", "output"):
        for one in getattr(courses, kind):
            if one not in getattr(config, kind):
                return Wrong(
                    f"The ensemble's {kind} {one.name} is gone, or is no longer what it was: clients, and the next "
                    "labs, rely on it."
                )
    taken = {(step.model_name, own) for step in config.ensemble_scheduling.step for own in step.input_map}
    for step in courses.ensemble_scheduling.step:
        for own in step.input_map:
            if (step.model_name, own) not in taken:
                return Wrong(f"No step of the ensemble runs {step.model_name} and gives it {own}.")
    return RIGHT


def _hidden_addresses(choose: random.Random) -> list[tuple[str, str, int]]:
    """Texts with none, one or two addresses, what is to become of each, and the most tokens that it asks for."""
    made = []
    for addresses in (0, 1, 2, 1, 1):
        words = ["Grüße", *choose.choices(WORDS, k=choose.randint(2, 6))]
        if not addresses:
            words.append("@")
        masked = list(words)
        for _ in range(addresses):
            host = choose.choice(WORDS) + choose.choice(HOSTS)
            place, name = (
                choose.randint(0, len(words)),
                f"{choose.choice(WORDS)}{choose.choice('._-+')}{choose.randint(1, 99)}",
            )
            words.insert(place, f"{choose.choice(('', '<', 'ä'))}{name}@{host}{choose.choice(('', '>', ','))}")
            masked.insert(place, MASKED)
        blanks = [choose.choice((" ", "  ", "\n")) for _ in words]
        text, wanted = ("".join(map("".join, zip(blanks, each))) for each in (words, masked))
        made.append((text, wanted, choose.randint(40, 60)))
    return made


def _answered_masked(connection: Connection, prompts: list[tuple[str, str, int]]) -> Finding:
    advice, right = "", 0
    for prompt, masked, most in prompts:
        said, wanted = _ask(connection, prompt, most), _right(masked, most)
        right += said == wanted
        if said != wanted and not advice:
            first = next((word for word in prompt.split() if "@" in word), "")
            told = {
                "preprocessing gets it as it was": prompt,
                "mask changes its blanks: leave them as they are": " ".join(masked.split()),
                "an @ between blanks is masked, which is no address": re.sub(r"\S*@\S*", MASKED, prompt),
                "only the first address is masked": prompt.replace(first, MASKED),
            }
            what = next((words for words, text in told.items() if said == _right(text, most)), "")
            advice = f"A client sends {prompt!r}, and {what or f'preprocessing does not get {masked!r}'}."
    nothing = sum(prompt == masked for prompt, masked, _ in prompts)
    return Measured(
        "prompts passed on correctly", right, exactly=len(prompts), course=len(prompts), nothing=nothing, advice=advice
    )


def _rows_masked(connection: Connection, choose: random.Random) -> Finding:
    """A request of several rows, as a batch has: each is masked for itself."""
    texts = [f"{choose.choice(WORDS)} {number} a@b.org" for number in range(3)]
    try:
        said = _texts(connection.infer(MASK, {"TEXT": text(*texts)}, ANSWER_S), "MASKED")
    except CourseError as error:
        return Wrong(f"Asked for {len(texts)} rows in one request, mask says: {error}")
    wanted = [row.replace("a@b.org", MASKED) for row in texts]
    return RIGHT if said == wanted else Wrong(f"A request has the {len(texts)} rows {texts}, and MASKED is {said}.")


# 2.2 ------------------------------------------------------------------------------------------------------------------

# For each repository: what its owner has set on purpose; and the faults: file, original text, faulty text.
_OWNERS: Mapping[str, dict] = {
    "captions": {"triton_max_batch_size": 16, "max_queue_size": 40},
    "search": {"enable_kv_cache_reuse": True, "allotted_time_ms": 20_000},
    "chat": {"max_queue_size": 12, "apply_chat_template": False},
}
_FAULTS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "captions": (
        ("postprocessing/config.pbtxt", 'name: "TOKENS_BATCH"\n  data_type: TYPE_INT32',
         'name: "TOKENS_BATCH"\n  data_type: TYPE_FP32'),
        ("tensorrt_llm/config.pbtxt", '"guaranteed_no_evict"', '"guaranteed_no_eviction"'),
        ("ensemble/config.pbtxt", 'key: "input_ids"\n      value: "_INPUT_ID"',
         'key: "input_ids"\n      value: "_INPUT_IDS"'),
    ),
    "search": (
        ("preprocessing/1/model.py", "load_tokenizer(self.parameters", "load_tokenizer(self.parameter"),
        ("preprocessing/1/model.py", "[[len(ids)] for ids in prompts]", "[len(ids) for ids in prompts]"),
    ),
    "chat": (
        ("ensemble/config.pbtxt", 'key: "input_lengths"\n      value: "_REQUEST_INPUT_LEN"',
         'key: "input_lengths"\n      value: "_REQUEST_OUTPUT_LEN"'),
        ("ensemble/config.pbtxt", 'key: "request_output_len"\n      value: "_REQUEST_OUTPUT_LEN"',
         'key: "request_output_len"\n      value: "_REQUEST_INPUT_LEN"'),
    ),
}  # fmt: skip

_RUN_ITSELF = {"search": ("preprocessing",)}  # models whose own code the check runs, as it was broken


def broken_repositories(folder: str | Path, engine_dir: str | Path) -> dict[str, Path]:
    """The three repositories of exercise 2.2, made anew: each has its owner's settings, and something that is broken.

    Returns
    -------
    dict of str to Path
        "captions", "search" and "chat".
    """
    made = {}
    for name, settings in _OWNERS.items():
        made[name] = repository.assemble(Path(folder) / name, engine_dir, **settings)
        for file, intact, faulty in _FAULTS[name]:
            path = made[name] / file
            text = path.read_text(encoding="utf-8")
            if intact not in text:
                raise CourseError(f"{file} of the templates is not as the exercise expects it. Restore the course.")
            path.write_text(text.replace(intact, faulty), encoding="utf-8")
    return made


@grades("2.2", "`problems` compares names, types and shapes. Faults in code and meaning show when a server answers.")
def _repaired(repos: Mapping[str, Path], choose: random.Random) -> dict[str, Callable[[], Finding]] | Finding:
    if not isinstance(repos, dict) or not all(_is_folder(repos.get(name)) for name in _OWNERS):
        return Wrong("Set repaired to the three repositories, by their names: repaired = broken")
    prompts = [(" ".join(choose.choices(WORDS, k=choose.randint(1, 12))), choose.randint(5, 12)) for _ in range(2)]
    return {name: partial(_is_repaired, name, repos[name], prompts) for name in _OWNERS}


def _is_repaired(name: str, repo: Path, prompts: list[tuple[str, int]]) -> Finding:
    configs = _read(repo)
    engine_dir = repository.get_parameter(configs["tensorrt_llm"], "gpt_model_path")
    with tempfile.TemporaryDirectory() as folder:
        intact = repository.assemble(Path(folder) / "intact", engine_dir, **_OWNERS[name])
        owners, found = _settings(_read(intact)), _settings(configs)
    for setting, value in owners.items():
        if found.get(setting) != value:
            return Wrong(
                f"{setting} is {found.get(setting)!r}; its owner had {value!r}. Repair this folder, not another."
            )
    own = _RUN_ITSELF.get(name, ())
    encode = _encoder(configs["preprocessing"]) if own else None
    cases = [
        Case(
            (prompt, most), _right(prompt, most, encode), "Triton loads it: compare which tensors are connected.",
            f"With stand-ins for its models, the answer to {prompt!r}",
        )
        for prompt, most in prompts
    ]  # fmt: skip
    with served(Path(repo), [model for model in PIPELINE if model not in own]) as connection:
        return asked(partial(_ask, connection), cases)


def _settings(configs: dict[str, ModelConfig]) -> dict[str, object]:
    """Return the settings that the owner of a repository has chosen, by model and name."""
    found: dict[str, object] = {f"{model}'s max_batch_size": config.max_batch_size for model, config in configs.items()}
    for model, config in configs.items():
        found |= {f"{model}'s {key}": repository.get_parameter(config, key) for key in config.parameters}
    return found


def _encoder(config: ModelConfig) -> Callable[[str], list[int]]:
    """The token ids of a prompt as `preprocessing` with this config makes them."""
    tokenizer = load_tokenizer(repository.get_parameter(config, "tokenizer_dir"))
    wraps = repository.get_parameter(config, "apply_chat_template") == "true"
    return tokenizer.encode_chat if wraps else tokenizer.encode


# 2.3 ------------------------------------------------------------------------------------------------------------------

REPOSITORIES, CHECK_S = 200, 60
KINDS = [DataType.TYPE_STRING, DataType.TYPE_INT32, DataType.TYPE_INT64, DataType.TYPE_FP32, DataType.TYPE_BOOL]
FITS = "it fits"
FAULTS = ("nobody gives it", "only a later step gives it", "only the step itself gives it", "it has another type",
          "its model needs it, and the map does not have it")  # fmt: skip


@grades("2.3", "What stands in the files alone, names and types, a program can check before a server starts.",
        within_s=CHECK_S)  # fmt: skip
def _misfits(path: str, choose: random.Random) -> Finding:
    misfits = load(path, "misfits").misfits
    with tempfile.TemporaryDirectory() as folder:
        for number in range(REPOSITORIES):
            repo = Path(folder) / str(number)
            said = _hidden_ensemble(repo, 0.0 if number == 0 else 0.2, choose)
            found = misfits(repo)
            if not isinstance(found, Iterable) or isinstance(found, str | dict):
                return Wrong(f"misfits returns {found!r:.80}. Return pairs: a model, and its own name for an input.")
            pairs = {tuple(pair) if isinstance(pair, list) else pair for pair in found}
            for pair, wrong in said.items():
                if (wrong != FITS) != (pair in pairs):
                    names = "is missing" if wrong != FITS else "is named"
                    return Wrong(f"{_steps(repo)} Of the pairs, {pair} {names}, and {wrong}.")
            if others := pairs - set(said):
                other = min(others, key=repr)
                return Wrong(f"{_steps(repo)} {other!r:.80} is no model and its own name for an input.")
    return RIGHT


def _hidden_ensemble(repo: Path, share: float, choose: random.Random) -> dict[tuple[str, str], str]:
    """Make a repository with an ensemble; say of each input, a model and a name, whether it fits or what is wrong."""
    letters = choose.sample("abcdefghijkl", choose.randint(2, 5))
    given = {f"in_{number}": choose.choice(KINDS) for number in range(choose.randint(1, 2))}
    gives = {  # by step: its own names, those that the steps share, and their types
        letter: [
            (f"OUT_{number}", f"{letter}_{number}", choose.choice(KINDS)) for number in range(choose.randint(1, 2))
        ]
        for letter in letters
    }
    config, said = ModelConfig(name="ensemble", platform="ensemble"), {}
    for name, kind in given.items():
        config.input.add(name=name, data_type=kind, dims=[-1])
    for place, letter in enumerate(letters):
        model = ModelConfig(name=f"step_{letter}", backend="python")
        step = config.ensemble_scheduling.step.add(model_name=model.name, model_version=-1)
        later = [one for other in letters[place + 1 :] for one in gives[other]]
        for number in choose.sample(range(100), choose.randint(1, 3)):
            own, optional = f"IN_{number}", choose.random() < 0.3
            shared, kind = choose.choice(list(given.items()))
            wrong = choose.choice(FAULTS) if choose.random() < share else FITS
            if wrong == FAULTS[0]:
                shared += "_"
            elif wrong == FAULTS[1] and later:
                _, shared, kind = choose.choice(later)
            elif wrong == FAULTS[2]:
                _, shared, kind = choose.choice(gives[letter])
            elif wrong == FAULTS[3]:
                kind = choose.choice([other for other in KINDS if other != kind])
            elif wrong != FITS:
                optional, wrong = False, FAULTS[4]
            model.input.add(name=own, data_type=kind, dims=[-1], optional=optional)
            if wrong != FAULTS[4] and not (wrong == FITS and optional and choose.random() < 0.5):
                step.input_map[own] = shared
            said[model.name, own] = wrong
        for own, shared, kind in gives[letter]:
            model.output.add(name=own, data_type=kind, dims=[-1])
            step.output_map[own] = shared
            given[shared] = kind
        _write(model, repo)
    config.output.add(name=shared, data_type=kind, dims=[-1])
    _write(config, repo)
    return said


def _write(config: ModelConfig, repo: Path) -> None:
    (repo / config.name).mkdir(parents=True)
    (repo / config.name / repository.CONFIG).write_text(repository.to_text(config), encoding="utf-8")


def _steps(repo: Path) -> str:
    """What a hidden ensemble looks like, on one line."""
    config = repository.read_config(repo / "ensemble" / repository.CONFIG)
    steps = [
        f"{step.model_name} {dict(step.input_map)} → {list(step.output_map.values())}"
        for step in config.ensemble_scheduling.step
    ]
    return f"A hidden ensemble has the inputs {[one.name for one in config.input]} and the steps {'; '.join(steps)}."
