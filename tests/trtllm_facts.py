"""`assets/lab-gpu/facts.toml` as a judge of command lines, and as a maker of templates like TensorRT-LLM's."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator

from inflight.paths import ASSETS

FACTS = tomllib.loads((ASSETS / "lab-gpu" / "facts.toml").read_text(encoding="utf-8"))
PROGRAMS = FACTS["programs"]
ON_OFF = ["enable", "disable"]


def command_lines(text: str) -> list[str]:
    """Command lines of the programs that the facts know, in a shell script or in the code of a page."""
    joined = re.sub(r"\\\n\s*", " ", text)
    pieces = [piece for line in joined.splitlines() for piece in (line, *re.findall(r"`([^`]+)`", line))]
    found = []
    for piece in pieces:
        command = re.sub(r"^\s*(until |inside(_on_its_own)? |sudo )*", "", piece)
        command = re.split(r" ;;$|;? do$| (?:2?>|\||&&) ", command)[0].strip()
        if any(re.match(pattern, command) for pattern in _STARTS):
            found.append(command)
    return found


_STARTS = [
    r"(trtllm-build|trtllm-serve|tritonserver|hf|git|curl|perf_analyzer|nvidia-ctk) [^|]",
    r"(docker run|podman run|docker build) [^|]",
    r"python3? \S*\.py",
    r"\S+\.py ",
]


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


# Templates ------------------------------------------------------------------------------------------------------------

# Where a variable stands outside quotes, with what is around it there.
_BARE_LINES = {
    "triton_max_batch_size": "max_batch_size: {}",
    "decoupled_mode": "model_transaction_policy {{ decoupled: {} }}",
    "logits_datatype": 'output [ {{ name: "context_logits" data_type: {} dims: [ -1, -1 ] }} ]',
    "encoder_input_features_data_type": 'input [ {{ name: "encoder_input_features" data_type: {} dims: [ -1, -1 ] }} ]',
}
_QUEUE = """dynamic_batching {
  max_queue_delay_microseconds: ${max_queue_delay_microseconds}
  default_queue_policy { max_queue_size: ${max_queue_size} }
}"""


def version(name: str) -> dict:
    """What the facts say of one version of the templates."""
    found = FACTS["templates"]["versions"][name]
    return version(found["same_as"]) if "same_as" in found else found


def template(version_name: str, model: str) -> str:
    """A `config.pbtxt` with the variables of that version's: outside quotes and inside, as there.

    A parameter has its variable's name, which is not so there: `engine_dir` fills `gpt_model_path`.
    """
    facts = version(version_name)
    bare = facts["bare"][model]
    lines = [f'name: "{model}"']
    for name in bare:
        if name.endswith("_instance_count"):
            lines.append(f"instance_group [ {{ count: ${{{name}}} kind: KIND_CPU }} ]")
        elif name in _BARE_LINES:
            lines.append(_BARE_LINES[name].format(f"${{{name}}}"))
    if "max_queue_size" in bare:
        lines.append(_QUEUE)
    quoted = [name for name in FACTS["templates"]["quoted"][model] if name not in facts["lacks"]]
    for name in quoted + (facts["adds"] if model == "tensorrt_llm" else []):
        if name == "triton_backend":
            lines.append('backend: "${triton_backend}"')
        else:
            lines.append(f'parameters {{ key: "{name}" value: {{ string_value: "${{{name}}}" }} }}')
    return "\n".join(lines) + "\n"


def fill_template_script(version_name: str) -> str:
    """A program that takes what that version's `fill_template.py` takes, and does the same."""
    facts = version(version_name)
    split = r"re.split(r'(?<!\\)' + sign, text)" if facts["escapes"] else "text.split(sign)"
    return f"""
import re, string, sys
in_place, (file, pairs) = sys.argv[1] == "-i", sys.argv[2:] if sys.argv[1] == "-i" else sys.argv[1:]
def parts(text, sign):
    return {split}
text = open(file).read()
values = dict.fromkeys({facts["defaults"]!r}, 0)
for pair in parts(pairs, ","):
    key, value = parts(pair, ":")
    assert key in text or not {facts["asserts"]!r}, f"key '{{key}}' does not exist in the file"
    values[key] = value
filled = string.Template(text).safe_substitute(values)
open(file, "w").write(filled) if in_place else print(filled)
"""
