"""A guided answer follows its guide, whatever happens to its request; a guide that cannot be followed is refused."""

import json
import re
import threading
from queue import SimpleQueue

import jsonschema
import numpy as np
import pytest

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.executor import Executor
from inflight.engine.folder import read
from inflight.engine.grammar import Guides
from inflight.engine.messages import Guide, Request
from inflight.engine.settings import ExecutorConfig, SamplingConfig
from inflight.errors import CourseError
from inflight.paths import PACKAGE
from tests.engines import wait_until

WEIGHTS = {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 90}, "minItems": 1, "maxItems": 3}
OWNER = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
KINDS = {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["cat", "wild boar"]}}
PET = {"type": "object", "properties": KINDS | {"weights": WEIGHTS, "owner": OWNER}, "additionalProperties": False}
PET["required"] = [*PET["properties"]]
SCHEMA, YES = Guide("json_schema", json.dumps(PET)), Guide("choice", '["yes"]')
TEXTS = ["New York", "New Yorker", 'Ümlaut "q"']
SAMPLINGS = [
    SamplingConfig(),
    SamplingConfig(temperature=1.3, top_p=0.95, random_seed=5),
    SamplingConfig(repetition_penalty=1.4, min_length=60),
]


@pytest.fixture(scope="module")
def tokenizer(course_engine):
    return load_tokenizer(course_engine)


@pytest.fixture(scope="module")
def executor(course_engine):
    with Executor.load(course_engine) as executor:
        yield executor


def asked(tokenizer, guide, number=100, said="Describe a pet as JSON.", **options):
    return Request(tokenizer.encode_chat(said), number, tokenizer.end_id, guide=guide, **options)


def is_pet(text):
    return not jsonschema.validate(json.loads(text), PET)


FOLLOWS = {
    SCHEMA: is_pet,
    Guide("json"): lambda text: isinstance(json.loads(text), (dict, list)),
    Guide("regex", "[0-9]{3}-[a-f]{2}"): lambda text: re.fullmatch("[0-9]{3}-[a-f]{2}", text),
    Guide("regex", "[^x]*x"): lambda text: re.fullmatch("[^x]*x", text),
    Guide("ebnf_grammar", 'root ::= "(" root ")" | "é"'): lambda text: re.fullmatch(r"\(*é\)*", text),
    Guide("choice", json.dumps(TEXTS)): lambda text: text in TEXTS,
}


@pytest.mark.parametrize("guide", FOLLOWS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_answer_follows_its_guide(executor, tokenizer, guide, sampling):
    answer = executor.generate(asked(tokenizer, guide, sampling=sampling))
    assert answer.finish_reason == "length" or FOLLOWS[guide](tokenizer.decode(answer.token_ids))


@pytest.mark.parametrize("guide", [YES, Guide("call_or_form", json.dumps(2 * ['start: "yes"']))])
def test_it_ends_with_its_guide_also_where_the_request_names_no_end(executor, tokenizer, guide):
    answer = executor.generate(Request(tokenizer.encode_chat("Yes or no?"), 50, guide=guide))
    assert (answer.finish_reason, tokenizer.decode(answer.token_ids)) == ("end_id", "yes")


@pytest.mark.parametrize(
    "kind, text, told",
    [
        ("json_schema", '{"type": "objct"}', "Invalid type: objct"),
        ("json_schema", '{"type": ', "line 1 column 10"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"not": {"type": "null"}, "x-guidance": {"lenient": true}}', "not"),
        ("json_schema", '{"format": "iri"}', "iri"),
        ("json_schema", '{"$ref": "https://a.example/b"}', "a.example"),
        ("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', "no text at all"),
        ("json_schema", "[" * 50_000, "recursion"),
        ("json_schema", "7", "a schema is a JSON object"),
        ("json_schema", json.dumps({"enum": ["x" * 100_000]}), "100,014 characters"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(?=a)b", "look-ahead"),
        ("ebnf_grammar", "root ::= nobody", "nobody"),
        ("ebnf_grammar", "?start: nobody", "nobody"),
        ("ebnf_grammar", 'start: %json {"uniqueItems": true}', "uniqueItems"),
        ("choice", '["yes", 3]', "a JSON list of texts"),
        ("choice", "[]", "a JSON list of texts"),
        ("call_or_form", "[]", "a JSON list of two grammars"),
    ],
)
def test_a_guide_that_cannot_be_followed_is_refused_before_the_first_token(executor, tokenizer, kind, text, told):
    with pytest.raises(CourseError, match=re.escape(told)):
        executor.generate(asked(tokenizer, Guide(kind, text)))


@pytest.fixture(scope="module")
def allowed(course_engine, tokenizer):
    """Return those of some texts that a guide allows as whole answers."""
    guides = Guides(read(course_engine))

    def allows(guide, text):
        matcher = guides.matcher(guide)
        for token in [*tokenizer.encode(text), tokenizer.end_id]:
            logits = np.zeros(tokenizer.vocab_size)
            matcher.mask([], logits)
            if logits[token] < 0:
                return False
            matcher.take(token)
        return True

    return lambda kind, text, texts: [each for each in texts if allows(Guide(kind, text), each)]


@pytest.mark.parametrize(
    "kind, text, told",
    [
        ("regex", r"\d{2}|[\w/]x|\\d", ["12", "_x", "/x", r"\d"]),
        (
            "json_schema",
            r'{"type": "string", "pattern": "^(\\d{2}|[\\w/]x|\\\\d)$"}',
            ['"12"', '"_x"', '"/x"', r'"\\d"'],
        ),
        ("json_schema", r'{"patternProperties": {"^\\d$": {}}, "type": "object"}', ['{"1": 0}']),
        ("json_schema", r'{"enum": ["\\d", {"pattern": "\\d"}]}', [r'"\\d"', r'{"pattern": "\\d"}']),
        (
            "ebnf_grammar",
            'start: "\\\\d" | "/" /[\\w\\/]x/ | NUMBER // "/\nNUMBER: /\\d{2}/',
            [r"\d", "/_x", "//x", "12"],
        ),
        ("ebnf_grammar", r'start: %json {"type": "string", "pattern": "^\\d{2}$"} | "é"', ['"12"', "é"]),
    ],
)
def test_digits_and_letters_of_regular_expressions_are_asciis(allowed, kind, text, told):
    others = [each.replace("12", "१२").replace("1", "１").replace("_x", "éx") for each in told]
    assert allowed(kind, text, told) == told
    assert allowed(kind, text, [other for other, own in zip(others, told) if other != own]) == []


@pytest.mark.parametrize(
    "text",
    [
        '?start: a\n?a: "x" | "(" a ")"',
        '!start: "x"',
        '// root ::= a\n# root ::= a\n\n start : _a\n_a: "x"',
        '%import common.INT\n%ignore " "\r\n?start: "x" | INT\r\n',
        'x: "x"\nstart: x | "root ::= x"',
        '%llguidance {}\nstart[lazy]: "x"',
        'root ::= x\nx ::= "x" | "?start: a"',
        '# start: "y"\n  root::= "x" |\n    "y"',
    ],
)
def test_a_grammar_is_read_in_the_language_it_is_written_in(allowed, text):
    assert allowed("ebnf_grammar", text, ["x", "start", "::="]) == ["x"]


A, B = ({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]} for name in "ab")
ANY = {"type": "object", "additionalProperties": True}
OPEN = {"a": 1, "z": 2}


@pytest.mark.parametrize(
    "schema, value, more",
    [
        (A, {"a": 1}, OPEN),
        ({"properties": {"in": {"type": "array", "items": A}}}, {"in": [{"a": 1}]}, {"in": [OPEN]}),
        ({"additionalProperties": A}, {"x": {"a": 1}}, {"x": OPEN}),
        ({"$defs": {"A": A}, "$ref": "#/$defs/A"}, {"a": 1}, OPEN),
        ({"anyOf": [A, B]}, {"b": 1}, {"a": 1, "b": 2}),
        ({"oneOf": [A, {"type": "null"}]}, {"a": 1}, OPEN),
        ({"allOf": [A, B]}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "z": 3}),
        (
            {"definitions": {"A": A}, "allOf": [{"$ref": "#/definitions/A"}], **B},
            {"a": 1, "b": 2},
            {"a": 1, "b": 2, "z": 3},
        ),
        ({"properties": {"b": {}}, "anyOf": [A, {"required": ["b"]}]}, {"b": 2}, {"b": 2, "z": 1}),
        ({"type": "object", "properties": {}}, {}, {"z": 1}),
        ({"patternProperties": {"^x": {}}}, {"x1": 1}, {"x1": 1, "z": 2}),
        ({"type": "object", "required": ["a", "z"], "properties": {"a": {}}}, OPEN, {"a": 1, "z": 2, "y": 3}),
        ({"type": "array", "prefixItems": [A]}, [{"a": 1}], [{"a": 1}, 2]),
    ],
)
def test_an_object_has_no_other_properties_than_are_named(allowed, schema, value, more):
    jsonschema.validate(value, schema)
    texts = [json.dumps(each) for each in (value, more)]
    for kind, before in (("json_schema", ""), ("ebnf_grammar", "start: %json ")):
        assert allowed(kind, before + json.dumps(schema), texts) == texts[:1]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        A | {"additionalProperties": {"type": "integer"}},
        A | {"unevaluatedProperties": True},
        {"allOf": [A, ANY]},
        {"properties": {"a": {}}, "anyOf": [{"$ref": "#/$defs/ANY"}], "$defs": {"ANY": ANY}},
    ],
)
def test_it_has_if_the_schema_says_so_or_names_none(allowed, schema):
    assert allowed("json_schema", json.dumps(schema), [json.dumps(OPEN)])


@pytest.mark.parametrize(
    "more",
    [
        {"uniqueItems": False}, {"minItems": 0}, {"minLength": 0}, {"additionalProperties": True}, {"required": []},
        {"deprecated": True}, {"title": "T"}, {"examples": [1]}, {"default": None}, {"readOnly": True}, {"x-order": 1},
        {"discriminator": {"propertyName": "a"}}, {"format": "path"}, {"format": "int32"}, {"contentMediaType": "a/b"},
        {"$schema": "https://json-schema.org/draft-07/schema#"}, {"$schema": "http://json-schema.org/schema#"},
        {"unevaluatedProperties": True}, {"unevaluatedItems": {}}, {"propertyNames": {"type": "string"}},
        {"propertyNames": True}, {"dependentRequired": {}}, {"dependentSchemas": {"a": True}},
        {"dependencies": {"a": []}}, {"contains": {"const": 1}, "minContains": 0}, {"maxContains": 3}, {"not": False},
        {"if": {"const": 1}}, {"then": {"const": 1}}, {"if": {"const": 1}, "else": {}}, {"$dynamicAnchor": "a"},
        {"pattern": None, "minimum": None, "items": None, "type": None}, True,
    ],
    ids=str,
)  # fmt: skip
def test_a_keyword_that_asks_for_nothing_is_taken(allowed, more):
    texts = ['"a"', "[1, 1]", '{"a": 1}', "null"]
    assert allowed("json_schema", json.dumps(more), texts) == texts


def test_and_so_is_one_by_which_a_value_is_left_out(allowed):
    schema = {"anyOf": [{"not": {}}, A], "properties": {"a": {}, "z": {"not": {}}}}
    assert allowed("json_schema", json.dumps(schema), ["7", '{"a": 1}', json.dumps(OPEN)]) == ['{"a": 1}']


@pytest.fixture
def go_on(executor, monkeypatch):
    """Until it is set, guides are being compiled."""
    event, matcher = threading.Event(), executor._guides.matcher
    monkeypatch.setattr(executor._guides, "matcher", lambda guide: matcher(guide) if event.wait(60) else None)
    return event


def test_nobody_waits_while_a_guide_is_compiled_and_who_waits_for_it_may_leave(executor, tokenizer, go_on):
    told, yes = SimpleQueue(), asked(tokenizer, YES)
    _, left, stayed = (executor.enqueue_request(yes, told.put) for _ in range(3))
    assert len(executor.generate(asked(tokenizer, None, 3)).token_ids) == 3
    executor.cancel_request(left)
    gone = told.get(timeout=60)
    assert (gone.request_id, gone.finish_reason, gone.token_ids) == (left, "cancelled", [])
    go_on.set()
    answers = [told.get(timeout=60), told.get(timeout=60)]
    assert answers[1].request_id == stayed and {tokenizer.decode(one.token_ids) for one in answers} == {"yes"}


def test_who_leaves_in_the_moment_in_which_its_guide_is_made_is_gone(executor, tokenizer, go_on, monkeypatch):
    told, finish = SimpleQueue(), executor._finish

    def finish_late(sequence, reason):
        if sequence.id == left:
            go_on.set()
            wait_until(lambda: any(one.id == stayed for one in executor._inbox), "the next guide is made, too")
        finish(sequence, reason)

    monkeypatch.setattr(executor, "_finish", finish_late)
    left, stayed = (executor.enqueue_request(asked(tokenizer, YES), told.put) for _ in range(2))
    executor.cancel_request(left)
    answers = [told.get(timeout=60) for _ in range(2)]
    assert [(one.request_id, one.finish_reason) for one in answers] == [(left, "cancelled"), (stayed, "end_id")]
    assert executor.snapshot().active == 0


def test_an_answer_that_is_complete_with_its_last_token_is_not_cut(executor, tokenizer):
    cats = Guide("json_schema", '{"const": ["three", "cats"]}')
    number = len(executor.generate(asked(tokenizer, cats)).token_ids)
    exact, short = (executor.generate(asked(tokenizer, cats, most)) for most in (number, number - 1))
    assert (tokenizer.decode(exact.token_ids), exact.finish_reason) == ('["three", "cats"]', "end_id")
    could_go_on = executor.generate(asked(tokenizer, Guide("choice", '["yes", "yes, but"]'), 1))
    assert short.finish_reason == could_go_on.finish_reason == "length"


def test_one_whose_words_are_forbidden_ends_alone(executor, tokenizer):
    words = [[token] for token in range(tokenizer.vocab_size) if "y" in tokenizer.decode([token])]
    with pytest.raises(CourseError, match="Every token is forbidden by bad_words_list, the guide and min_length"):
        executor.generate(asked(tokenizer, YES, bad_words=words))
    assert tokenizer.decode(executor.generate(asked(tokenizer, YES)).token_ids) == "yes"


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_scheduler_policy": "max_utilization", "max_tokens_in_paged_kv_cache": 2048},  # some are paused
        {"gpt_model_type": "V1"},
        {"enable_kv_cache_reuse": True, "enable_chunked_context": True},
    ],
)
def test_answers_follow_their_guides_among_others(course_engine, tokenizer, settings):
    number = 300 if "batch_scheduler_policy" in settings else 40
    crowd = [asked(tokenizer, None, number, f"Tell a story of {n}.") for n in range(8)]
    pets = [asked(tokenizer, SCHEMA, 80, f"Describe pet {n} as JSON.") for n in range(4)]
    with Executor.load(course_engine, ExecutorConfig(**settings)) as busy:
        answers = busy.generate_all([*pets, *crowd])[:4]
    assert all(one.finish_reason == "length" or is_pet(tokenizer.decode(one.token_ids)) for one in answers)


PROCESSOR = (PACKAGE / "lessons/structured_output/parts/logits_processor.py").read_text(encoding="utf-8")


@pytest.fixture
def own(course_engine, tmp_path):
    def load(text):
        (tmp_path / "mine.py").write_text(text)
        return Executor.load(course_engine, ExecutorConfig(logits_processor_path=tmp_path / "mine.py"))

    return load


def test_a_processor_of_ones_own_masks_guided_requests_and_no_others(own, executor, tokenizer):
    free = asked(tokenizer, None, 12)
    with own(PROCESSOR) as masked:
        answer = masked.generate(asked(tokenizer, Guide("choice", '["Paris", "Nobody knows."]')))
        assert masked.generate(free).token_ids == executor.generate(free).token_ids
    assert tokenizer.decode(answer.token_ids) in ("Paris", "Nobody knows.") and answer.finish_reason == "end_id"


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("return masked", "return token_ids", "mine.py, line [0-9]+: it returned"),
        ("return masked", "return masked[:5]", r"an array float64\[5\]; return the logits, float\[49152\]"),
        ("masked[allowed] =", "masked[oops] =", "NameError"),
        ("return masked", "return np.full_like(logits, -np.inf)", "Every token is forbidden"),
    ],
)
def test_what_one_does_wrong_is_told_with_its_line_and_ends_its_request_alone(own, tokenizer, old, new, told):
    with own(PROCESSOR.replace(old, new)) as executor:
        with pytest.raises(CourseError, match=told):
            executor.generate(asked(tokenizer, YES))
        assert executor.generate(asked(tokenizer, None, 3)).token_ids
