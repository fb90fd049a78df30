"""Generated schemas, keyword by keyword: each is followed to the letter, or refused. None is followed loosely.

`python -m pytest -s tests/engine/test_schemas.py -m ""` prints the table for the larger number.
"""

import json
import random
from collections import Counter

import jsonschema
import pandas as pd
import pytest

from inflight.engine.folder import read
from inflight.engine.grammar import Guides
from inflight.engine.messages import Guide
from inflight.errors import CourseError
from inflight.lessons.structured_output.grading import answer_at_random

pytestmark = pytest.mark.usefixtures("course_engine")
REFUSED = {"uniqueItems", "contains", "not", "dependentRequired", "if", "propertyNames"}


def some(choose, depth=0):
    """A schema of the simple kind."""
    kind = choose.choice(["string", "integer", "number", "boolean", "null"] + ["array", "object"] * (depth < 2))
    if kind == "array":
        return {"type": "array", "items": some(choose, depth + 1), "maxItems": 3}
    if kind == "object":
        return closed({name: some(choose, depth + 1) for name in choose.sample("abcd", 2)})
    return {"type": kind, "maxLength": 9}


def closed(properties, **more):
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def ref(choose):
    last = {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}
    link = closed({"v": some(choose, 2), "next": last}, required=["v", "next"])
    return {"$defs": {"t": link}, "$ref": "#/$defs/t"}


def bounds(choose, low, high):
    return sorted(choose.randint(low, high) for _ in range(2))


KEYWORDS = {
    "nested": some,
    "enum": lambda c: {"enum": c.sample([1, "two", None, 3.5, [4], {"five": 6}, "ü \"\\", True], c.randint(1, 5))},
    "const": lambda c: {"const": c.choice(["a", 7, None, [1, "b"], {"x": {"y": []}}])},
    "minimum, maximum": lambda c: dict(zip(("minimum", "maximum"), bounds(c, -99, 999)), type="integer"),
    "exclusive bounds": lambda c: {"type": "number", "exclusiveMinimum": c.randint(-9, 0), "exclusiveMaximum": 5},
    "multipleOf": lambda c: {"type": "integer", "multipleOf": c.randint(2, 12), "minimum": 0, "maximum": 999},
    "minLength, maxLength": lambda c: dict(zip(("minLength", "maxLength"), bounds(c, 0, 12)), type="string"),
    "pattern": lambda c: {"type": "string", "pattern": c.choice(["^[a-f]{2,4}$", "^x", "y$", r"^\d{3}-\d$"])},
    # A date may be 29 February in any year: that is the library's grammar of it.
    "format": lambda c: {"type": "string", "format": c.choice(["ipv4", "uuid", "email"])},
    "required": lambda c: closed({n: some(c, 2) for n in "abcd"}, required=c.sample("abcd", c.randint(0, 4))),
    "additionalProperties": lambda c: {"type": "object", "additionalProperties": some(c, 2)},
    "patternProperties": lambda c: closed({}, patternProperties={"^x": some(c, 2)}),
    "minProperties": lambda c: {"type": "object", "minProperties": c.randint(1, 2)},
    "minItems, maxItems": lambda c: dict(zip(("minItems", "maxItems"), bounds(c, 0, 4)), type="array", items={}),
    "prefixItems": lambda c: {"type": "array", "prefixItems": [some(c, 2), some(c, 2)], "items": False, "minItems": 1},
    "anyOf": lambda c: {"anyOf": [some(c, 1) for _ in range(3)]},
    "oneOf": lambda c: {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}, some(c, 2)]},
    "allOf": lambda c: {"allOf": [{"type": "integer", "minimum": c.randint(0, 9)}, {"maximum": c.randint(10, 99)}]},
    "$ref": ref,
    "types": lambda c: {"type": c.sample(["string", "integer", "null", "boolean"], 2), "maxLength": 8},
    "uniqueItems": lambda c: {"type": "array", "items": some(c, 2), "uniqueItems": True},
    "contains": lambda c: {"type": "array", "contains": some(c, 2)},
    "not": lambda c: {"not": some(c)},
    "dependentRequired": lambda c: {"type": "object", "dependentRequired": {"a": ["b"]}},
    "if": lambda c: {"if": some(c, 2), "then": some(c, 2)},
    "propertyNames": lambda c: {"type": "object", "propertyNames": {"maxLength": 3}},
}  # fmt: skip


@pytest.mark.parametrize("each", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_schema_is_followed_to_the_letter_or_refused(course_engine, each):
    guides, choose, rows, loose = Guides(read(course_engine)), random.Random(each), {}, []
    for keyword, schema in ((keyword, make(choose)) for keyword, make in KEYWORDS.items() for _ in range(each)):
        row = rows.setdefault(keyword, Counter(refused=0, valid=0, unfinished=0))
        try:
            matchers = [guides.matcher(Guide("json_schema", json.dumps(schema))) for _ in range(2)]
        except CourseError:
            row["refused"] += 1
            continue
        for text in (answer_at_random(matcher, choose) for matcher in matchers):
            row["unfinished" if text is None else "valid"] += 1
            found = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
            loose += [(keyword, schema, text) for _ in found.iter_errors(json.loads(text or "null")) if text]
    print(pd.DataFrame(rows).T.to_string())
    assert not loose and {keyword for keyword, row in rows.items() if not row["valid"]} <= REFUSED
