"""GPT-2 checkpoints by name.

model = gpt2.load(find("course-gpt2"))
"""

from __future__ import annotations

from pathlib import Path

from inflight import checkpoint
from inflight.paths import ASSETS

COURSE = "course-gpt2"
FOLDER = ASSETS / "checkpoints" / COURSE
HUB = {name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")}


def find(name: str | Path = COURSE) -> Path:
    """Return the folder of a GPT-2 checkpoint, fetched when it is not there yet.

    `name` is "course-gpt2", a Hugging Face folder, a key of `HUB`, or another owner/name on the hub.

    Raises
    ------
    CourseError
        As `checkpoint.fetch`.
    """
    return FOLDER if name == COURSE else checkpoint.fetch(HUB.get(str(name), name)).path.absolute()
