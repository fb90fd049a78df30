"""Writes `assets/lab-gpu/lab.sh` and its README.md from `lessons/lab_gpu/`, and what lessons print of them.

    python -m tools.lab_gpu        write both; `python -m tools.lessons build` does it too

No command of TensorRT-LLM is typed in a text: these stand for what `inflight.engine.trtllm_commands` makes, in a
markdown cell of a lesson and in the two files.

    {{name.image}}         a name or a version, see `names`
    {{command.build}}      a command, in as many lines as it needs
    {{line.query}}         the same in one line
    {{fill.ensemble}}      what is filled into a template
    {{function.fill}}      a function of lab.sh, with the comment above it (not in the two files)
"""

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from inflight.engine import trtllm_commands as table
from inflight.errors import CourseError
from inflight.paths import COURSE

FIELD = re.compile(r"^(?P<indent>[ ]*)(?P<before>.*?)\{\{(?P<kind>\w+)\.(?P<name>\w+)\}\}", re.M)
FOLDER = Path("assets/lab-gpu")
SCRIPT, PAGE = "lab.sh", "README.md"


def write(root: Path) -> None:
    """Write the two files, where the course at `root` has sources for them."""
    for path, text in expected(root).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)


def problems(root: Path) -> list[str]:
    """What is wrong with the two files, one sentence each."""
    return [
        f"{path.relative_to(root)}: differs from lessons/lab_gpu/{path.name}; run `make notebooks`"
        for path, text in expected(root).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def expected(root: Path) -> dict[Path, str]:
    """Path -> text of each file that is made from a source in `root`."""
    sources = sorted((root / "lessons" / "lab_gpu").glob("*"))
    return {root / FOLDER / path.name: filled(path.read_text(encoding="utf-8"), root) for path in sources}


def filled(text: str, root: Path = COURSE) -> str:
    """`text` with every field replaced by what it stands for; lines after the first keep its line's indentation.

    Raises
    ------
    CourseError
        A field stands for nothing.
    """
    while match := FIELD.search(text):
        value = _value(match["kind"], match["name"], root)
        value = value.replace("\n", "\n" + match["indent"])
        text = text[: match.start()] + match["indent"] + match["before"] + value + text[match.end() :]
    return text


def names() -> dict[str, str]:
    """What `{{name.…}}` stands for."""
    facts = tomllib.loads((COURSE / FOLDER / "facts.toml").read_text(encoding="utf-8"))
    versions = facts["versions"]
    return {
        "image": table.IMAGE,
        "client_image": table.CLIENT_IMAGE,
        "fallback_image": table.FALLBACK_IMAGE,
        "container": table.CONTAINER_NAME,
        "model_id": table.MODEL_ID,
        "model_revision": table.MODEL_REVISION,
        "gpt_model_id": table.GPT_MODEL_ID,
        "version": versions["container"],
        "triton": versions["triton"],
        "tensorrt_llm": versions["tensorrt_llm"],
        "gigabytes": str(versions["gigabytes"]),
        "driver": versions["driver"],
        "last_with_v1": versions["last_with_v1"],
        "fallback_version": versions["fallback"]["container"],
        "fallback_tensorrt_llm": versions["fallback"]["tensorrt_llm"],
        "fallback_tag": versions["fallback"]["backend_tag"],
        "model_dir": table.CONTAINER.model,
        "engine": table.CONTAINER.engine,
        "repository": table.CONTAINER.repository,
        "texts": table.CONTAINER.texts,
    }


def function(name: str, script: str) -> str:
    """The function `name` of the text `script`, with the comment above it.

    Raises
    ------
    CourseError
        There is no such function.
    """
    match = re.search(rf"^(?:#.*\n)*{name}\(\) \{{\n(?:.*\n)*?\}}$", script, re.M)
    if not match:
        raise CourseError(f"lessons/lab_gpu/{SCRIPT} has no function {name}; correct the field that names it.")
    return match[0]


def _value(kind: str, name: str, root: Path) -> str:
    kinds: dict[str, Callable[[], str | None]] = {
        "name": lambda: names().get(name),
        "command": lambda: str(table.lab_commands()[name]) if name in table.lab_commands() else None,
        "line": lambda: table.lab_commands()[name].line if name in table.lab_commands() else None,
        "fill": lambda: _pairs(name),
        "function": lambda: function(name, expected(root)[root / FOLDER / SCRIPT]),
    }
    value = kinds[kind]() if kind in kinds else None
    if value is None:
        raise CourseError(f"{{{{{kind}.{name}}}}} stands for nothing: correct it; tools/lab_gpu.py says what there is.")
    return value


def _pairs(model: str) -> str | None:
    """The words `name:value` for one model, with the names of lab.sh, a few to a line."""
    values = table.template_values(
        slots="$SLOTS", batching="$type", policy="$policy", decoupled="$decoupled", queue_delay_us="$delay"
    ).get(model)
    if values is None:
        return None
    first, *rest = (f"{name}:{value}" for name, value in values.items())
    return str(table.Command((first,), tuple((pair,) for pair in rest)))


if __name__ == "__main__":
    try:
        write(COURSE)
    except CourseError as error:
        sys.exit(str(error))
