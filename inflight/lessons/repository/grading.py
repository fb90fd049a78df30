"""Lab 02: a model of one's own in the ensemble, repositories repaired and filled, and who takes which tensor."""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
from tritonclient.grpc import InferResult
from tritonclient.grpc.model_config_pb2 import TYPE_STRING, DataType, ModelConfig

from inflight.checkpoint import load_tokenizer
from inflight.engine import BuildConfig, ExecutorConfig, engine_version
from inflight.engine.play import Asked, Trial
from inflight.engine.scheduler import GuaranteedNoEvict
from inflight.errors import CourseError
from inflight.lessons.repository.served import ANSWER_S, PIPELINE, served, stand_ins
from inflight.notebook.checks import NOT_YET, Finding, Measured, grades
from inflight.notebook.mine import COURSES_OWN
from inflight.triton import client, repository

MASK, MASKED = "mask", "[e-mail]"
HOSTS = ("org", "com", "co.uk", "info", "de")
WORDS = ("black", "hole", "where", "light", "old", "stars", "does", "not", "come", "back", "however", "long")


def _read(repo: Path) -> tuple[dict[str, ModelConfig], str]:
    """The configs by model, and what is wrong first of all in the repository, with paths as they are in it."""
    if not isinstance(repo, str | Path) or not repository.is_repository(Path(repo)):
        return {}, f"{repo!r} is no repository: give the path of its folder."
    problems = repository.check(repo)
    if problems:
        return {}, f"The check says: {str(problems[0]).replace(f'{repo}/', '')}"
    return {name: repository.read_config(Path(repo) / name / repository.CONFIG) for name in repository.models(repo)}, ""


def _hidden_prompts(choose: random.Random, number: int) -> list[tuple[str, int]]:
    """Prompts and the most tokens that each asks for, no two alike."""
    return [
        (f"{number}: {' '.join(choose.choices(WORDS, k=choose.randint(1, 12)))}", choose.randint(5, 12))
        for number in range(number)
    ]


def _right(prompt: str, most: int, encode: Callable[[str], list[int]] | None = None) -> str:
    """What the pipeline of stand-ins is to answer."""
    ids = (encode or stand_ins().prompt_ids)(prompt)
    return stand_ins().answer_text(stand_ins().answer_ids(ids, most))


def _changed_code(repo: Path, but: Collection[str] = ()) -> str:
    """The first model of the pipeline whose code is not the course's; blank when all are."""
    for model in PIPELINE:
        files = Path(repo) / model / "1" / "model.py", repository.TEMPLATES / model / "1" / "model.py"
        if model not in but and len({file.read_bytes() for file in files}) > 1:
            return f"{model}/1/model.py has changed, and does not need to."
    return ""


def _ask(connection: client.Connection, prompt: str, most: int) -> InferResult:
    arrays = {"text_input": client.text(prompt), "max_tokens": np.array([[most]], np.int32)}
    return connection.infer("ensemble", arrays, ANSWER_S)


# 2.1 ------------------------------------------------------------------------------------------------------------------


@grades("2.1", "A step of an ensemble sees only tensors; the maps say where each comes from and where it goes.",
        keeps="repository")  # fmt: skip
def _with_a_model_of_ones_own(repo: Path, choose: random.Random) -> dict[str, Finding] | Finding:
    configs, problem = _read(repo)
    if problem:
        return problem
    missing = next((name for name in (*repository.PIPELINE, MASK) if name not in configs), None)
    if missing:
        return f"The repository has no model {missing!r}."
    found: dict[str, Finding] = {
        "the model": _mask_model(configs[MASK]),
        "the ensemble": _mask_step(configs["ensemble"]),
        "the others": _changed_code(repo) or None,
    }
    if any(found.values()):
        return {**found, "hidden prompts": NOT_YET, "several rows": NOT_YET}
    try:
        with served(Path(repo)) as connection:
            prompts = _answered_masked(connection, _hidden_addresses(choose))
            return {**found, "hidden prompts": prompts, "several rows": _rows_masked(connection, choose)}
    except CourseError as error:
        return {**found, "hidden prompts": f"Triton says: {error}", "several rows": NOT_YET}


def _mask_model(config: ModelConfig) -> Finding:
    for kind, tensors, name in (("input", config.input, "TEXT"), ("output", config.output, "MASKED")):
        given = next((one for one in tensors if one.name == name), None)
        if given is None:
            return f"mask has no {kind} {name}."
        if (given.data_type, list(given.dims)) != (TYPE_STRING, [1]):
            said = f"{DataType.Name(given.data_type)} {list(given.dims)}"
            return f"mask's {name} is {said}. It should be TYPE_STRING [1]: one text per row."
    return None if config.max_batch_size else "mask has max_batch_size 0: then its shapes have no batch dimension."


def _mask_step(config: ModelConfig) -> Finding:
    steps = {step.model_name: step for step in config.ensemble_scheduling.step}
    if MASK not in steps:
        return "No step of the ensemble runs mask."
    courses = repository.read_config(COURSES_OWN / "repository" / "ensemble" / repository.CONFIG)
    for kind in ("input", "output"):
        found = {one.name: (one.data_type, list(one.dims)) for one in getattr(config, kind)}
        for one in getattr(courses, kind):
            wanted = one.data_type, list(one.dims)
            said = [f"{DataType.Name(data_type)} {dims}" for data_type, dims in (found.get(one.name, wanted), wanted)]
            if one.name not in found:
                return f"The ensemble has no {kind} {one.name} any more: clients, and the next labs, rely on it."
            if found[one.name] != wanted:
                return f"The ensemble's {kind} {one.name} was {said[1]} and is {said[0]}: clients rely on it."
    for one in courses.ensemble_scheduling.step:
        if one.model_name not in steps:
            return f"No step of the ensemble runs {one.model_name} any more."
        for own, tensor in one.input_map.items():
            if own not in steps[one.model_name].input_map:
                return (
                    f"The step of {one.model_name} no longer takes {own}, which was {tensor}: what clients ask for is "
                    "lost."
                )
    return None


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


def _answered_masked(connection: client.Connection, prompts: list[tuple[str, str, int]]) -> Finding:
    advice, right = "", 0
    for prompt, masked, most in prompts:
        said, wanted = _text(_ask(connection, prompt, most)), _right(masked, most)
        right += said == wanted
        if said != wanted:
            told = {
                "preprocessing gets it as it was": prompt,
                "mask changes its blanks: leave them as they are": " ".join(masked.split()),
                "its capital letters are lost": masked.lower(),
                "only the first address is masked": prompt.replace(
                    next((word for word in prompt.split() if "@" in word), ""), MASKED
                ),
            }
            what = next((words for words, text in told.items() if said == _right(text, most)), "")
            advice = advice or f"A client sends {prompt!r}, and {what or f'preprocessing does not get {masked!r}'}."
    nothing = sum(prompt == masked for prompt, masked, _ in prompts)
    return Measured(
        "prompts passed on correctly", right, exactly=len(prompts), course=len(prompts), nothing=nothing, advice=advice
    )


def _text(reply: InferResult) -> str:
    return reply.as_numpy("text_output").reshape(-1)[0].decode("utf-8", "replace")


def _rows_masked(connection: client.Connection, choose: random.Random) -> Finding:
    """A request of several rows, as a batch has: each is masked for itself."""
    texts = [f"{choose.choice(WORDS)} {number} a@b.org" for number in range(3)]
    wanted = [[text.replace("a@b.org", MASKED)] for text in texts]
    try:
        reply = connection.infer(MASK, {"TEXT": client.text(*texts)}, ANSWER_S)
    except CourseError as error:
        return f"Asked for {len(texts)} rows in one request, mask says: {error}"
    said = [[text.decode("utf-8", "replace") for text in row] for row in reply.as_numpy("MASKED").tolist()]
    return None if said == wanted else f"A request has the {len(texts)} rows {texts}, and MASKED is {said}."


# 2.2 ------------------------------------------------------------------------------------------------------------------

# Of each repository: what its owner has set on purpose; and the faults, as file, what stands there, what is there now.
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


@grades("2.2", "The check compares names, types and shapes. Faults in code and meaning show when a server answers.")
def _repaired(repos: Mapping[str, Path], choose: random.Random) -> dict[str, Callable[[], Finding]] | Finding:
    if not isinstance(repos, Mapping) or set(repos) != set(_OWNERS):
        return f"Give a dict with the paths of {', '.join(_OWNERS)}, as broken_repositories() does."
    prompts = {name: _hidden_prompts(choose, 2) for name in _OWNERS}
    return {name: lambda name=name: _is_repaired(name, repos[name], prompts[name]) for name in _OWNERS}


def _is_repaired(name: str, repo: Path, prompts: list[tuple[str, int]]) -> Finding:
    configs, problem = _read(repo)
    if problem:
        return f"{name}: {problem}"
    if set(configs) != set(repository.PIPELINE):
        return f"{name}: it has {', '.join(configs)}; its owner had {', '.join(repository.PIPELINE)}."
    engine_dir = repository.get_parameter(configs["tensorrt_llm"], "gpt_model_path")
    with tempfile.TemporaryDirectory() as folder:
        intact = repository.assemble(Path(folder) / "intact", engine_dir, **_OWNERS[name])
        wanted = {model: repository.read_config(intact / model / repository.CONFIG) for model in configs}
    if found := _changed_settings(wanted, configs):
        return f"{name}: {found}"
    own = _RUN_ITSELF.get(name, ())
    if changed := _changed_code(repo, but=own):
        return f"{name}: {changed}"
    encode = _encoder(configs["preprocessing"]) if own else None
    try:
        with served(Path(repo), [model for model in PIPELINE if model not in own]) as connection:
            for prompt, most in prompts:
                said, text = _text(_ask(connection, prompt, most)), _right(prompt, most, encode)
                if said != text:
                    return (
                        f"{name}: Triton loads it. With stand-ins for its models, the answer to {prompt!r} should be "
                        f"{text!r}; it is {said!r}. Compare which tensors are connected."
                    )
    except CourseError as error:
        return f"{name}: Triton says: {error}"
    different = next((model for model in wanted if wanted[model] != configs[model]), None)
    return f"{name}: {different}/config.pbtxt differs from its owner's in more than the fault." if different else None


def _encoder(config: ModelConfig) -> Callable[[str], list[int]]:
    """The token ids of a prompt as `preprocessing` with this config makes them."""
    tokenizer = load_tokenizer(repository.get_parameter(config, "tokenizer_dir"))
    wraps = repository.get_parameter(config, "apply_chat_template") == "true"
    return lambda prompt: tokenizer.encode(tokenizer.chat(prompt) if wraps else prompt)


def _changed_settings(wanted: dict[str, ModelConfig], found: dict[str, ModelConfig]) -> str:
    """What the owner had set otherwise; blank when all is as it was."""
    for model, config in wanted.items():
        if found[model].max_batch_size != config.max_batch_size:
            sizes = found[model].max_batch_size, config.max_batch_size
            return f"{model}'s max_batch_size is {sizes[0]}; its owner had {sizes[1]}. Repair this folder, not another."
        for key in config.parameters:
            values = [repository.get_parameter(each, key) for each in (found[model], config)]
            if values[0] != values[1]:
                return (
                    f"{model}'s {key} is {values[0]!r}; its owner had {values[1]!r}. Repair this folder, not another."
                )
    return ""


# 2.3 ------------------------------------------------------------------------------------------------------------------


@grades("2.3", "Only a few values of a repository depend on the engine and the service; all others stay the same.")
def _filled_for(fill_for: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Finding] = {}
        for number in range(3):
            case = _Case(Path(folder), number, choose)
            given = fill_for(*case.arguments)
            if number == 0 and given is None and not case.target.exists():
                return NOT_YET
            if given is None or not Path(given).is_dir() or Path(given).resolve() != case.target.resolve():
                return f"Return the path of the repository, {case.target.name!r} of the folder that it is given."
            for part, finding in case.findings().items():
                found[part] = found.get(part) or finding
        return found


PER_BLOCK, SLOTS, PROMPT = 32, 16, 8  # tokens of a block; slots of a hidden engine; tokens of a prompt
# What an engine's config.json says besides its version and the limits that it was built with.
_ENGINE = {
    "tier": "cpu",
    "device": "cpu",
    "pretrained_config": {
        "architecture": "LlamaForCausalLM",
        "checkpoint": {"name": "hidden", "sha256": "0" * 64},
        "num_parameters": 1_000_000,
        "dtype": "float32",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_size": 16,
        "hidden_size": 64,
        "intermediate_size": 96,
        "vocab_size": 1024,
        "max_position_embeddings": 8192,
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
    },
}


class _Case:
    """An engine that nobody knows beforehand, and what a service wants of it."""

    def __init__(self, folder: Path, number: int, choose: random.Random):
        self.engine = folder / f"engines {choose.randint(100, 999)}" / f"model-{number}"
        self.tokenizer = folder / f"tokenizers {choose.randint(100, 999)}" / f"model-{number}"
        self.longest = PER_BLOCK * choose.randint(16, 128) + choose.randint(1, PER_BLOCK - 1)
        self.users, self.streams = choose.randint(2, 9), bool((number + choose.randint(0, 1)) % 2) if number else True
        self.target = folder / f"repo-{number}"
        self.tokenizer.mkdir(parents=True)
        self.engine.mkdir(parents=True)
        self.build = BuildConfig(max_batch_size=SLOTS, max_input_len=self.longest // 2, max_seq_len=self.longest)
        config = {**_ENGINE, "version": engine_version(), "build_config": dataclasses.asdict(self.build)}
        (self.engine / "config.json").write_text(json.dumps(config), encoding="utf-8")

    @property
    def arguments(self) -> tuple[Path, Path, Path, int, bool]:
        return self.target, self.engine, self.tokenizer, self.users, self.streams

    def findings(self) -> dict[str, Finding]:
        configs, problem = _read(self.target)
        if problem:
            return {"the check": problem}
        if set(repository.PIPELINE) - set(configs):
            return {"the check": f"It has {', '.join(configs)}; wanted are {', '.join(repository.PIPELINE)}."}
        engine = configs["tensorrt_llm"]
        tokenizers = [
            _same(f"{model}'s tokenizer_dir", repository.get_parameter(configs[model], "tokenizer_dir"), self.tokenizer)
            for model in ("preprocessing", "postprocessing")
        ]
        return {
            "the check": None,
            "the engine": _same("gpt_model_path", repository.get_parameter(engine, "gpt_model_path"), self.engine),
            "the tokenizer": tokenizers[0] or tokenizers[1],
            "the KV cache": self._users_at_once(repository.get_parameter(engine, "max_tokens_in_paged_kv_cache")),
            "streaming": _same("decoupled", engine.model_transaction_policy.decoupled, self.streams),
        }

    def _users_at_once(self, tokens: str | None) -> Finding:
        """Play more users than are wanted, each with the longest sequence, in a cache of so many tokens."""
        try:
            config = ExecutorConfig(max_tokens_in_paged_kv_cache=int(tokens) if tokens else None)
            num_blocks = config.num_blocks(self.build)
        except (CourseError, ValueError) as error:
            return f"For {self.users} users and a max_seq_len of {self.longest}: {error}"
        asked = Asked(PROMPT, self.longest - PROMPT, self.longest - PROMPT)
        played = Trial([asked] * SLOTS, num_blocks, self.build).play(GuaranteedNoEvict(), leaps=True)
        return Measured(
            f"users at once, with a max_seq_len of {self.longest} and max_tokens_in_paged_kv_cache {tokens or 'blank'}",
            max(len(iteration.chunks) for iteration in played), exactly=self.users, course=self.users, nothing=SLOTS,
            advice="Each needs the longest sequence that the engine takes, in whole blocks of 32 tokens.",
        )  # fmt: skip


def _same(what: str, found: object, wanted: object) -> Finding:
    is_same = Path(str(found)) == wanted if isinstance(wanted, Path) else found == wanted
    return None if is_same else f"For a hidden engine, {what} is {found!s}; it should be {wanted!s}."


# 2.4 ------------------------------------------------------------------------------------------------------------------


@grades("2.4", "A tensor is connected by its name in the ensemble alone: every step that asks for that name gets it.")
def _takers(takers: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    found: dict[str, Finding] = {"a tensor that is taken": None, "one that nobody takes": None, "the order": None}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            repo, right = _random_ensemble(Path(folder), choose)
            for tensor, wanted in right.items():
                got = takers(repo, tensor)
                if got is None:
                    return NOT_YET
                said = [tuple(pair) for pair in got]
                if said == wanted:
                    continue
                part = "the order" if sorted(said) == sorted(wanted) else "a tensor that is taken"
                part = part if wanted else "one that nobody takes"
                found[part] = found[part] or (
                    f"In a hidden ensemble {tensor!r} is taken by {wanted}, in the order of the steps; your function "
                    f"says {said}."
                )
    return found


def _random_ensemble(folder: Path, choose: random.Random) -> tuple[Path, dict[str, list[tuple[str, str]]]]:
    """A repository that is nothing but an ensemble, and who takes each of its tensors."""
    steps = [f"step_{letter}" for letter in choose.sample("abcdefghijkl", 5)]
    tensors = [f"tensor_{number}" for number in choose.sample(range(100), 6)]
    config, takers = ModelConfig(name="ensemble", platform="ensemble"), {tensor: [] for tensor in [*tensors, "nothing"]}
    for step in steps:
        message = config.ensemble_scheduling.step.add(model_name=step, model_version=-1)
        for tensor in choose.sample(tensors[:-1], 3):
            own = f"IN_{choose.randint(0, 999)}"
            if own not in message.input_map:
                message.input_map[own] = tensor
                takers[tensor].append((step, own))
        message.output_map["OUT"] = tensors[-1]  # given, and taken by nobody
    (folder / "ensemble").mkdir()
    repository.write_config(config, folder / "ensemble" / repository.CONFIG)
    return folder, takers
