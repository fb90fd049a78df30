"""Attention over a paged KV cache: every new token looks at all before it, wherever their blocks lie.

The cache of a layer is a tensor [blocks, tokens of a block, 2 × KV heads, head size]: a token's keys, then its values.
A sequence finds its tokens through its row of `Step.tables`, the list of its blocks. There are two kernels over the
same cache, of which `choose` picks one:

- Gathering copies each sequence's blocks into one piece for PyTorch's own attention. It is right everywhere.
- FlashAttention, built into PyTorch for GPUs, reads the blocks where they lie, and takes prompts and single tokens
  together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import scaled_dot_product_attention

# Queries [tokens, heads, head size] and a layer's cache in, [tokens, heads, head size] out; the new tokens are in the
# cache already.
Attend = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FLASH_BLOCK = 256  # tokens: FlashAttention takes blocks of a multiple of it


def choose(cache: torch.Tensor) -> Callable[[Step], Attend]:
    """Choose the attention over a layer's cache: FlashAttention where the GPU, the blocks and the numbers allow it."""
    is_flash = (
        cache.device.type == "cuda"
        and torch.cuda.get_device_capability(cache.device) >= (8, 0)
        and cache.shape[1] % FLASH_BLOCK == 0
        and cache.dtype in (torch.float16, torch.bfloat16)
    )
    return by_flash_attention if is_flash else by_gathering


@dataclass
class Step:
    """The input of an iteration: the new tokens of all sequences, in one row.

    Attributes
    ----------
    ids, positions, slots : int32 tensor [tokens]
        Each token, its place in its sequence, and where in the cache its key and value go: block × tokens of a block +
        place in the block.
    begins : int32 tensor [sequences + 1]
        Where the tokens of each sequence begin in that row.
    lengths : int32 tensor [sequences]
        Tokens of each sequence, the new ones among them.
    tables : int32 tensor [sequences, most blocks]
        The blocks of each sequence; entries after its last block are never read.
    logits_after : int64 tensor [rows of logits]
        The tokens after which logits are wanted.
    counts : list of int
        New tokens of each sequence.
    longest : int
        Upper bound of `lengths`.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    begins: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    logits_after: torch.Tensor
    counts: list[int]
    longest: int

    def to(self, device: torch.device | str) -> Step:
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return replace(self, **tensors)

    @property
    def is_decode(self) -> bool:
        """Whether every sequence has one new token, and logits are wanted after each."""
        return len(self.counts) == len(self.ids) == len(self.logits_after)


# Gathering ------------------------------------------------------------------------------------------------------------


def by_gathering(step: Step) -> Attend:
    """Compute attention over a copy of each sequence's blocks: one call for all single tokens, else one a sequence."""
    if step.is_decode:
        return lambda queries, cache: _one_token_each(queries, cache, step.tables, step.lengths)
    single = [index for index, count in enumerate(step.counts) if count == 1]
    several = [index for index, count in enumerate(step.counts) if count > 1]
    begins, lengths = step.begins.tolist(), step.lengths.tolist()
    rows = step.begins[single].long()
    tables, their_lengths = step.tables[single], step.lengths[single]

    def attend(queries: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(queries)
        if single:
            out[rows] = _one_token_each(queries[rows], cache, tables, their_lengths)
        for index in several:
            own = slice(begins[index], begins[index + 1])
            out[own] = _several_tokens(queries[own], cache, step.tables[index], lengths[index])
        return out

    return attend


def _one_token_each(
    queries: torch.Tensor, cache: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Compute the attention of the last token of each sequence, [sequences, heads, head size]."""
    gathered = cache[tables].flatten(1, 2).transpose(1, 2)  # [sequences, 2 × KV heads, tokens, head size]
    keys, values = gathered.chunk(2, dim=1)
    seen = torch.arange(keys.shape[2], device=lengths.device) < lengths[:, None]
    queries = queries[:, :, None]
    return scaled_dot_product_attention(queries, keys, values, attn_mask=seen[:, None, None], enable_gqa=True)[:, :, 0]


def _several_tokens(queries: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """Compute attention of one sequence's new tokens, the last of its `length`, to themselves and all before them.

    They are a prompt, a part of one, or an answer's latest token with its drafts.
    """
    blocks = table[: -(-length // cache.shape[1])]
    gathered = cache[blocks].flatten(0, 1)[:length].transpose(0, 1)  # [2 × KV heads, tokens, head size]
    keys, values = gathered[None].chunk(2, dim=1)
    num_new = len(queries)
    queries = queries.transpose(0, 1)[None]
    if num_new == length:
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    else:
        seen = torch.ones(num_new, length, dtype=torch.bool, device=queries.device).tril(length - num_new)
        # A head of keys for each of queries: with fewer, and a mask, PyTorch on a GPU writes every score to memory.
        groups = queries.shape[1] // keys.shape[1]
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
    return attended[0].transpose(0, 1)


# FlashAttention -------------------------------------------------------------------------------------------------------


def by_flash_attention(step: Step) -> Attend:
    """Compute FlashAttention over the blocks, in one call for sequences of any number of new tokens."""
    from torch.nn.attention.varlen import varlen_attn

    most_new = max(step.counts)

    def attend(queries: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        keys, values = cache.chunk(2, dim=2)  # each [blocks, tokens of a block, KV heads, head size]; nothing is copied
        return varlen_attn(
            queries,
            keys,
            values,
            step.begins,
            None,
            most_new,
            step.longest,
            window_size=(-1, 0),  # causal: the last query sees all keys
            enable_gqa=True,
            seqused_k=step.lengths,
            block_table=step.tables,
            num_splits=1,  # with more, versions of it give wrong rows where the cache is paged
        )

    return attend
