"""Lab 02's checks: what passes, and what each wrong repository or function is told."""

import shutil

import pytest

from inflight import engine
from inflight.lessons.repository import broken_repositories
from inflight.lessons.repository import grading as graders
from inflight.lessons.repository import served as serving
from inflight.notebook.checks import check
from inflight.paths import COURSE
from inflight.triton import repository

COURSES_OWN = COURSE / "assets" / "parts" / "repository"
CODE = (COURSES_OWN / "mask" / "1" / "model.py").read_text(encoding="utf-8")
CONFIG = (COURSES_OWN / "mask" / "config.pbtxt").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


@pytest.fixture(scope="module")
def intact(small_engine, tmp_path_factory):
    return repository.assemble(tmp_path_factory.mktemp("lab02") / "repo", small_engine)


@pytest.fixture
def repo(intact, tmp_path):
    """A copy of a repository in good order."""
    return shutil.copytree(intact, tmp_path / "repo")


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


def with_mask(line):
    """The course's model, with another rule."""
    return CODE.replace('return re.sub(r"\\S+@\\S+", "[e-mail]", text.decode()).encode()', line)


def with_masked(line):
    """The course's model, with another way through the rows."""
    return CODE.replace("masked = np.array([[self.mask(text)] for text in texts.reshape(-1)], object)", line)


def test_the_courses_ensemble_is_todays_with_mask_in_it(repo):
    """`assets/parts` has it as a file; its other files are made of the labs' solutions by `tools.lessons`."""
    made = (extend(repo) / "ensemble" / "config.pbtxt").read_text()
    assert made == (COURSES_OWN / "ensemble" / "config.pbtxt").read_text()


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


# 2.1 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_model_written_another_way_is_done(repo):
    result = check("2.1", extend(repo, WORD_BY_WORD, "# privacy\n" + CONFIG))
    assert result.status == "done", result
    figure = result.figures[0]
    assert figure.value == figure.course == 4 and figure.nothing == 1 and result.seed is not None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"config": ""}, "ensemble/config.pbtxt: ensemble_scheduling.step[0] (mask)"),
        ({"query": "_MASK"}, "ensemble/config.pbtxt"),
        ({"runs": False}, "No step of the ensemble runs mask"),
        ({"drops": "stream"}, "input stream is gone"),
    ],
)
def test_a_repository_that_does_not_fit_together_is_told_before_a_server_starts(repo, changes, says):
    result = check("2.1", extend(repo, **changes))
    assert result.status in ("wrong", "partly") and says in repr(result)


# Each check starts a Triton of its own: two wrong models are in the gate, the others are slow.
@pytest.mark.server
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"code": with_mask("return text")}, "hidden prompts not right yet"),
        ({"code": with_masked("masked = np.array([[self.mask(texts.item())]], object)")}, "3 rows"),
        *(
            pytest.param(changes, says, marks=pytest.mark.slow)
            for changes, says in (
                ({"config": CONFIG.replace("64", "0")}, "3 rows"),
                ({"config": CONFIG.replace("64", "8")}, "Triton says"),
                ({"code": "import numpy as np\nclass TritonModel:\n    pass\n"}, "Triton says"),
                ({"code": with_mask('return b"[e-mail]"')}, "prompts passed on correctly: 0, where exactly 4"),
                (
                    {"code": with_mask('return re.sub(r"\\S+@\\S+\\.org", "[e-mail]", text.decode()).encode()')},
                    "hidden prompts not right yet",
                ),
                (
                    {
                        "code": with_mask(
                            'words = ["[e-mail]" if "@" in one else one for one in text.decode().split()]\n'
                            '        return " ".join(words).encode()'
                        )
                    },
                    "mask changes its blanks",
                ),
                (
                    {"code": with_mask('return re.sub(r"\\S+@\\S+", "[e-mail]", text.decode(), 1).encode()')},
                    "only the first address",
                ),
                (
                    {"code": with_masked("masked = np.array([[self.mask(texts[0, 0])]] * len(texts), object)")},
                    "several rows not right yet",
                ),
                ({"code": with_mask("return self.none")}, "'none'"),
            )
        ),
    ],
)
def test_what_a_wrong_model_is_told(repo, changes, says):
    result = check("2.1", extend(repo, **changes))
    assert result.status in ("wrong", "partly") and says in repr(result)


def test_a_repository_without_the_model_or_none_at_all(repo, tmp_path):
    assert "No step of the ensemble runs mask" in repr(check("2.1", repo))
    assert check("2.1", tmp_path).status == check("2.1", 57).status == "wrong"


@pytest.mark.slow
@pytest.mark.server
def test_an_answer_that_is_lost_on_the_way(repo):
    """What is masked is right, but the pipeline behind it is not what it was."""
    extend(repo)
    path = repo / "ensemble" / "config.pbtxt"
    config = repository.read_config(path)
    engine_inputs = config.ensemble_scheduling.step[2].input_map
    engine_inputs["input_lengths"], engine_inputs["request_output_len"] = "_REQUEST_OUTPUT_LEN", "_REQUEST_INPUT_LEN"
    repository.write_config(config, path)
    assert "hidden prompts not right yet" in repr(check("2.1", repo))


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("method", ["mask", "initialize"])
def test_a_loop_without_an_end_ends_with_the_check(repo, monkeypatch, method):
    monkeypatch.setattr(graders, "ANSWER_S", 2)
    monkeypatch.setattr(serving, "LOAD_S", 6)
    endless = "    def initialize(self, args):\n        while True: pass\n\n    def execute"
    code = with_mask("while True: pass") if method == "mask" else CODE.replace("    def execute", endless)
    assert check("2.1", extend(repo, code)).status in ("wrong", "partly")


def test_the_courses_own_part_is_what_the_exercise_makes(repo):
    extend(repo)
    for file in ("mask/1/model.py", "mask/config.pbtxt", "ensemble/config.pbtxt"):
        path = COURSES_OWN / file
        assert path.read_text() == (repo / file).read_text(), f"{path} is not what exercise 2.1 makes of the templates"
    lab = (COURSE / "lessons" / "02_repository" / "lab.py").read_text(encoding="utf-8")
    for text in (CODE, CONFIG):
        assert all(f"# {line}".rstrip() in lab for line in text.splitlines()), "the lab's solution is the course's part"


# 2.2 ------------------------------------------------------------------------------------------------------------------


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


def other_policy(path, engine_dir):
    repair_captions(path)
    repository.edit(path, "tensorrt_llm", batch_scheduler_policy="max_utilization")


@pytest.fixture
def broken(small_engine, tmp_path):
    return broken_repositories(tmp_path / "broken", small_engine)


@pytest.mark.server
def test_repositories_repaired_another_way_are_done(broken):
    for name, repair in REPAIRS.items():
        repair(broken[name])
    result = check("2.2", broken)
    assert result.status == "done", result


def test_what_is_broken_is_seen_by_whom_the_exercise_says(broken):
    assert len(repository.check(broken["captions"])) == 3
    assert repository.check(broken["search"]) == repository.check(broken["chat"]) == []


@pytest.mark.server
def test_handing_back_what_was_broken(broken):
    assert set(check("2.2", broken).parts.values()) == {"wrong"}


def test_handing_back_the_intact_one(intact):
    result = check("2.2", dict.fromkeys(REPAIRS, intact))
    assert set(result.parts.values()) == {"wrong"} and "64" in result.hint and "16" in result.hint


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("search", lambda path, engine_dir: repository.assemble(path, engine_dir)),
        ("chat", lambda path, engine_dir: repository.edit(path, "tensorrt_llm", max_queue_size=0)),
        ("captions", other_policy),
        ("search", lambda path, engine_dir: shutil.rmtree(path / "preprocessing")),
    ],
)
def test_a_repair_of_the_wrong_thing_is_told_from_the_others(broken, small_engine, name, spoil):
    for other, repair in REPAIRS.items():
        if other != name:
            repair(broken[other])
    spoil(broken[name], small_engine)
    assert {part for part, status in check("2.2", broken).parts.items() if status == "wrong"} == {name}


# 2.3 ------------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("right", [fill_for, fill_by_text])
def test_templates_filled_one_way_or_another_are_done(right):
    result = check("2.3", right)
    assert result.status == "done" and result.seed is not None, result


def exactly(target, engine_dir, tokenizer_dir, users, streams):
    """Tokens without whole blocks."""
    return users * engine.read(engine_dir).build_config.max_seq_len


def everywhere_the_engines(target, engine_dir, tokenizer_dir, users, streams):
    return fill_for(target, engine_dir, engine_dir, users, streams)


def one_tokenizer_forgotten(*arguments):
    target = fill_for(*arguments)
    repository.edit(target, "postprocessing", tokenizer_dir=arguments[1])
    return target


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda target, engine_dir, *rest: repository.assemble(target, engine_dir), "the engine ✓, the tokenizer not"),
        (lambda target, *rest: repository.assemble(target, "/engines/model"), "gpt_model_path is /engines/model"),
        (lambda *rest: fill_for(*rest, max_tokens_in_paged_kv_cache=9 * 4160), "users at once"),
        (lambda *rest: fill_for(*rest, max_tokens_in_paged_kv_cache=64), "too few for one request"),
        (lambda *rest: fill_for(*rest, max_tokens_in_paged_kv_cache=""), "users at once"),
        (lambda *rest: fill_for(*rest, max_tokens_in_paged_kv_cache=exactly(*rest)), "whole blocks"),
        (lambda *rest: fill_for(*rest[:3], 1, rest[4]), "the KV cache not right yet"),
        (lambda *rest: fill_for(*rest, decoupled_mode=False), "streaming not right yet"),
        (everywhere_the_engines, "the tokenizer not right yet"),
        (one_tokenizer_forgotten, "postprocessing"),
        (lambda *rest: fill_for(*rest) / "ensemble", "Return the path of the repository"),
        (lambda *rest: fill_for(*rest) and None, "Return the path of the repository"),
        (lambda target, *rest: str(shutil.copytree(repository.TEMPLATES, target)), "The check says"),
    ],
)
def test_what_a_wrong_filling_is_told(answer, says):
    result = check("2.3", answer)
    assert result.status in ("wrong", "partly") and says in repr(result)


# 2.4 ------------------------------------------------------------------------------------------------------------------


def steps(repo):
    return repository.read_config(repo / "ensemble" / "config.pbtxt").ensemble_scheduling.step


def takers(repo, tensor):
    found = []
    for step in steps(repo):
        found += [[step.model_name, own] for own in step.input_map if step.input_map[own] == tensor]
    return found


def test_takers_in_another_form_are_done():
    assert check("2.4", takers).status == "done"


@pytest.mark.parametrize(
    "answer",
    [
        lambda repo, tensor: [],
        lambda repo, tensor: takers(repo, tensor)[::-1],
        lambda repo, tensor: takers(repo, tensor)[:1],
        lambda repo, tensor: [pair[::-1] for pair in takers(repo, tensor)],
        lambda repo, tensor: takers(repo, tensor) or [("nobody", "")],
    ],
)
def test_what_wrong_takers_are_told(answer, monkeypatch):
    monkeypatch.setenv("INFLIGHT_SEED", "48151")
    result = check("2.4", answer)
    assert result.status == "wrong" and "in a hidden ensemble, in the order of the steps" in result.hint


def test_one_that_was_not_written():
    assert check("2.4", lambda repo, tensor: None).status == check("2.3", lambda *rest: None).status == "not done yet"
