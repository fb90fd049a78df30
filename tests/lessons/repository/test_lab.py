"""Lab 02's answers: a model of one's own in the ensemble, repositories repaired, a check of one's own."""

import shutil

from inflight.lessons.repository import broken_repositories, served
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.triton import repository
from tests.lessons.answers import SERVER, SLOW, Answer, File, Made, of_the_lab, replaced, written
from tests.lessons.table import *  # noqa: F403

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
SPLIT = """words = ["[e-mail]" if re.search(".@.", one) else one for one in text.decode().split()]
        return " ".join(words).encode()"""
WORD_BY_WORD = r"""
import re

import numpy
import triton_python_backend_utils as inside


def masked(word):
    return "[e-mail]" if re.fullmatch(".+@.+", word) else word


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            rows = inside.get_input_tensor_by_name(request, "TEXT").as_numpy()
            for row in rows:
                words = re.split(r"(\s+)", row[0].decode("utf-8"))
                row[0] = "".join(masked(word) for word in words).encode("utf-8")
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
    code.write_text(
        replaced(code.read_text(), ("(self.parameter[", "(self.parameters["), ("[len(ids) for", "[[len(ids)] for"))
    )


def until_it_loads(path, engine_dir):
    code = path / "preprocessing" / "1" / "model.py"
    code.write_text(replaced(code.read_text(), ("(self.parameter[", "(self.parameters[")))


def left(path, engine_dir):
    """Nothing is done."""


def other_policy(path, engine_dir):
    repair_captions(path)
    repository.edit(path, "tensorrt_llm", batch_scheduler_policy="max_utilization")


# 2.3: a check of one's own --------------------------------------------------------------------------------------------

MISFITS = written("repository", "solutions", "misfits.py")
ADDS = "        given |= {shared: types[own] for own, shared in step.output_map.items()}\n"
ANOTHER_WAY = """
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig


def read(folder):
    return text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())


def misfits(repo):
    ensemble = read(repo / "ensemble")
    known = {(one.name, one.data_type) for one in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        model = read(repo / step.model_name)
        for one in reversed(model.input):
            if one.name in step.input_map or not one.optional:
                if (step.input_map.get(one.name), one.data_type) not in known:
                    yield [step.model_name, one.name]
        known |= {(step.output_map[one.name], one.data_type) for one in model.output}
"""


def misfits(*changes):
    """The solution with another rule."""
    return File(replaced(MISFITS, *changes), "misfits.py")


def found(line):
    return misfits(("    return found", f"    return {line}"))


ANSWERS = [
    *of_the_lab("repository", {"2.3": "misfits.py"}),
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
    Answer("2.1", "all is masked", masks('return b"[e-mail]"'), "partly", "prompts passed on correctly: 0, where exactly 5", [SERVER, SLOW]),
    Answer("2.1", "blanks in front go", masks('return re.sub(r"\\S+@\\S+", "[e-mail]", text.decode().strip()).encode()'), "partly",
           "prompts passed on correctly: 0, where exactly 5", [SERVER]),
    Answer("2.1", "blanks change", masks(SPLIT), "partly", "mask changes its blanks", [SERVER, SLOW]),
    Answer("2.1", "the first alone", masks('return re.sub(r"\\S+@\\S+", "[e-mail]", text.decode(), 1).encode()'), "partly",
           "only the first address", [SERVER, SLOW]),
    Answer("2.1", "the first row for all", rows("masked = np.array([[self.mask(texts[0, 0])]] * len(texts), object)"), "partly",
           "several rows not right yet", [SERVER, SLOW]),
    Answer("2.1", "an @ alone", masks('return re.sub(r"\\S*@\\S*", "[e-mail]", text.decode()).encode()'), "partly",
           "which is no address", [SERVER, SLOW]),
    Answer("2.1", "letters, digits and dots", masks('return re.sub(r"[\\w.+-]+@[\\w.-]+", "[e-mail]", text.decode()).encode()'), "partly",
           "hidden prompts not right yet", [SERVER, SLOW]),
    Answer("2.1", "a text that is no path", "repo" * 2000, "wrong", "Set extended to the path"),
    Answer("2.1", "a list", ["repo"], "wrong", "Set extended to the path"),
    Answer("2.1", "a name that is not there", masks("return self.none"), "wrong", "'none'", [SERVER, SLOW]),
    Answer("2.1", "lost on the way", Made(swapped), "partly", "hidden prompts not right yet", [SERVER, SLOW]),
    Answer("2.1", "a loop in initialize", Made(endless), "wrong", "does every loop in", [SERVER, SLOW]),

    Answer("2.2", "as handed out", None, "not done yet"),
    Answer("2.2", "the solution", repaired(), marks=[SERVER]),
    Answer("2.2", "the code is edited", repaired(search=repaired_by_text), marks=[SERVER]),
    Answer("2.2", "broken as they were", repaired(captions=left, search=left, chat=left), "wrong", "In its files", [SERVER]),
    Answer("2.2", "an intact one, thrice", Made(lambda request, folder: dict.fromkeys(REPAIRS, intact(request, folder))), "wrong",
           "max_batch_size is 64; its owner had 16"),
    Answer("2.2", "a path", "broken", "wrong", "repaired = broken"),
    Answer("2.2", "search loads", repaired(search=until_it_loads), "partly", "unexpected shape for input", [SERVER]),
    Answer("2.2", "search is made anew", repaired(search=repository.assemble), "partly",
           "captions ✓, search not right yet, chat ✓", [SERVER, SLOW]),
    Answer("2.2", "the queue of chat", repaired(chat=lambda path, _: repository.edit(path, "tensorrt_llm", max_queue_size=0)),
           "partly", "captions ✓, search ✓, chat not right yet", [SERVER, SLOW]),
    Answer("2.2", "another policy", repaired(captions=other_policy), "partly", "captions not right yet, search ✓", [SERVER, SLOW]),
    Answer("2.2", "a model less", repaired(search=lambda path, _: shutil.rmtree(path / "preprocessing")), "partly",
           "search not right yet", [SERVER, SLOW]),

    Answer("2.3", "another way", File(ANOTHER_WAY, "misfits.py")),
    Answer("2.3", "all fits", found("[]"), "wrong", "is missing, and"),
    Answer("2.3", "names alone", misfits(("given.get(step.input_map[one.name]) == one.data_type", "step.input_map[one.name] in given")),
           "wrong", "is missing, and it has another type"),
    Answer("2.3", "types alone", misfits(("given.get(step.input_map[one.name]) == one.data_type",
                                          "given.get(step.input_map[one.name], one.data_type) == one.data_type")), "wrong", "gives it"),
    Answer("2.3", "any order", misfits(("    found = []\n", "    found = []\n    for step in configs['ensemble'].ensemble_scheduling.step:\n"
           "        types = {one.name: one.data_type for one in configs[step.model_name].output}\n" + ADDS)), "wrong",
           "gives it"),
    Answer("2.3", "outputs before inputs", misfits((ADDS, ""), ("        for one in model.input:",
           "        types = {one.name: one.data_type for one in model.output}\n" + ADDS + "        for one in model.input:")), "wrong",
           "only the step itself gives it"),
    Answer("2.3", "without the first step", misfits((".step:", ".step[1:]:")), "wrong"),
    Answer("2.3", "without the last step", misfits((".step:", ".step[:-1]:")), "wrong", "is missing, and"),
    Answer("2.3", "what is needed is forgotten", misfits(("fits = one.optional", "fits = True")), "wrong", "its model needs it"),
    Answer("2.3", "all is needed", misfits(("fits = one.optional", "fits = False")), "wrong", "is named, and it fits"),
    Answer("2.3", "the first alone", found("found[:1]"), "wrong", "is missing, and"),
    Answer("2.3", "pairs turned round", found("[pair[::-1] for pair in found]"), "wrong", "is missing, and"),
    Answer("2.3", "models alone", found("[model for model, _ in found]"), "wrong", "is missing, and"),
    Answer("2.3", "a number", found("len(found)"), "wrong", "Return pairs"),
    Answer("2.3", "an end", misfits(("    found = []", "    import os; os._exit(0)")), "wrong", "ended its process"),
    Answer("2.3", "no file", "misfits", "wrong", "There is no file 'misfits'"),
]  # fmt: skip
