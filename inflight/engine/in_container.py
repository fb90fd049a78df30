"""TensorRT-LLM's engine of the same checkpoint and options, built in NVIDIA's container.

Two steps run there, each a container of its own: `convert_checkpoint.py` (or `quantize.py`) and `trtllm-build`, with
the commands of `trtllm_commands`. What they say is kept in files beside the engine; of a failure their own error lines
are told.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from inflight import containers
from inflight.checkpoint.sources import Checkpoint
from inflight.containers import Image, Runtime
from inflight.engine import trtllm_commands
from inflight.engine.config import BuildConfig
from inflight.engine.trtllm_commands import Command, Recipe
from inflight.errors import CourseError
from inflight.paths import cache_dir

FOLDER = "tensorrt_llm"  # of the engine, in the folder of ours
FAMILIES = {"llama": "llama", "mistral": "llama", "gpt2": "gpt"}  # by the checkpoint's model_type
ERROR = re.compile(r"\b\w*(Error|Exception)\b|\[E\]|^error|assert", re.IGNORECASE)
MOST_ERRORS = 3
PROGRESS = re.compile(r"\d+%\||\[TRT-LLM\].*(time|Build|Serializ|weights)", re.IGNORECASE)


def build(
    checkpoint: Checkpoint,
    config: BuildConfig,
    folder: Path,
    image: Image,
    progress: Callable[[str], None] = print,
) -> Path:
    """Convert and build; the engine is then in `folder`/tensorrt_llm.

    Parameters
    ----------
    checkpoint : Checkpoint
        A folder of Hugging Face.
    progress : callable
        Called with a line whenever there is news.

    Raises
    ------
    CourseError
        The checkpoint has another form; no container can be run; a step failed, with its own error lines.
    """
    if checkpoint.format != "hf":
        raise CourseError(
            f"TensorRT-LLM converts a folder of Hugging Face, and {checkpoint.name} is a {checkpoint.format} file. "
            f"Build from such a folder, as `inflight fetch {trtllm_commands.MODEL_ID}` gets one."
        )
    runtime = containers.find(image.runtime)
    runtime.check_image(image.name)
    recipe = Recipe.of(config, _family(checkpoint.path))
    places = replace(
        trtllm_commands.CONTAINER,
        model=str(checkpoint.path),
        checkpoint=str(folder / "checkpoint"),
        engine=str(folder / FOLDER),
    )
    mounts = [(folder, True), (checkpoint.path, False), (cache_dir(), False)]
    mounts = [(path, may_write) for path, may_write in dict(mounts).items() if path.exists()]
    for step in (trtllm_commands.convert(recipe, places), trtllm_commands.build(recipe, places)):
        _run(runtime, image, step, mounts, folder, progress)
    _remove_checkpoint(runtime, image, folder, mounts)
    return folder / FOLDER


def _family(model: Path) -> str:
    """The family of converters for a checkpoint, by its config.json."""
    kind = json.loads((model / "config.json").read_text(encoding="utf-8")).get("model_type")
    if kind not in FAMILIES:
        raise CourseError(f"{model} is a {kind}: the course converts {', '.join(FAMILIES)} for TensorRT-LLM.")
    return FAMILIES[kind]


def _run(
    runtime: Runtime, image: Image, step: Command, mounts: list, folder: Path, progress: Callable[[str], None]
) -> None:
    """Run one step in a container of its own, which ends with it or with us."""
    program = Path(next(word for word in step.argv if not word.startswith("python3"))).name
    name, started = f"inflight-build-{secrets.token_hex(6)}", time.monotonic()
    progress(f"{program} …")
    said = folder / f"{program}.log"
    command = runtime.command(image, name, step.argv, mounts)
    ended_well = False
    try:
        with (
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
            open(said, "w", encoding="utf-8") as log,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if PROGRESS.search(line):
                    progress(f"{program}: {line.strip()}")
        ended_well = process.returncode == 0
    finally:
        if not ended_well:
            runtime.remove(name)
    if not ended_well:
        raise CourseError(f"{program} failed: {errors(said.read_text(encoding='utf-8').splitlines())}")
    progress(f"{program}: done after {time.monotonic() - started:.0f} s")


def errors(lines: Iterable[str]) -> str:
    """The error lines among what a program said, the last ones; else its last line."""
    kept = [line.strip() for line in lines if line.strip()]
    told = [line for line in kept if ERROR.search(line)][-MOST_ERRORS:] or kept[-1:]
    return " ".join(told) or "it says nothing"


def _remove_checkpoint(runtime: Runtime, image: Image, folder: Path, mounts: list) -> None:
    """What lies between the steps is as large as the model; inside, because it may be root's."""
    command = runtime.command(
        image, f"inflight-build-{secrets.token_hex(6)}", ["rm", "-rf", str(folder / "checkpoint")], mounts
    )
    runtime.ask(*command[len(runtime.words) :])
