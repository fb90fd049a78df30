"""Lab 02: a model of one's own in the ensemble, repositories repaired and filled, and a check of one's own."""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from tritonclient.grpc import InferResult
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from inflight.checkpoint import load_tokenizer
from inflight.engine import BuildConfig, ExecutorConfig, engine_version
from inflight.errors import CourseError
from inflight.lessons.repository.served import ANSWER_S, PIPELINE, served, stand_ins
from inflight.notebook.checks import grades
from inflight.notebook.checks.findings import (
    NOT_YET,
    RIGHT,
    Case,
    Finding,
    Measured,
    Wrong,
    asked,
    because,
    judged,
)
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.triton import repository
from inflight.triton.client.connection import Connection, text

MASK, MASKED = "mask", "[e-mail]"
HOSTS = ("org", "com", "co.uk", "info", "de")
WORDS = ("black", "hole", "where", "light", "old", "stars", "does", "not", "come", "back", "however", "long")


def _read(repo: Path) -> dict[str, ModelConfig]:
    """The configs by model. CourseError: what is wrong first of all in the repository, with paths as they are in it."""
    problems = repository.problems(repo)
    if problems:
        raise CourseError(f"In its files: {str(problems[0]).replace(f'{repo}/', '')}")
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
def _with_a_model_of_ones_own(repo: Path, choose: random.Random) -> dict[str, Finding]:
    if (lost := _lost(_read(repo)["ensemble"])) != RIGHT:
        return {"the ensemble": lost, "hidden prompts": NOT_YET, "several rows": NOT_YET}
    with served(Path(repo)) as connection:
        return {
            "the ensemble": RIGHT,
            "hidden prompts": _answered_masked(connection, _hidden_addresses(choose)),
            "several rows": _rows_masked(connection, choose),
        }


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
    for addresses in (0, 1, 2, 1):
        words = ["Grüße", *choose.choices(WORDS, k=choose.randint(2, 6))]
        masked = list(words)
        for _ in range(addresses):
            place, host = choose.randint(0, len(words)), f"{choose.choice(WORDS)}.{choose.choice(HOSTS)}"
            words.insert(place, f"{choose.choice(WORDS)}{choose.choice('._-')}{choose.randint(1, 99)}@{host}")
            masked.insert(place, MASKED)
        blanks = [choose.choice((" ", "  ", "\n")) for _ in words]
        text, wanted = ("".join(map("".join, zip(each, blanks))).strip() for each in (words, masked))
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
    "search": (("preprocessing/1/model.py", "load_tokenizer(self.parameters", "load_tokenizer(self.parameter"),),
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
def _repaired(repos: Mapping[str, Path], choose: random.Random) -> dict[str, Callable[[], Finding]]:
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

PER_BLOCK, SLOTS = 32, 16  # tokens of a block; slots of a hidden engine


@grades("2.3", "Only a few values of a repository depend on the engine and the service; all others stay the same.")
def _filled_for(fill_for: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    found: dict[str, Finding] = {}
    for streams in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            target, users = Path(folder) / "repo", choose.randint(2, 9)
            engine, tokenizer = (Path(folder) / f"{name} {choose.randint(100, 999)}" for name in ("engine", "tokens"))
            tokenizer.mkdir()
            build = _hidden_engine(engine, choose)
            given = fill_for(target, engine, tokenizer, users, streams)
            if given is None and not target.exists():
                return NOT_YET
            if given is None or Path(given).resolve() != target.resolve():
                return Wrong(f"Return the path of the repository, {target.name!r} of the folder that it is given.")
            for part, finding in _filled(_read(target), engine, tokenizer, users, streams, build).items():
                if part not in found or judged(found[part]) == RIGHT:
                    found[part] = finding
    return found


def _hidden_engine(folder: Path, choose: random.Random) -> BuildConfig:
    """Make the folder of an engine that nobody knows beforehand, as far as its config goes."""
    longest = PER_BLOCK * choose.randint(16, 128) + choose.randint(1, PER_BLOCK - 1)
    build = BuildConfig(max_batch_size=SLOTS, max_input_len=longest // 2, max_seq_len=longest)
    config = {
        "version": engine_version(),
        "tier": "cpu",
        "device": "cpu",
        "pretrained_config": {"checkpoint": {"name": "hidden", "sha256": "0" * 64}},
        "build_config": dataclasses.asdict(build),
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return build


def _filled(
    configs: dict[str, ModelConfig], engine: Path, tokenizer: Path, users: int, streams: bool, build: BuildConfig
) -> dict[str, Finding]:
    missing = [model for model in PIPELINE if model not in configs]
    if missing:
        return {"the repository": Wrong(f"It has no model {missing[0]!r}.")}
    served_by = configs["tensorrt_llm"]

    def other(model: str, key: str, wanted: Path) -> str | None:
        value = repository.get_parameter(configs[model], key)
        hint = f"For a hidden engine, {model}'s {key} is {value}; it should be {wanted}."
        return None if Path(str(value)) == wanted else hint

    tokens = repository.get_parameter(served_by, "max_tokens_in_paged_kv_cache")
    cache = ExecutorConfig(max_tokens_in_paged_kv_cache=int(tokens) if tokens else None)
    decoupled = served_by.model_transaction_policy.decoupled
    return {
        "the engine": because(other("tensorrt_llm", "gpt_model_path", engine)),
        "the tokenizer": because(
            other("preprocessing", "tokenizer_dir", tokenizer) or other("postprocessing", "tokenizer_dir", tokenizer)
        ),
        "the KV cache": Measured(
            f"users at once, with a max_seq_len of {build.max_seq_len} and max_tokens_in_paged_kv_cache "
            f"{tokens or 'blank'}",
            cache.num_blocks(build) // -(-build.max_seq_len // PER_BLOCK), exactly=users, course=users, nothing=SLOTS,
            advice="Each needs the longest sequence that the engine takes, in whole blocks of 32 tokens.",
        ),
        "streaming": RIGHT if decoupled == streams else Wrong(f"With streams={streams}, decoupled is {decoupled}."),
    }  # fmt: skip


# 2.4 ------------------------------------------------------------------------------------------------------------------


_KINDS = ("nobody gives it", "a later step gives it", "of another type")


@grades("2.4", "What stands in the files alone, names and types, a program can check before a server starts.")
def _misfits(misfits: Callable, choose: random.Random) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        kinds = [(), *((kind,) for kind in _KINDS), _KINDS]
        return asked(misfits, [_ensemble(Path(folder) / str(n), faults, choose) for n, faults in enumerate(kinds)])


def _ensemble(repo: Path, faults: tuple[str, ...], choose: random.Random) -> Case:
    """Make a repository whose ensemble has these faults, and ask for the inputs that do not fit."""
    config, wrong = ModelConfig(name="ensemble", platform="ensemble"), []
    given = {"text_input": DataType.TYPE_STRING}
    config.input.add(name="text_input", data_type=given["text_input"], dims=[1])
    letters, faulty = choose.sample("abcdefghijkl", 5), dict(zip(choose.sample(range(1, 4), len(faults)), faults))
    for number, letter in enumerate(letters):
        own, shared, fault = f"IN_{choose.randint(0, 999)}", choose.choice(list(given)), faulty.get(number)
        kind = DataType.TYPE_FP32 if fault == _KINDS[2] else given[shared]
        if fault == _KINDS[0]:
            shared += "_"
        if fault == _KINDS[1]:
            shared, kind = f"tensor_{letters[number + 1]}", DataType.TYPE_INT32
        wrong += [[f"step_{letter}", own]] if fault else []
        given[f"tensor_{letter}"] = DataType.TYPE_INT32
        model = ModelConfig(name=f"step_{letter}", backend="python")
        model.input.add(name=own, data_type=kind, dims=[-1])
        model.output.add(name="OUT", data_type=DataType.TYPE_INT32, dims=[-1])
        config.ensemble_scheduling.step.add(
            model_name=model.name, model_version=-1, input_map={own: shared}, output_map={"OUT": f"tensor_{letter}"}
        )
        (repo / model.name).mkdir(parents=True)
        repository.write_config(model, repo / model.name / repository.CONFIG)
    (repo / "ensemble").mkdir()
    repository.write_config(config, repo / "ensemble" / repository.CONFIG)
    hint = "Each pair is a model and its input. A tensor is there once an earlier step gives it; types must be equal."
    return Case((repo,), wrong, hint, f"What does not fit in a hidden ensemble ({', '.join(faults) or 'all fits'})")
