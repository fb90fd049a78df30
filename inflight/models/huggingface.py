"""The checkpoint as Hugging Face's libraries take it, for the baseline that has no engine.

    generate = pipeline(folder(fetch()), dtype="float32")
    generate("Once upon a time", max_new_tokens=16, do_sample=False)

PyTorch and transformers are imported when they are needed: it takes them two seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import checkpoint as checkpoints
from inflight import files, manifest, tiers
from inflight.cache import made_once
from inflight.checkpoint import folder_files, tokenizer
from inflight.checkpoint.sources import Checkpoint
from inflight.errors import CourseError
from inflight.paths import cache_dir

if TYPE_CHECKING:
    from transformers import PreTrainedModel, StoppingCriteriaList, TextGenerationPipeline
    from transformers.generation.streamers import BaseStreamer

# Nothing is asked of the network, and nothing runs that a checkpoint brings along.
LOCAL = {"local_files_only": True, "trust_remote_code": False}


def folder(checkpoint: Checkpoint) -> Path:
    """The checkpoint as a Hugging Face folder: config.json, model.safetensors, tokenizer.json and chat template.

    A GGUF file is converted once, to bfloat16, and kept in the course's cache folder; for the course's model that takes
    some 15 seconds and 270 MB. A Hugging Face folder is taken as it is.

    Raises
    ------
    CourseError
        The checkpoint cannot be converted, or the cache folder cannot be written or is full.
    """
    if checkpoint.format == "hf":
        return Path(checkpoint.path).absolute()
    target = cache_dir().absolute() / "huggingface" / f"{checkpoint.name}-{checkpoint.sha256[:12]}"
    return made_once(target, lambda: flaw(target), lambda: _convert(checkpoint, target))


def pipeline(
    checkpoint_dir: str | Path,
    tokenizer_dir: str | Path | None = None,
    dtype: str = "bfloat16",
    device: str | None = None,
) -> TextGenerationPipeline:
    """Hugging Face's text-generation pipeline.

    Parameters
    ----------
    checkpoint_dir : path
        Hugging Face folder with safetensors weights.
    tokenizer_dir : path, optional
        Folder with tokenizer.json and chat template; by default the same.
    dtype : str
        Precision of weights and arithmetic: "bfloat16" or "float32".
    device : str, optional
        "cpu", "cuda" or "cuda:0"; by default that of this machine's tier.

    Raises
    ------
    CourseError
        A folder is not what it should be, or damaged; a GPU where the tier has none, or without room for the model.
    """
    device = tiers.checked(device)
    import torch
    import transformers

    refuse_damaged(Path(checkpoint_dir))
    try:
        folder_files.checked(Path(checkpoint_dir))
        tokenizer.load_tokenizer(tokenizer_dir or checkpoint_dir)
        with quiet():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                checkpoint_dir, dtype=getattr(torch, dtype), use_safetensors=True, **LOCAL
            )
            text = transformers.AutoTokenizer.from_pretrained(tokenizer_dir or checkpoint_dir, **LOCAL)
    except Exception as error:  # transformers raises whatever it trips over
        raise CourseError(
            f"The checkpoint in {checkpoint_dir} cannot be loaded ({last_line(error)}). Remove that "
            "folder, then make it again: `inflight assemble --with-llama-python`."
        ) from error
    model = on_device(model, device, checkpoint_dir)
    with quiet():
        return transformers.pipeline("text-generation", model=model, tokenizer=text, device=device)


def on_device(model: PreTrainedModel, device: str, folder: str | Path) -> PreTrainedModel:
    """The model of a folder, moved to a device.

    Raises
    ------
    CourseError
        The GPU has no room for its weights.
    """
    import torch

    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        needed = sum(weights.nbytes for weights in model.parameters())
        free, _ = torch.cuda.mem_get_info(device)
        raise CourseError(
            f"The model in {folder} has {needed / 1e6:.0f} MB of weights, and {free / 1e6:.0f} MB of the GPU's memory "
            "are free. Stop what else uses it, or give the model KIND_CPU in its instance_group."
        ) from error


def stop_when(is_over: Callable[[], bool]) -> StoppingCriteriaList:
    """For `stopping_criteria` of a pipeline: end the answer after the token at which `is_over()` is true."""
    from transformers import StoppingCriteriaList

    return StoppingCriteriaList([lambda token_ids, scores: is_over()])


def token_streamer(give: Callable[[int], None]) -> BaseStreamer:
    """For `streamer` of a pipeline: `give` gets each token of the answer as soon as it is chosen."""
    from transformers.generation.streamers import BaseStreamer

    class Streamer(BaseStreamer):
        """The first that comes is the prompt."""

        def __init__(self) -> None:
            self.is_answer = False

        def put(self, value) -> None:
            if self.is_answer:
                give(value.item())
            self.is_answer = True

        def end(self) -> None:
            """Whoever called the pipeline knows it then."""

    return Streamer()


def reference(checkpoint: Checkpoint) -> PreTrainedModel:
    """The checkpoint as it is, every weight as float32: what its builds are judged by. Nothing is kept of it on disk.

    Raises
    ------
    CourseError
        The checkpoint is not what it should be, or damaged.
    """
    import torch
    import transformers

    path = Path(checkpoint.path).absolute()
    if checkpoint.format == "hf":
        refuse_damaged(path)
    else:
        checkpoints.GgufFile(path).shape()  # before transformers believes what the file says of itself
    try:
        if checkpoint.format == "gguf":
            return _dequantized(path, "float32").eval()
        folder_files.checked(path)
        with quiet():
            return transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, use_safetensors=True, **LOCAL
            ).eval()
    except CourseError:
        raise
    except Exception as error:  # transformers raises whatever it trips over
        raise CourseError(
            f"The checkpoint {path} cannot be loaded ({last_line(error)}). Fetch it again: `inflight fetch`."
        ) from error


def _convert(checkpoint: Checkpoint, target: Path) -> None:
    """Write the Hugging Face folder of a GGUF file; nothing is at `target` until all of it is."""
    path = Path(checkpoint.path).absolute()
    source = checkpoints.GgufFile(path)
    source.shape()  # before transformers believes what the file says of itself
    text, settings = tokenizer.from_gguf(source.metadata)
    try:
        model = _dequantized(path, "bfloat16")
    except Exception as error:  # transformers raises whatever it trips over
        raise CourseError(
            f"The checkpoint {path} cannot be made a Hugging Face folder ({last_line(error)}). Give one "
            "of a Llama-family model, or fetch this one again: `inflight fetch`."
        ) from error
    with files.written_aside(target, "Hugging Face folder") as aside:
        save(model, aside)
        (aside / "tokenizer.json").write_text(text.to_str(), encoding="utf-8")
        (aside / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
        manifest.write(aside)
        for file in aside.iterdir():  # safetensors lets only its owner read the file, but a class may share the cache
            file.chmod(0o644)


def _dequantized(path: Path, dtype: str) -> PreTrainedModel:
    """The model of a GGUF file with every weight in `dtype`, as PyTorch calls it."""
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
    except SafetensorError as error:  # what it calls a write that failed
        raise OSError(str(error)) from error


def flaw(folder: Path) -> str | None:
    """What is wrong with a folder that was made here, in a few words; None if it is as it was made."""
    found = manifest.differences(folder)
    return f"is damaged ({manifest.in_words(found)})" if found else None


def refuse_damaged(folder: Path) -> None:
    """Raise CourseError for a folder that was made here and is not as it was made; others have no note of it."""
    if os.path.lexists(folder / manifest.MANIFEST) and (problem := flaw(folder)):
        raise CourseError(
            f"The checkpoint in {folder} {problem}. Assemble the model again, which makes a damaged one again, as "
            "`inflight assemble --with-llama-python` does."
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and advice, which a learner can do nothing about."""
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


def last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1].rstrip(".")
