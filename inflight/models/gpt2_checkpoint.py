"""GPT-2 checkpoints by name: the course's own, a folder, or one of the Hugging Face hub.

model = gpt2.load(find("course-gpt2"))
"""

from __future__ import annotations

import re
from pathlib import Path

from inflight import checkpoint
from inflight.errors import CourseError
from inflight.paths import ASSETS

COURSE = "course-gpt2"
CHECKPOINTS = ASSETS / "checkpoints"
HUB = {name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")}


def find(name: str | Path = COURSE) -> Path:
    """Folder of a GPT-2 checkpoint, fetched when it is not there yet.

    Parameters
    ----------
    name : str or path
        "course-gpt2"; a Hugging Face folder; a key of `HUB`, or another owner/name on the hub, of which only JSON and
        safetensors files are taken.

    Raises
    ------
    CourseError
        Unknown name, folder that is no checkpoint, no network, cache folder that is full or cannot be written.
    """
    text, path = str(name), Path(name).expanduser()
    if text == COURSE:
        return _course_checkpoint()
    is_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) and not path.exists()
    if text not in HUB and not path.is_dir() and not is_id:
        raise CourseError(
            f"There is no GPT-2 checkpoint {text!r}: name one of {', '.join((COURSE, *HUB))}, a "
            "Hugging Face folder that exists, or an owner/name of its hub."
        )
    return checkpoint.fetch(path if path.is_dir() else HUB.get(text, text)).path.absolute()


def _course_checkpoint() -> Path:
    folder = CHECKPOINTS / COURSE
    if not (folder / "config.json").exists():
        raise CourseError(
            f"There is no checkpoint in {folder}, where the course has its own GPT-2: check the "
            "repository out again, or name another checkpoint."
        )
    return folder
