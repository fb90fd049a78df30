r"""A JSON schema as the engine follows it, where llguidance would refuse it or let a model go on for ever.

    prepare(schema := json.loads(text))

What asks for nothing (`uniqueItems: false`, a format that JSON Schema does not define) is left out. `\d` and `\w` are
ASCII's, as JSON Schema has it. An object that names its properties has no others unless the schema says so, and a list
of `prefixItems` no further ones: so have it the converters of XGrammar, of llama.cpp, and of vLLM for llguidance. A
model would invent fields until its last token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

# Keywords with a schema or a list of schemas, those with schemas by name, and those with values of any kind.
SCHEMAS = ("additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems")
NAMED = ("$defs", "definitions", "patternProperties", "properties")
VALUES = ("const", "default", "enum", "examples")
FORMATS = (
    "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri",
    "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference", "uri-template",
    "uuid",
)  # fmt: skip
ANYTHING: Any = (True, {})


def prepare(schema: dict[str, Any]) -> None:
    """Change a schema, as `json.loads` gives it, into the one to follow."""
    for each in _schemas(schema):
        _leave_out(each)
        _use_ascii(each)
    _close(schema)


def move(schema: dict[str, Any], place: str) -> None:
    """Have the references of a schema lead to where they led, as it stands at `place` of another: "#/items"."""
    schema.pop("$id", None)
    for each in _schemas(schema):
        if isinstance(ref := each.get("$ref"), str) and (ref == "#" or ref.startswith("#/")):
            each["$ref"] = place + ref[1:]


def ascii_regex(regex: str) -> str:
    r"""Return a regular expression whose \d and \w are ASCII's, and which may stand between slashes."""
    import llguidance

    return llguidance.regex_to_lark(regex, "dw")


def _schemas(root: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and those in it; what is changed in one counts before those in it come."""
    waiting = [root]
    while waiting:
        if isinstance(each := waiting.pop(), list):
            waiting += each
        elif isinstance(each, dict):
            yield each
            waiting += [each[name] for name in SCHEMAS if name in each]
            waiting += [one for name in NAMED for one in _dict(each, name).values()]


def _dict(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return value if isinstance(value := schema.get(name), dict) else {}


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    return value if isinstance(value := schema.get(name), list) else []


def _leave_out(schema: dict[str, Any]) -> None:
    """Leave out each keyword that llguidance would refuse, though its value asks for nothing."""

    def asks_nothing(name: str, value: Any) -> bool:
        if value is None:
            return name not in VALUES
        match name:
            case "$schema" | "$dynamicAnchor" | "$recursiveAnchor":
                return True
            case "uniqueItems" | "not":
                return value is False
            case "unevaluatedItems":
                return value in ANYTHING
            case "propertyNames":
                return value in (*ANYTHING, {"type": "string"})
            case "dependentRequired" | "dependentSchemas" | "dependencies":
                return isinstance(value, dict) and all(each in ([], *ANYTHING) for each in value.values())
            case "contains":
                return schema.get("minContains") == 0 and "maxContains" not in schema
            case "minContains" | "maxContains":
                return "contains" not in schema
            case "then" | "else":
                return "if" not in schema or value in ANYTHING
            case "if":
                return "then" not in schema and "else" not in schema
            case "format":
                return value not in FORMATS
        return False

    for name in sorted(schema, key=("minContains", "if").__contains__):  # these two depend on what else is left
        if asks_nothing(name, schema[name]):
            del schema[name]
    if schema.get("not") in ANYTHING:  # nothing fits: how Zod, and so many a tool, says that a value is left out
        del schema["not"]
        schema["enum"] = []
    if schema.get("unevaluatedProperties") in ANYTHING:
        del schema["unevaluatedProperties"]
        schema.setdefault("additionalProperties", True)


def _use_ascii(schema: dict[str, Any]) -> None:
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = ascii_regex(pattern)
    if named := _dict(schema, "patternProperties"):
        schema["patternProperties"] = {ascii_regex(pattern): value for pattern, value in named.items()}


def _close(root: dict[str, Any]) -> None:
    """Forbid what objects and lists do not name.

    Several schemas may say together what one object has: those of `allOf`, or `anyOf` beside `properties`. Closed one
    by one, each would forbid what the others name. So the one around them is closed in their place, and names it all.
    """
    together = {id(schema): schema for schema in _schemas(root) if _num_parts(schema) > 1}
    is_part = {id(part) for part in _parts(together.values(), root)}
    for schema in [each for each in _schemas(root) if id(each) not in is_part]:
        parts = _parts([schema], root) if id(schema) in together else []
        named = any(map(_names_properties, [schema, *parts]))
        if named and "additionalProperties" not in schema and not any(map(_is_open, parts)):
            own = _dict(schema, "properties")
            names = [name for part in (schema, *parts) for name in _names(part) if name not in own]
            schema |= {"properties": {**own, **dict.fromkeys(names, True)}} if names else {}
            schema["additionalProperties"] = False
        if "prefixItems" in schema:
            schema.setdefault("items", False)
        for name, other in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if schema.get(name) is schema.get(other) is False:
                del schema[name]


def _names_properties(schema: dict[str, Any]) -> bool:
    return "properties" in schema or "patternProperties" in schema


def _names(schema: dict[str, Any]) -> list[str]:
    return [name for name in (*_dict(schema, "properties"), *_list(schema, "required")) if isinstance(name, str)]


def _is_open(part: dict[str, Any]) -> bool:
    return "patternProperties" in part or part.get("additionalProperties", False) is not False


def _num_parts(schema: dict[str, Any]) -> int:
    """Return how many schemas say what a value of `schema` may be, its own properties among them."""
    return len(_list(schema, "allOf")) + len(schema.keys() & {"anyOf", "oneOf", "$ref"}) + _names_properties(schema)


def _parts(schemas: Iterable[dict[str, Any]], root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas that a value of one of `schemas` must or may fit as well."""
    parts: dict[int, dict[str, Any]] = {}
    waiting = [*schemas]
    for part in waiting:
        others = [each for name in ("allOf", "anyOf", "oneOf") for each in _list(part, name)]
        others.append(_target(part.get("$ref"), root))
        new = {id(each): each for each in others if isinstance(each, dict) and id(each) not in parts}
        parts |= new
        waiting += new.values()
    return [*parts.values()]


def _target(ref: Any, root: Any) -> Any:
    """Return what a reference names, such as "#/$defs/pet"."""
    place, *steps = str(ref).split("/")
    found = root if place == "#" else None
    for step in steps:
        found = found.get(unquote(step).replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found
