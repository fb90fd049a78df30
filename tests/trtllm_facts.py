"""`assets/lab-gpu/facts.toml` as a judge of command lines."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator

from inflight.paths import ASSETS

FACTS = tomllib.loads((ASSETS / "lab-gpu" / "facts.toml").read_text(encoding="utf-8"))
PROGRAMS = FACTS["programs"]
ON_OFF = ["enable", "disable"]


def problems(line: str) -> list[str]:
    """What the facts have against a command line, one sentence each. Words with a dollar sign are not judged."""
    words = shlex.split(line.replace("\\\n", " "))
    return [problem for names, rest in [_program(words)] for name in names for problem in _problems(name, rest)]


def _program(words: list[str]) -> tuple[list[str], list[str]]:
    """The facts' names of the program that a command runs (one for each family that `$FAMILY` may be), and the rest."""
    if words[0] in ("python3", "python"):
        words = words[1:]
    if words[0].endswith(".py"):
        parts, rest = words[0].split("/"), words[1:]
        families = ["llama", "gpt"] if "$FAMILY" in words[0] else parts[-2:-1]
        own = [f"{family}/{parts[-1]}" for family in families if f"{family}/{parts[-1]}" in PROGRAMS]
        return own or [parts[-1]], rest
    if words[0] in ("docker", "podman"):
        return [" ".join(words[:2])], words[2:]
    return words[:1], words[1:]


def _problems(name: str, words: list[str]) -> Iterator[str]:
    if name not in PROGRAMS:
        yield f"{name}: the facts do not know it"
        return
    facts, rest = PROGRAMS[name], list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not re.match(r"--?[a-zA-Z]", flag):
            allowed = facts.get("words", [])
            if allowed == "rest":
                return
            if allowed != "any" and flag not in allowed:
                yield f"{name}: {flag!r} stands without a flag"
            continue
        takes = _takes(facts, flag)
        if takes is None:
            yield f"{name}: there is no {flag}"
        elif takes == "switch":
            if equals:
                yield f"{name}: {flag} takes no value"
        elif not equals and (not rest or rest[0].startswith("--")):
            yield f"{name}: {flag} needs a value"
        else:
            value = value if equals else rest.pop(0)
            if not _fits(takes, value):
                yield f"{name}: {flag} is {value!r}, not {takes}"
        if flag in facts.get("deprecated", []):
            yield f"{name}: {flag} is deprecated"


def _takes(facts: dict, flag: str) -> str | list[str] | None:
    if flag in facts.get("choices", {}):
        return facts["choices"][flag]
    if flag in facts.get("on_off", []):
        return ON_OFF
    return next((kind for kind in ("text", "integer", "number", "switch") if flag in facts.get(kind, [])), None)


def _fits(takes: str | list[str], value: str) -> bool:
    if "$" in value:
        return True
    if isinstance(takes, list):
        return value in takes
    pattern = {"text": r".+", "integer": r"-?\d+", "number": r"-?\d+(\.\d+)?(e-?\d+)?"}[takes]
    return re.fullmatch(pattern, value) is not None
