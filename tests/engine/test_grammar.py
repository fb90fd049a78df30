"""A guided answer follows its guide, whatever happens to its request; a guide that cannot be followed is refused."""

import json
import re
import threading
from queue import SimpleQueue

import jsonschema
import pytest

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.config import ExecutorConfig, Guide, Request, SamplingConfig
from inflight.engine.executor import Executor
from inflight.errors import CourseError
from inflight.paths import COURSE
from tests.engines import wait_until

PET = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog", "wild boar"]},
        "weights": {
            "type": "array",
            "items": {"type": "number", "minimum": 0, "maximum": 90},
            "minItems": 1,
            "maxItems": 3,
        },
        "owner": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
    },
    "required": ["name", "kind", "weights", "owner"],
    "additionalProperties": False,
}
SCHEMA = Guide("json_schema", json.dumps(PET))
TEXTS = ["New York", "New Yorker", 'Ümlaut "q"']
WARM = SamplingConfig(temperature=1.3, top_p=0.95, random_seed=5)


@pytest.fixture(scope="module")
def tokenizer(course_engine):
    return load_tokenizer(course_engine)


def asked(tokenizer, guide, number=100, said="Describe a pet as JSON.", **options):
    return Request(tokenizer.encode_chat(said), number, tokenizer.end_id, guide=guide, **options)


@pytest.fixture(scope="module")
def executor(course_engine):
    with Executor.load(course_engine) as executor:
        yield executor


def is_pet(text):
    jsonschema.validate(json.loads(text), PET)
    return True


@pytest.mark.parametrize(
    "guide, follows",
    [
        (SCHEMA, is_pet),
        (Guide("json"), lambda text: isinstance(json.loads(text), (dict, list))),
        (Guide("regex", "[0-9]{3}-[a-f]{2}"), lambda text: re.fullmatch("[0-9]{3}-[a-f]{2}", text)),
        (Guide("regex", "[^x]*x"), lambda text: re.fullmatch("[^x]*x", text)),
        (Guide("ebnf_grammar", 'root ::= "(" root ")" | "é"'), lambda text: re.fullmatch(r"\(*é\)*", text)),
        (Guide("choice", json.dumps(TEXTS)), lambda text: text in TEXTS),
    ],
)
@pytest.mark.parametrize("sampling", [SamplingConfig(), WARM, SamplingConfig(repetition_penalty=1.4, min_length=60)])
def test_an_answer_follows_its_guide(executor, tokenizer, guide, follows, sampling):
    answer = executor.generate(asked(tokenizer, guide, sampling=sampling))
    text = tokenizer.decode(answer.token_ids)
    assert answer.finish_reason == "length" or follows(text), text


def test_it_ends_with_its_guide_also_where_the_request_names_no_end(executor, tokenizer):
    request = Request(tokenizer.encode_chat("Yes or no?"), 50, guide=Guide("choice", '["yes", "yes, but"]'))
    answer = executor.generate(request)
    assert (answer.finish_reason, tokenizer.decode(answer.token_ids)) in [("end_id", "yes"), ("end_id", "yes, but")]


@pytest.mark.parametrize(
    "guide, told",
    [
        (Guide("json_schema", '{"type": "objct"}'), "Invalid type: objct"),
        (Guide("json_schema", '{"type": '), "line 1 column 10"),
        (Guide("json_schema", '{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (Guide("json_schema", '{"not": {}, "x-guidance": {"lenient": true}}'), "not"),
        (Guide("json_schema", '{"$ref": "https://a.example/b"}'), "a.example"),
        (Guide("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'), "no text at all"),
        (Guide("json_schema", "[" * 50_000), "recursion"),
        (Guide("json_schema", "7"), "a schema is a JSON object"),
        (Guide("text_or_json", "[1]"), "a schema is a JSON object"),
        (Guide("json_schema", json.dumps({"enum": ["x" * 100_000]})), "100,014 characters"),
        (Guide("regex", "(a"), "unclosed group"),
        (Guide("regex", "(?=a)b"), "look-ahead"),
        (Guide("ebnf_grammar", "root ::= nobody"), "nobody"),
        (Guide("choice", '["yes", 3]'), "a JSON list of texts"),
        (Guide("choice", "[]"), "a JSON list of texts"),
    ],
)
def test_a_guide_that_cannot_be_followed_is_refused_before_the_first_token(executor, tokenizer, guide, told):
    with pytest.raises(CourseError, match=re.escape(told)):
        executor.generate(asked(tokenizer, guide))


def test_nobody_waits_while_a_guide_is_compiled_and_who_waits_for_it_may_leave(executor, tokenizer, monkeypatch):
    go_on, matcher, told = threading.Event(), executor._guides.matcher, SimpleQueue()
    monkeypatch.setattr(executor._guides, "matcher", lambda guide: matcher(guide) if go_on.wait(60) else None)
    yes = asked(tokenizer, Guide("choice", '["yes"]'))
    _, left, stayed = (executor.enqueue_request(yes, told.put) for _ in range(3))
    assert len(executor.generate(asked(tokenizer, None, 3)).token_ids) == 3
    executor.cancel_request(left)
    gone = told.get(timeout=60)
    assert (gone.request_id, gone.finish_reason, gone.token_ids) == (left, "cancelled", [])
    go_on.set()
    answers = [told.get(timeout=60), told.get(timeout=60)]
    assert answers[1].request_id == stayed and {tokenizer.decode(one.token_ids) for one in answers} == {"yes"}


def test_who_leaves_in_the_moment_in_which_its_guide_is_made_is_gone(executor, tokenizer, monkeypatch):
    go_on, matcher, told = threading.Event(), executor._guides.matcher, SimpleQueue()
    monkeypatch.setattr(executor._guides, "matcher", lambda guide: matcher(guide) if go_on.wait(60) else None)
    finish = executor._finish

    def finish_late(sequence, reason):
        if sequence.id == left:
            go_on.set()
            wait_until(lambda: any(one.id == stayed for one in executor._inbox), "the next guide is made, too")
        finish(sequence, reason)

    monkeypatch.setattr(executor, "_finish", finish_late)
    yes = asked(tokenizer, Guide("choice", '["yes"]'))
    left, stayed = (executor.enqueue_request(yes, told.put) for _ in range(2))
    executor.cancel_request(left)
    answers = [told.get(timeout=60) for _ in range(2)]
    assert [(one.request_id, one.finish_reason) for one in answers] == [(left, "cancelled"), (stayed, "end_id")]
    assert executor.snapshot().active == 0


def test_an_answer_that_is_complete_with_its_last_token_is_not_cut(executor, tokenizer):
    cats = Guide("json_schema", '{"const": ["three", "cats"]}')
    number = len(executor.generate(asked(tokenizer, cats)).token_ids)
    exact, short = (executor.generate(asked(tokenizer, cats, most)) for most in (number, number - 1))
    assert (tokenizer.decode(exact.token_ids), exact.finish_reason) == ('["three", "cats"]', "end_id")
    assert short.finish_reason == "length"
    could_go_on = executor.generate(asked(tokenizer, Guide("choice", '["yes", "yes, but"]'), 1))
    assert (tokenizer.decode(could_go_on.token_ids), could_go_on.finish_reason) == ("yes", "length")


def test_one_whose_words_are_forbidden_ends_alone(executor, tokenizer):
    yes = Guide("choice", '["yes"]')
    forbidden = asked(
        tokenizer, yes, bad_words=[[token] for token in range(tokenizer.vocab_size) if "y" in tokenizer.decode([token])]
    )
    with pytest.raises(CourseError, match="Every token is forbidden by bad_words_list, the guide and min_length"):
        executor.generate(forbidden)
    assert tokenizer.decode(executor.generate(asked(tokenizer, yes)).token_ids) == "yes"


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_scheduler_policy": "max_utilization", "max_tokens_in_paged_kv_cache": 2048},  # some are paused
        {"gpt_model_type": "V1"},
        {"enable_kv_cache_reuse": True, "enable_chunked_context": True},
    ],
)
def test_guided_answers_are_the_same_among_others(course_engine, executor, tokenizer, settings):
    requests = [asked(tokenizer, guide, 80, f"Describe pet {n} as JSON.") for n in range(4) for guide in (SCHEMA, None)]
    crowd = [
        asked(tokenizer, None, 300 if "max_utilization" in settings.values() else 40, f"Tell a story of {n}.")
        for n in range(4)
    ]
    with Executor.load(course_engine, ExecutorConfig(**settings)) as busy:
        answers = busy.generate_all([*requests, *crowd])
    for request, answer in zip(requests, answers):
        if request.guide and answer.finish_reason != "length":
            assert is_pet(tokenizer.decode(answer.token_ids))


PROCESSOR = (COURSE / "assets" / "parts" / "logits_processor.py").read_text(encoding="utf-8")


def own(course_engine, tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return Executor.load(course_engine, ExecutorConfig(logits_processor_path=path))


def test_a_processor_of_ones_own_masks_guided_requests_and_no_others(course_engine, tokenizer, tmp_path):
    choice, free = Guide("choice", '["Paris", "Nobody knows."]'), asked(tokenizer, None, 12)
    with own(course_engine, tmp_path, PROCESSOR) as executor, Executor.load(course_engine) as plain:
        answer = executor.generate(asked(tokenizer, choice, said="What is the capital of Peru?"))
        assert executor.generate(free).token_ids == plain.generate(free).token_ids
    assert tokenizer.decode(answer.token_ids) in ("Paris", "Nobody knows.") and answer.finish_reason == "end_id"


@pytest.mark.parametrize(
    "change, told",
    [
        (("return masked", "return token_ids"), "mine.py, line [0-9]+: it returned"),
        (
            ("return masked", "return masked[:5]"),
            r"it returned an array float64\[5\]; return the logits, float\[49152\]",
        ),
        (("masked[allowed] =", "masked[oops] ="), "NameError"),
        (("return masked", "return np.full_like(logits, -np.inf)"), "Every token is forbidden"),
    ],
)
def test_what_one_does_wrong_is_told_with_its_line_and_ends_its_request_alone(
    course_engine, tokenizer, tmp_path, change, told
):
    with own(course_engine, tmp_path, PROCESSOR.replace(*change)) as executor:
        with pytest.raises(CourseError, match=told):
            executor.generate(asked(tokenizer, Guide("choice", '["yes"]')))
        assert executor.generate(asked(tokenizer, None, 3)).token_ids


def test_a_file_without_a_processor_is_refused_when_the_engine_is_loaded(course_engine, tmp_path):
    wrong = {
        "x = 1": "no class LogitsProcessor",
        "class LogitsProcessor: pass": "no method",
        "oops": "line 1: NameError",
    }
    for text, told in wrong.items():
        with pytest.raises(CourseError, match=told):
            own(course_engine, tmp_path, text)
