"""GPT-2 with a KV cache whose sequences may join and leave at every step; it knows nothing of Triton.

    model = load("gpt2-folder")
    sequence = model.sequence("Programming in C++ is like", {"max_tokens": 32, "ignore_eos": True})
    if model.join(sequence):
        while not sequence.is_finished:
            model.step([sequence])
            print(model.last_piece(sequence), end="")
        model.leave(sequence)

A step is one forward pass for all the sequences it is given. What it computes is all that tells the ways apart:

- With the cache: a newcomer's whole prompt, of all others their last token. Keys and values of earlier ones lie there.
- Without: the whole history of every sequence, at every step.
- `TutorialGpt2`, of the model simple-gpt2: the same, as Triton's public tutorial does it, with histories padded on the
  left, in float32, and `generate` for one token.

PyTorch and transformers are imported when they are needed: it takes them two seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import tiers
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.models.gpt2_network import Network, pretrained

if TYPE_CHECKING:
    import torch

LENGTH_STEP = 32  # tokens; attention goes over a multiple of it
NUM_PRECEDING = 8  # tokens that are decoded again to find where a character begins


# Sequences ------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Sequence:
    """A prompt and the tokens that follow it.

    Attributes
    ----------
    token_ids : list of int
        Prompt and answer so far.
    prompt_length, max_tokens : int
        Tokens of the prompt, and of the answer when nothing ends it before.
    end_id : int or None
        Token that ends the answer; None for none.
    slot : int or None
        Its row in the KV cache.
    num_cached : int
        Tokens whose keys and values are there.
    """

    token_ids: list[int]
    prompt_length: int
    max_tokens: int
    end_id: int | None
    slot: int | None = None
    num_cached: int = 0

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.prompt_length

    @property
    def is_finished(self) -> bool:
        ended = self.num_generated > 0 and self.token_ids[-1] == self.end_id
        return ended or self.num_generated >= self.max_tokens


class Gpt2:
    """Base class of the ways of computing a step: the checkpoint's text side.

    Attributes
    ----------
    positions : int
        Most tokens of a prompt and its answer together.
    """

    num_slots = num_used_slots = 0

    def __init__(self, folder: str | Path, dtype: str, device: str):
        self._model = pretrained(folder, dtype, device)
        self._tokenizer = load_tokenizer(folder)
        self._end_id = self._model.config.eos_token_id
        self.positions: int = self._model.config.n_positions

    def sequence(self, text: str, parameters: dict) -> Sequence:
        """Make a sequence to compute, from a request's text and parameters.

        Parameters
        ----------
        text : str
        parameters : dict
            `max_tokens` (int) and `ignore_eos` (bool): the answer goes on after the model's end token.

        Raises
        ------
        CourseError
            A parameter is missing or wrong, the text is empty, or more tokens than the model has positions.
        """
        max_tokens, ignore_eos = _read_parameters(parameters)
        ids = self._tokenizer.encode(text)
        if not ids:
            raise CourseError("text_input is empty: send at least one character.")
        if len(ids) >= self.positions:
            raise CourseError(
                f"The prompt has {len(ids)} tokens, but the model has {self.positions} positions for prompt "
                "and answer: shorten the text."
            )
        if len(ids) + max_tokens > self.positions:
            raise CourseError(
                f"The prompt has {len(ids)} tokens and max_tokens is {max_tokens}, but the model has "
                f"{self.positions} positions: ask for at most {self.positions - len(ids)} tokens."
            )
        return Sequence(ids, len(ids), max_tokens, None if ignore_eos else self._end_id)

    def last_piece(self, sequence: Sequence) -> str:
        """Return the text that the last token adds; blank while a character's bytes are not all there."""
        before, last = sequence.token_ids[-NUM_PRECEDING - 1 : -1], sequence.token_ids[-1:]
        return self._tokenizer.decode_increment(before, last, sequence.is_finished, skip_special_tokens=False)

    def join(self, sequence: Sequence) -> bool:
        """Make room for a sequence; False when there is none now."""
        return True

    def leave(self, sequence: Sequence) -> None:
        """Give back what `join` took. May be called for a sequence that has not joined."""

    def step(self, sequences: list[Sequence]) -> None:
        """Run one forward pass: every sequence gets its likeliest next token."""
        raise NotImplementedError


def load(
    folder: str | Path, kv_cache: str = "on", dtype: str = "auto", num_slots: int = 8, device: str | None = None
) -> Gpt2:
    """A GPT-2 of any size, from a Hugging Face folder with safetensors weights.

    Parameters
    ----------
    folder : path
    kv_cache : str
        "on" or "off"; see the top of this module.
    dtype : str
        Precision of weights, cache and arithmetic: "auto" (`huggingface.best_dtype`), "bfloat16", "float32" or, on a
        GPU, "float16".
    num_slots : int
        Sequences that the cache holds; each takes 2 * layers * positions * width numbers.
    device : str, optional
        "cpu", "cuda" or "cuda:0"; by default that of this machine's tier.

    Raises
    ------
    CourseError
        The folder holds no GPT-2, or one with options that the course does not compute, or is damaged; a precision that
        the device cannot do; a GPU where the tier has none; no memory.
    """
    return SlotGpt2(folder, dtype, num_slots if kv_cache == "on" else 0, tiers.checked(device))


def _read_parameters(parameters: dict) -> tuple[int, bool]:
    wanted = {"max_tokens": "a whole number of at least 1", "ignore_eos": "true or false"}
    missing = [f"{name} ({what})" for name, what in wanted.items() if name not in parameters]
    if missing:
        raise CourseError(
            f"The request has no parameter {' and no parameter '.join(missing)}: send it as a request parameter."
        )
    max_tokens, ignore_eos = parameters["max_tokens"], parameters["ignore_eos"]
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise CourseError(f"max_tokens is {max_tokens!r}; it must be {wanted['max_tokens']}.")
    if not isinstance(ignore_eos, bool):
        raise CourseError(f"ignore_eos is {ignore_eos!r}; it must be {wanted['ignore_eos']}.")
    return max_tokens, ignore_eos


# The tutorial's way ---------------------------------------------------------------------------------------------------


class TutorialGpt2(Gpt2):
    """Computes every history in full at every step, padded on the left to the longest, in float32."""

    def __init__(self, folder: str | Path, device: str):
        super().__init__(folder, "float32", device)

    def step(self, sequences: list[Sequence]) -> None:
        import torch

        longest = max(len(sequence.token_ids) for sequence in sequences)
        padding = [longest - len(sequence.token_ids) for sequence in sequences]
        ids = [[self._end_id] * pads + sequence.token_ids for pads, sequence in zip(padding, sequences)]
        mask = [[0] * pads + [1] * (longest - pads) for pads in padding]
        device = self._model.device
        with torch.inference_mode():
            answers = self._model.generate(
                torch.tensor(ids, device=device),
                max_new_tokens=1,
                do_sample=False,
                attention_mask=torch.tensor(mask, device=device),
                pad_token_id=self._end_id,
            )
        for sequence, token in zip(sequences, answers[:, -1].tolist()):
            sequence.token_ids.append(token)


# With a KV cache ------------------------------------------------------------------------------------------------------


class SlotGpt2(Gpt2):
    """Computes prompts and single tokens in one forward pass, with a KV cache of `num_slots` rows; 0 for no cache.

    The tokens to compute stand one after the other, [tokens, width], whoever's they are: matrices and norms need not
    know. Only attention does. Sequences of which the cache holds all but the last token attend in one call over their
    slots, as far as the longest goes, behind a mask of their lengths; whole histories, each by itself.
    """

    def __init__(self, folder: str | Path, dtype: str, num_slots: int, device: str):
        super().__init__(folder, dtype, device)
        self.num_slots = num_slots
        self._network = Network(self._model)
        del self._model  # its matrices lie the other way round than `linear` wants them
        self._cache = self._empty_cache() if num_slots else None
        self._free = list(reversed(range(num_slots)))

    @property
    def num_used_slots(self) -> int:
        return self.num_slots - len(self._free)

    def join(self, sequence: Sequence) -> bool:
        if self._cache is None:
            return True
        if sequence.slot is None and self._free:
            sequence.slot = self._free.pop()
        return sequence.slot is not None

    def leave(self, sequence: Sequence) -> None:
        if sequence.slot is not None:
            self._free.append(sequence.slot)
            self._free.sort(reverse=True)  # the lowest is taken next: neighbours are read without a copy
            sequence.slot, sequence.num_cached = None, 0

    def step(self, sequences: list[Sequence]) -> None:
        import torch

        # Decoding first and by slot, as attention wants them.
        order = sorted(sequences, key=lambda sequence: (not sequence.num_cached, sequence.slot or 0))
        embeddings = self._network.embeddings
        with torch.inference_mode():
            batch = _Batch(order, self._network.num_heads, self.positions, embeddings.device, embeddings.dtype)
            attend = lambda layer, projected: self._attend(layer, batch, projected)
            tokens = self._network.likeliest(batch.ids, batch.positions, batch.last, attend).tolist()
        for sequence, token in zip(order, tokens):
            if self._cache is not None:
                sequence.num_cached = len(sequence.token_ids)
            sequence.token_ids.append(token)

    def _attend(self, layer: int, batch: _Batch, projected: torch.Tensor) -> torch.Tensor:
        """Compute the attention of every token to itself and those before it in its own sequence.

        Takes query, key and value, [tokens, 3, heads, head_dim], and gives [tokens, heads, head_dim].
        """
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        parts, number = [], len(batch.slots)
        if number:
            self._cache[layer, :, batch.slots, :, batch.positions[:number]] = projected[:number, 1:]
            # A view of the slots when they lie side by side, else a copy.
            keys, values = self._cache[layer][:, batch.rows, :, : batch.longest]
            parts.append(batch.attend_with_one_token(projected[:number, 0], keys, values))
        for start, end, slot in batch.whole:
            own = projected[start:end].permute(1, 2, 0, 3)[:, None]  # [3, 1, heads, tokens, head_dim]
            if slot is not None:
                self._cache[layer, :, slot, :, : end - start] = own[1:, 0]
            parts.append(scaled_dot_product_attention(*own, is_causal=True)[0].transpose(0, 1))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _empty_cache(self) -> torch.Tensor:
        """[layers, keys and values, slots, heads, positions, head_dim].

        Zeros and not whatever the memory holds: a masked position still enters the sums with weight 0, and 0 times NaN
        is NaN.
        """
        import torch

        network = self._network
        shape = (network.num_layers, 2, self.num_slots, network.num_heads, self.positions, network.head_dim)
        try:
            return torch.zeros(shape, dtype=network.embeddings.dtype, device=network.embeddings.device)
        except RuntimeError as error:  # out of memory, under two names
            raise CourseError(
                f"There is no memory for a KV cache of {self.num_slots} slots: set kv_cache_slots lower."
            ) from error


class _Batch:
    """The tensors of a forward pass: made once, used by every layer.

    `slots` and `_mask` ([sequences * heads, positions, 1], 0 or minus infinity) are of the sequences that decode, which
    come first; `whole` has start, end and slot of each other.
    """

    def __init__(self, sequences: list[Sequence], num_heads: int, num_positions: int, device, dtype):
        import torch

        decoding = [sequence for sequence in sequences if sequence.num_cached]
        ids, positions = [], []
        self.whole, last = [], []
        for sequence in sequences:
            new, start = sequence.token_ids[sequence.num_cached :], len(ids)
            ids += new
            positions += range(sequence.num_cached, len(sequence.token_ids))
            last.append(len(ids) - 1)
            if not sequence.num_cached:
                self.whole.append((start, len(ids), sequence.slot))
        self.ids, self.positions, self.last = (torch.tensor(values, device=device) for values in (ids, positions, last))
        self.slots = torch.tensor([sequence.slot for sequence in decoding], device=device, dtype=torch.long)
        if decoding:
            # In steps: each new length has the matrix kernels made anew, which takes longer than a few hidden tokens.
            longest = max(len(sequence.token_ids) for sequence in decoding)
            self.longest = min(-(-longest // LENGTH_STEP) * LENGTH_STEP, num_positions)
            first = decoding[0].slot
            are_neighbours = decoding[-1].slot - first == len(decoding) - 1
            self.rows = slice(first, first + len(decoding)) if are_neighbours else self.slots
            hidden = torch.arange(self.longest, device=device) > self.positions[: len(decoding), None]
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
            self._mask = mask.repeat_interleave(num_heads, 0)[:, :, None]

    def attend_with_one_token(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attention of one token a sequence.

        Takes query, [n, heads, head_dim], keys and values, [n, heads, positions, head_dim], and gives what `query` is.
        Keys times query, in this order: on a CPU it is four times as fast as `scaled_dot_product_attention`, which is
        made for many tokens.
        """
        import torch

        shape = query.shape
        scores = torch.baddbmm(self._mask, keys.flatten(0, 1), query.flatten(0, 1)[:, :, None], alpha=shape[-1] ** -0.5)
        return torch.bmm(scores.softmax(1).transpose(1, 2), values.flatten(0, 1)).view(shape)
