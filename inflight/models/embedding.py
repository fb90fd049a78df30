"""Turns texts into embeddings, by one forward pass of the checkpoint for a whole batch.

    embed = Embedder(folder(fetch()))
    vectors = embed([embed.encode("how tall is the eiffel tower"), embed.encode("height of the eiffel tower")])
    vectors[0] @ vectors[1]                                 # how near they are: cosine of the angle between them

A batch costs a fixed part, as every weight has to be read once, and a part for each of its texts, which are computed
with them. For texts of a few words the fixed part is the larger one: that is why batches pay.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.models import huggingface


class Embedder:
    """The checkpoint as a model of embeddings: the mean of the last hidden states of a text's tokens, of length 1.

    Parameters
    ----------
    checkpoint_dir : path
        Hugging Face folder with tokenizer.
    dtype, device : str
        As for `huggingface.load`.

    Raises
    ------
    CourseError
        The folder is not what it should be, or damaged.
    """

    def __init__(self, checkpoint_dir: str | Path, dtype: str = "auto", device: str | None = None):
        self._tokenizer = load_tokenizer(checkpoint_dir)
        self._model = huggingface.load(checkpoint_dir, dtype, device).base_model

    @property
    def width(self) -> int:
        """Numbers in an embedding."""
        return self._model.config.hidden_size

    def encode(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises
        ------
        CourseError
            The text is empty, or longer than the model's positions.
        """
        if not text.strip():
            raise CourseError("text_input is empty: send at least one character that is not a space.")
        ids, positions = self._tokenizer.encode(text), self._model.config.max_position_embeddings
        if len(ids) > positions:
            raise CourseError(f"The text has {len(ids)} tokens and the model {positions} positions: shorten the text.")
        return ids

    def __call__(self, texts: list[list[int]]) -> np.ndarray:
        """Embeddings of encoded texts in one forward pass, float32 [texts, width].

        Shorter texts are padded on the right and masked: an embedding depends on its batch by no more than rounding.
        """
        import torch

        lengths = torch.tensor([len(ids) for ids in texts])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        ids = torch.zeros(mask.shape, dtype=torch.long)
        ids[mask] = torch.tensor([token for text in texts for token in text])
        ids, mask = ids.to(self._model.device), mask.to(self._model.device)
        with torch.inference_mode():
            states = self._model(input_ids=ids, attention_mask=mask.long(), use_cache=False).last_hidden_state.float()
            means = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return torch.nn.functional.normalize(means, dim=1).cpu().numpy()
