"""Lab 02's answers: a model of one's own in the ensemble, repositories repaired and filled, a check of one's own."""

import shutil

from inflight import engine
from inflight.lessons.repository import broken_repositories, served
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.triton import repository
from tests.lessons.answers import SERVER, SLOW, Answer, Made, of_the_lab, replaced

CODE = (COURSES_OWN["repository"] / "mask" / "1" / "model.py").read_text(encoding="utf-8")
CONFIG = (COURSES_OWN["repository"] / "mask" / "config.pbtxt").read_text(encoding="utf-8")


# 2.1: a model in the ensemble -----------------------------------------------------------------------------------------


def extend(repo, code=CODE, config=CONFIG, text="text_input", query="_MASKED", runs=True, drops=""):
    """Add `mask`, and put it into the ensemble as a learner would."""
    (repo / "mask" / "1").mkdir(parents=True)
    (repo / "mask" / "1" / "model.py").write_text(code)
    (repo / "mask" / "config.pbtxt").write_text(config)
    path = repo / "ensemble" / "config.pbtxt"
    ensemble = repository.read_config(path)
    if runs:
        others = list(ensemble.ensemble_scheduling.step)
        others[0].input_map["QUERY"] = query
        del ensemble.ensemble_scheduling.step[:]
        step = ensemble.ensemble_scheduling.step.add(model_name="mask", model_version=-1)
        step.input_map["TEXT"], step.output_map["MASKED"] = text, "_MASKED"
        ensemble.ensemble_scheduling.step.extend(others)
    if drops:
        kept = [one for one in ensemble.input if one.name != drops]
        del ensemble.input[:]
        ensemble.input.extend(kept)
        for each in ensemble.ensemble_scheduling.step:
            for own in [own for own, tensor in each.input_map.items() if tensor == drops]:
                del each.input_map[own]
    repository.write_config(ensemble, path)
    return repo


def intact(request, folder):
    return repository.assemble(folder / "repo", request.getfixturevalue("small_engine"))


def extended(**changes):
    return Made(lambda request, folder: extend(intact(request, folder), **changes))


def masks(line):
    """With another rule."""
    rule = 'return re.sub(r"\\S+@\\S+", "[e-mail]", text.decode()).encode()'
    return extended(code=replaced(CODE, (rule, line)))


def rows(line):
    """With another way through the rows."""
    way = "masked = np.array([[self.mask(text)] for text in texts.reshape(-1)], object)"
    return extended(code=replaced(CODE, (way, line)))


def endless(request, folder):
    """A model with a loop that does not end, for which nobody waits long here."""
    request.getfixturevalue("monkeypatch").setattr(served, "LOAD_S", 6)
    return extend(intact(request, folder), CODE.replace("    def execute", ENDLESS))


def swapped(request, folder):
    """What is masked is right, but the pipeline behind it is not what it was."""
    path = extend(intact(request, folder)) / "ensemble" / "config.pbtxt"
    config = repository.read_config(path)
    inputs = config.ensemble_scheduling.step[2].input_map
    inputs["input_lengths"], inputs["request_output_len"] = "_REQUEST_OUTPUT_LEN", "_REQUEST_INPUT_LEN"
    repository.write_config(config, path)
    return path.parents[1]


ENDLESS = "    def initialize(self, args):\n        while True: pass\n\n    def execute"
SPLIT = """words = ["[e-mail]" if "@" in one else one for one in text.decode().split()]
        return " ".join(words).encode()"""
WORD_BY_WORD = r"""
import re

import numpy
import triton_python_backend_utils as inside


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            rows = inside.get_input_tensor_by_name(request, "TEXT").as_numpy()
            for row in rows:
                words = re.split(r"(\s+)", row[0].decode("utf-8"))
                row[0] = "".join("[e-mail]" if "@" in word else word for word in words).encode("utf-8")
            responses.append(inside.InferenceResponse([inside.Tensor("MASKED", rows)]))
        return responses
"""


# 2.2: repositories repaired -------------------------------------------------------------------------------------------


def repair_captions(path):
    config = path / "postprocessing" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_FP32", "TYPE_INT32"))
    repository.edit(path, "tensorrt_llm", batch_scheduler_policy="guaranteed_no_evict")
    config = path / "ensemble" / "config.pbtxt"
    config.write_text(config.read_text().replace('"_INPUT_IDS"', '"_INPUT_ID"'))


def repair_search(path):
    shutil.copy(repository.TEMPLATES / "preprocessing" / "1" / "model.py", path / "preprocessing" / "1")


def repair_chat(path):
    config = path / "ensemble" / "config.pbtxt"
    before, engine_step, after = config.read_text().partition('model_name: "tensorrt_llm"')
    after = after.replace('"_REQUEST_OUTPUT_LEN"', "?").replace('"_REQUEST_INPUT_LEN"', '"_REQUEST_OUTPUT_LEN"')
    config.write_text(before + engine_step + after.replace("?", '"_REQUEST_INPUT_LEN"'))


REPAIRS = {"captions": repair_captions, "search": repair_search, "chat": repair_chat}


def repaired(**others):
    """All repaired, but for those that something else is done to."""

    def make(request, folder):
        engine_dir = request.getfixturevalue("small_engine")
        broken = broken_repositories(folder / "broken", engine_dir)
        for name, repair in REPAIRS.items():
            others[name](broken[name], engine_dir) if name in others else repair(broken[name])
        return broken

    return Made(make)


def repaired_by_text(path, engine_dir):
    code = path / "preprocessing" / "1" / "model.py"
    code.write_text(replaced(code.read_text(), ("(self.parameter[", "(self.parameters[")))


def left(path, engine_dir):
    """Nothing is done."""


def other_policy(path, engine_dir):
    repair_captions(path)
    repository.edit(path, "tensorrt_llm", batch_scheduler_policy="max_utilization")


# 2.3: templates filled ------------------------------------------------------------------------------------------------


def fill_for(target, engine_dir, tokenizer_dir, users, streams, **changed):
    tokens = users * (engine.read(engine_dir).build_config.max_seq_len // 32 + 1) * 32
    values = {
        "tokenizer_dir": tokenizer_dir, "max_tokens_in_paged_kv_cache": tokens, "decoupled_mode": streams, **changed
    }  # fmt: skip
    return repository.assemble(target, engine_dir, **values)


def fill_by_text(target, engine_dir, tokenizer_dir, users, streams):
    """Without `assemble`: the text of each template, a value after the other."""
    import json
    from string import Template

    limits = json.loads((engine_dir / "config.json").read_text())["build_config"]
    values = repository.DEFAULTS | {
        "engine_dir": engine_dir,
        "tokenizer_dir": tokenizer_dir,
        "decoupled_mode": streams,
        "max_tokens_in_paged_kv_cache": users * -(-limits["max_seq_len"] // 32) * 32 + 31,  # no block more
    }
    words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    for model in repository.PIPELINE:
        shutil.copytree(repository.TEMPLATES / model, target / model)
        path = target / model / "config.pbtxt"
        path.write_text(Template(path.read_text()).safe_substitute(words))
        (target / model / "1").mkdir(exist_ok=True)
    return str(target)


def exactly(target, engine_dir, tokenizer_dir, users, streams):
    """Tokens without whole blocks."""
    return users * engine.read(engine_dir).build_config.max_seq_len


def everywhere_the_engines(target, engine_dir, tokenizer_dir, users, streams):
    return fill_for(target, engine_dir, engine_dir, users, streams)


def one_tokenizer_forgotten(*arguments):
    target = fill_for(*arguments)
    repository.edit(target, "postprocessing", tokenizer_dir=arguments[1])
    return target


def filled(**changed):
    return lambda *given: fill_for(*given, **changed)


# 2.4: a check of one's own --------------------------------------------------------------------------------------------


def misfits(repo, in_order=True, types=True):
    """From the messages; without the order of the steps, or without types, what a hasty reader would write."""
    read = {file.parent.name: repository.read_config(file) for file in repo.rglob("config.pbtxt")}
    ensemble = read.pop("ensemble")
    gives, found = {one.name: one.data_type for one in ensemble.input}, []
    steps = ensemble.ensemble_scheduling.step
    outputs = [{step.output_map["OUT"]: read[step.model_name].output[0].data_type} for step in steps]
    if not in_order:
        gives |= {name: kind for each in outputs for name, kind in each.items()}
    for step, output in zip(steps, outputs):
        [(own, shared)] = step.input_map.items()
        if shared not in gives or (types and gives[shared] != read[step.model_name].input[0].data_type):
            found.append([step.model_name, own])
        gives |= output
    return found


ANSWERS = [
    *of_the_lab("repository", {"2.3": "fill_for", "2.4": "misfits"}),
    Answer("2.1", "as handed out", None, "not done yet"),
    Answer("2.1", "the solution", extended(), marks=[SERVER]),
    Answer("2.1", "word by word, under a comment", extended(code=WORD_BY_WORD, config="# privacy\n" + CONFIG), marks=[SERVER]),
    Answer("2.1", "no config", extended(config=""), "wrong", "ensemble/config.pbtxt: ensemble_scheduling.step[0] (mask)"),
    Answer("2.1", "a tensor of another name", extended(query="_MASK"), "wrong", "ensemble/config.pbtxt"),
    Answer("2.1", "no step", extended(runs=False), "wrong", "No step of the ensemble runs mask"),
    Answer("2.1", "an input less", extended(drops="stream"), "wrong", "input stream is gone"),
    Answer("2.1", "without the model", Made(intact), "wrong", "No step of the ensemble runs mask"),
    Answer("2.1", "an empty folder", Made(lambda request, folder: folder), "wrong"),
    Answer("2.1", "nothing is masked", masks("return text"), "partly", "hidden prompts not right yet", [SERVER]),
    Answer("2.1", "one row", rows("masked = np.array([[self.mask(texts.item())]], object)"), "partly", "3 rows", [SERVER]),
    Answer("2.1", "a smaller batch", extended(config=CONFIG.replace("64", "8")), "wrong", "Triton says", [SERVER, SLOW]),
    Answer("2.1", "all is masked", masks('return b"[e-mail]"'), "partly", "prompts passed on correctly: 0, where exactly 4", [SERVER, SLOW]),
    Answer("2.1", "blanks change", masks(SPLIT), "partly", "mask changes its blanks", [SERVER, SLOW]),
    Answer("2.1", "the first alone", masks('return re.sub(r"\\S+@\\S+", "[e-mail]", text.decode(), 1).encode()'), "partly",
           "only the first address", [SERVER, SLOW]),
    Answer("2.1", "the first row for all", rows("masked = np.array([[self.mask(texts[0, 0])]] * len(texts), object)"), "partly",
           "several rows not right yet", [SERVER, SLOW]),
    Answer("2.1", "a name that is not there", masks("return self.none"), "wrong", "'none'", [SERVER, SLOW]),
    Answer("2.1", "lost on the way", Made(swapped), "partly", "hidden prompts not right yet", [SERVER, SLOW]),
    Answer("2.1", "a loop in initialize", Made(endless), "wrong", "does every loop in", [SERVER, SLOW]),

    Answer("2.2", "as handed out", None, "not done yet"),
    Answer("2.2", "the solution", repaired(), marks=[SERVER]),
    Answer("2.2", "the code is edited", repaired(search=repaired_by_text), marks=[SERVER]),
    Answer("2.2", "broken as they were", repaired(captions=left, search=left, chat=left), "wrong", "In its files", [SERVER]),
    Answer("2.2", "an intact one, thrice", Made(lambda request, folder: dict.fromkeys(REPAIRS, intact(request, folder))), "wrong",
           "max_batch_size is 64; its owner had 16"),
    Answer("2.2", "search is made anew", repaired(search=repository.assemble), "partly",
           "captions ✓, search not right yet, chat ✓", [SERVER, SLOW]),
    Answer("2.2", "the queue of chat", repaired(chat=lambda path, _: repository.edit(path, "tensorrt_llm", max_queue_size=0)),
           "partly", "captions ✓, search ✓, chat not right yet", [SERVER, SLOW]),
    Answer("2.2", "another policy", repaired(captions=other_policy), "partly", "captions not right yet, search ✓", [SERVER, SLOW]),
    Answer("2.2", "a model less", repaired(search=lambda path, _: shutil.rmtree(path / "preprocessing")), "partly",
           "search not right yet", [SERVER, SLOW]),

    Answer("2.3", "with a variable more", fill_for),
    Answer("2.3", "by text", fill_by_text),
    Answer("2.3", "defaults", lambda target, engine_dir, *rest: repository.assemble(target, engine_dir), "partly",
           "the engine ✓, the tokenizer not"),
    Answer("2.3", "another engine", lambda target, *rest: repository.assemble(target, "/engines/model"), "wrong",
           "gpt_model_path is /engines/model"),
    Answer("2.3", "a cache of a constant", filled(max_tokens_in_paged_kv_cache=9 * 4160), "partly", "users at once"),
    Answer("2.3", "too small a cache", filled(max_tokens_in_paged_kv_cache=64), "wrong", "too few for one request"),
    Answer("2.3", "no cache", filled(max_tokens_in_paged_kv_cache=""), "partly", "users at once"),
    Answer("2.3", "no whole blocks", lambda *rest: fill_for(*rest, max_tokens_in_paged_kv_cache=exactly(*rest)), "partly",
           "in whole blocks"),
    Answer("2.3", "one user", lambda *rest: fill_for(*rest[:3], 1, rest[4]), "partly", "the KV cache not right yet"),
    Answer("2.3", "one user less", lambda *rest: fill_for(*rest[:3], rest[3] - 1, rest[4]), "partly", "users at once"),
    Answer("2.3", "one user more", lambda *rest: fill_for(*rest[:3], rest[3] + 1, rest[4]), "partly", "users at once"),
    Answer("2.3", "never decoupled", filled(decoupled_mode=False), "partly", "streaming not right yet"),
    Answer("2.3", "the engine everywhere", everywhere_the_engines, "partly", "the tokenizer not right yet"),
    Answer("2.3", "one tokenizer is forgotten", one_tokenizer_forgotten, "partly", "postprocessing"),
    Answer("2.3", "another path", lambda *rest: fill_for(*rest) / "ensemble", "wrong", "Return the path of the repository"),
    Answer("2.3", "no path", lambda *rest: fill_for(*rest) and None, "wrong", "Return the path of the repository"),
    Answer("2.3", "templates", lambda target, *rest: str(shutil.copytree(repository.TEMPLATES, target)), "wrong", "In its files"),

    Answer("2.4", "pairs are lists", misfits),
    Answer("2.4", "all fits", lambda repo: [], "wrong", "A tensor is there once an earlier step gives it"),
    Answer("2.4", "names alone", lambda repo: misfits(repo, types=False), "wrong", "of another type"),
    Answer("2.4", "any order", lambda repo: misfits(repo, in_order=False), "wrong", "a later step gives it"),
    Answer("2.4", "backwards", lambda repo: misfits(repo)[::-1], "wrong", "of another type"),
    Answer("2.4", "pairs turned round", lambda repo: [pair[::-1] for pair in misfits(repo)], "wrong", "a model and its input"),
]  # fmt: skip
