"""The checkpoint as Hugging Face's libraries take it, for the baseline that has no engine.

    generate = pipeline(folder(fetch()), dtype="float32")
    generate("Once upon a time", max_new_tokens=16, do_sample=False)

PyTorch and transformers are imported when they are needed: it takes them two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import processor, tiers
from inflight.checkpoint import sources, tokenizer
from inflight.checkpoint.as_huggingface import LOCAL, dequantized, folder, last_line, quiet
from inflight.checkpoint.sources import Checkpoint
from inflight.errors import CourseError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, StoppingCriteriaList, TextGenerationPipeline
    from transformers.generation.streamers import BaseStreamer

__all__ = ["best_dtype", "folder", "generate", "on_device", "pipeline", "reference", "stop_when", "token_streamer"]


def best_dtype(device: str) -> str:
    """The precision that a device computes these models in the quickest."""
    return processor.here().dtype if device == "cpu" else "bfloat16"


def pipeline(
    checkpoint_dir: str | Path,
    tokenizer_dir: str | Path | None = None,
    dtype: str = "auto",
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
        Precision of weights and arithmetic: "bfloat16", "float32", or "auto": `best_dtype`.
    device : str, optional
        "cpu", "cuda" or "cuda:0"; by default that of this machine's tier.

    Raises
    ------
    CourseError
        A folder is not what it should be; a GPU where the tier has none, or without room for the model.
    """
    device = tiers.checked(device)
    dtype = best_dtype(device) if dtype == "auto" else dtype
    import torch
    import transformers

    try:
        sources.folder_files(Path(checkpoint_dir))
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


def generate(pipeline: TextGenerationPipeline, ids: list[int], **options) -> list[int]:
    """What the pipeline's model answers to tokens: the answer's tokens; options are those of its `generate`.

    A pipeline itself takes text alone, and makes control tokens of whatever reads like one.
    """
    import torch

    prompt = torch.tensor([ids], device=pipeline.model.device)
    answer = pipeline.model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    return answer[0, len(ids) :].tolist()


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
        """Passes tokens on; the first value that transformers puts is the prompt."""

        def __init__(self) -> None:
            self.is_answer = False

        def put(self, value) -> None:
            if self.is_answer:
                give(value.item())
            self.is_answer = True

        def end(self) -> None:
            """Nothing to do; transformers calls it."""

    return Streamer()


def reference(checkpoint: Checkpoint) -> PreTrainedModel:
    """The checkpoint as it is, every weight as float32: what its builds are judged by. Nothing is kept of it on disk.

    Raises
    ------
    CourseError
        The checkpoint is not what it should be.
    """
    import torch
    import transformers

    path = Path(checkpoint.path).absolute()
    try:
        if checkpoint.format == "gguf":
            return dequantized(path, "float32").eval()
        sources.folder_files(path)
        with quiet():
            return transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, use_safetensors=True, **LOCAL
            ).eval()
    except CourseError:
        raise
    except Exception as error:  # transformers raises whatever it trips over
        raise CourseError(
            f"The checkpoint {path} cannot be loaded ({last_line(error)}). Give another one, or get it again."
        ) from error
