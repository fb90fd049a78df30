"""GPT-2 checkpoints by name: the course's own, random weights for timing, a folder, or one of the Hugging Face hub.

model = gpt2.load(find("course-gpt2"))
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from inflight import cache, checkpoint, files
from inflight.cache import made_once
from inflight.checkpoint import as_huggingface
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.paths import ASSETS

COURSE = "course-gpt2"
CHECKPOINTS = ASSETS / "checkpoints"
HUB = {name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")}
# Sizes that `random_checkpoint` makes. The tiny one has larger weights, or it would repeat its last token for ever.
SIZES = {
    "gpt2-tiny": {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 128, "initializer_range": 0.4},
    "gpt2-124m": {},
    "gpt2-1.5b": {"n_layer": 48, "n_embd": 1600, "n_head": 25},
}
RANDOM = {f"{size}-random": size for size in SIZES}


def find(name: str | Path = COURSE) -> Path:
    """Folder of a GPT-2 checkpoint; made or fetched when it is not there yet.

    Parameters
    ----------
    name : str or path
        "course-gpt2"; a key of `RANDOM`, made once and kept in the course's cache folder; a Hugging Face folder; a key
        of `HUB`, or another owner/name on the hub, of which only JSON and safetensors files are taken.

    Raises
    ------
    CourseError
        Unknown name, folder that is no checkpoint, no network, cache folder that is full or cannot be written.
    """
    text, path = str(name), Path(name).expanduser()
    if text == COURSE:
        return _course_checkpoint()
    if text in RANDOM:
        return _cached_random(text)
    is_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) and not path.exists()
    if text not in HUB and not path.is_dir() and not is_id:
        raise CourseError(
            f"There is no GPT-2 checkpoint {text!r}: name one of {', '.join((COURSE, *RANDOM, *HUB))}, a "
            "Hugging Face folder that exists, or an owner/name of its hub."
        )
    return checkpoint.fetch(path if path.is_dir() else HUB.get(text, text)).path.absolute()


def random_checkpoint(folder: str | Path, size: str = "gpt2-124m", seed: int = 0) -> Path:
    """Write a Hugging Face folder with seeded random weights in bfloat16: for timing, which no weight's value changes.

    The tokenizer is that of the course's own model.

    Parameters
    ----------
    folder : path
        Made, or put in the place of one that is there, when all of it is written.
    size : str
        A key of `SIZES`.
    """
    import torch
    import transformers

    source = as_huggingface.folder(checkpoint.fetch())
    end_id = load_tokenizer(source).end_id
    config = transformers.GPT2Config(**SIZES[size], bos_token_id=end_id, eos_token_id=end_id, dtype="bfloat16")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
    with files.written_aside(Path(folder), "checkpoint") as aside:
        as_huggingface.save(model, aside)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(source / name, aside / name)
        for file in aside.iterdir():  # safetensors lets only its owner read the file, but a class may share the cache
            file.chmod(0o644)
    return Path(folder)


def _course_checkpoint() -> Path:
    folder = CHECKPOINTS / COURSE
    if not (folder / "config.json").exists():
        raise CourseError(
            f"There is no checkpoint in {folder}, where the course has its own GPT-2: check the "
            "repository out again, or name another checkpoint, such as gpt2-124m-random."
        )
    return folder


def _cached_random(name: str) -> Path:
    folder = cache.place("gpt2", name)
    return made_once(folder, lambda: random_checkpoint(folder, RANDOM[name]))
