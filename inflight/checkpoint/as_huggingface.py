"""Makes of a checkpoint what Hugging Face's libraries take: a folder with config, safetensors and tokenizer.

PyTorch, transformers and gguf are imported when they are needed: it takes them two seconds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import cache, files
from inflight.checkpoint import sources, tokenizer
from inflight.checkpoint.sources import Checkpoint
from inflight.errors import CourseError, reason

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The libraries ask the network for nothing and run no code of a checkpoint.
LOCAL = {"local_files_only": True, "trust_remote_code": False}


def folder(checkpoint: Checkpoint) -> Path:
    """Return the checkpoint as a Hugging Face folder: config.json, model.safetensors, tokenizer.json and chat template.

    A GGUF file is converted once, to bfloat16, and kept in the course's cache folder; for the course's model that takes
    some 15 seconds and 270 MB. A Hugging Face folder is taken as it is.

    Raises
    ------
    CourseError
        The checkpoint cannot be converted, or the cache folder cannot be written or is full.
    """
    if checkpoint.format == "hf":
        return Path(checkpoint.path).absolute()
    target = cache.place("huggingface", f"{checkpoint.name}-{checkpoint.sha256[:12]}")
    return cache.made_once(target, lambda: _convert(checkpoint, target))


def _convert(checkpoint: Checkpoint, target: Path) -> None:
    """Write the Hugging Face folder of a GGUF file; nothing is at `target` until all of it is."""
    from inflight.checkpoint.weights import GgufFile

    sources.check(checkpoint)
    path = Path(checkpoint.path).absolute()
    source = GgufFile(path)
    if source.rotary_factors() is not None:  # transformers would ignore them
        raise CourseError(
            f"{path} scales its rotary positions as Llama 3.1 and later do, which is lost in a Hugging Face "
            "folder made from a GGUF file: give the folder that the model's makers published."
        )
    text, settings = tokenizer.from_gguf(source.metadata)
    try:
        model = dequantized(path, "bfloat16")
    except Exception as error:  # transformers raises whatever it trips over
        raise CourseError(
            f"The checkpoint {path} cannot be made a Hugging Face folder ({reason(error)}). Give one "
            "of a Llama-family model."
        ) from error
    with files.written_aside(target, "Hugging Face folder") as aside:
        save(model, aside)
        (aside / "tokenizer.json").write_text(text.to_str(), encoding="utf-8")
        (aside / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
        cache.seal(aside)


def dequantized(path: Path, dtype: str) -> PreTrainedModel:
    """Load the model of a GGUF file with every weight in `dtype`, as PyTorch calls it."""
    import torch
    import transformers
    from IPython.utils.capture import capture_output

    with quiet(), capture_output(stdout=False):  # one of the progress bars has no switch; in a notebook it is a display
        return transformers.AutoModelForCausalLM.from_pretrained(
            path.parent,
            gguf_file=path.name,
            dtype=getattr(torch, dtype),
            quantization_config=transformers.GgufConfig(dequantize=True),
            **LOCAL,
        )


def save(model: PreTrainedModel, aside: Path) -> None:
    from safetensors import SafetensorError

    try:
        with quiet():
            model.save_pretrained(aside)
    except SafetensorError as error:  # the library raises it when a write fails
        raise OSError(str(error)) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and advice, which a learner can do nothing about."""
    from transformers.utils import logging

    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
