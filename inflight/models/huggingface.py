"""Loads the checkpoint with Hugging Face's libraries, for the models that have no engine.

    model = load(folder(fetch()), dtype="float32")
    generate(model, ids, max_new_tokens=16, do_sample=False)

PyTorch and transformers are imported when they are needed: it takes them two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import cache, processor, tiers
from inflight.checkpoint import sources
from inflight.checkpoint.as_huggingface import LOCAL, dequantized, folder, quiet
from inflight.checkpoint.sources import Checkpoint
from inflight.errors import CourseError, reason

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = ["best_dtype", "folder", "generate", "load", "reference"]


def best_dtype(device: str) -> str:
    """Return the precision in which a device computes these models fastest."""
    return processor.here().dtype if device == "cpu" else "bfloat16"


def load(folder: str | Path, dtype: str = "auto", device: str | None = None) -> PreTrainedModel:
    """Load the causal language model of a Hugging Face folder, on a device and in evaluation mode.

    Parameters
    ----------
    folder : path
        With safetensors weights.
    dtype : str
        Precision of weights and arithmetic: "bfloat16", "float16", "float32", or "auto": `best_dtype`.
    device : str, optional
        "cpu", "cuda" or "cuda:0"; by default that of this machine's tier.

    Raises
    ------
    CourseError
        The folder is not what it should be, or damaged; a GPU where the tier has none, or without room for the model.
    """
    device = tiers.checked(device)
    dtype = best_dtype(device) if dtype == "auto" else dtype
    import torch
    import transformers

    folder = Path(folder)
    sources.folder_files(folder)
    try:
        if problem := cache.damage(folder, "model.safetensors"):
            raise OSError(problem)
        with quiet():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), use_safetensors=True, **LOCAL
            )
    except Exception as error:  # transformers raises whatever it trips over
        way_on = cache.way_on(folder, "Make or fetch that folder again.")
        raise CourseError(f"The checkpoint in {folder} cannot be loaded ({reason(error)}). {way_on}") from error
    try:
        return model.to(device).eval()
    except torch.OutOfMemoryError as error:
        needed = sum(weights.nbytes for weights in model.parameters())
        free, _ = torch.cuda.mem_get_info(device)
        raise CourseError(
            f"The model in {folder} has {needed / 1e6:.0f} MB of weights, and {free / 1e6:.0f} MB of the GPU's memory "
            "are free. Stop what else uses it, or give the model KIND_CPU in its instance_group."
        ) from error


def generate(
    model: PreTrainedModel, ids: list[int], is_over: Callable[[torch.Tensor], bool] | None = None, **options
) -> list[int]:
    """The tokens that a model answers to tokens.

    `is_over` is called after each token with all tokens so far, [1, length], and true ends the answer. `options` are
    those of transformers' `generate`.
    """
    import torch
    from transformers import StoppingCriteriaList

    prompt = torch.tensor([ids], device=model.device)
    criteria = StoppingCriteriaList([lambda so_far, scores: is_over(so_far)] if is_over else [])
    with quiet():
        answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), stopping_criteria=criteria, **options)
    return answer[0, len(ids) :].tolist()


def reference(checkpoint: Checkpoint) -> PreTrainedModel:
    """Load the checkpoint with every weight as float32, to judge its builds by. Nothing of it is kept on disk.

    Raises
    ------
    CourseError
        The checkpoint is not what it should be.
    """
    path = Path(checkpoint.path).absolute()
    if checkpoint.format == "hf":
        return load(path, "float32", "cpu")
    try:
        return dequantized(path, "float32").eval()
    except Exception as error:  # transformers raises whatever it trips over
        raise CourseError(
            f"The checkpoint {path} cannot be loaded ({reason(error)}). Give another one, or get it again."
        ) from error
