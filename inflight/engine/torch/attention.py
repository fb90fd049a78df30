"""Attention over a paged KV cache: every new token looks at all before it, wherever their blocks lie.

The cache of a layer is a tensor [blocks, tokens of a block, 2 × KV heads, head size]: a token's keys, then its values.
A sequence finds its tokens through its row of `Step.tables`, the list of its blocks. There are three ways over the same
cache; which one a machine has is found out when the engine is loaded, see `best`:

- FlashAttention, built into PyTorch, reads the blocks where they lie, and takes prompts and single tokens together.
- `flex_attention`, compiled for this GPU when the engine is loaded, reads them where they lie, for single tokens.
- Gathering copies each sequence's blocks into one piece for PyTorch's own attention. It is right everywhere, and the
  others are compared with it before they are used.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from inflight import cache as cache_folder

log = logging.getLogger("inflight.engine.torch.runner")

# Queries [tokens, heads, head size] and a layer's cache in, [tokens, heads, head size] out; the new tokens are in the
# cache already.
Attend = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Way = Callable[["Step"], Attend]
# How far a way may be from gathering, for numbers of about 1: some of the last digits that a type has.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
SPLITS = 8  # parts of a long sequence that `flex_attention` reads side by side
FLEX_ROWS = 128  # rows of queries that its mask is made for


@dataclass
class Step:
    """What is computed in an iteration: the new tokens of all sequences, in one row.

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
        The blocks of each sequence; what is behind its last block is never read.
    counts : list of int
        New tokens of each sequence.
    longest : int
        No sequence is longer.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    begins: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    counts: list[int]
    longest: int

    def to(self, device: torch.device | str) -> Step:
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return replace(self, **tensors)

    @property
    def is_decode(self) -> bool:
        """Whether every sequence has one new token."""
        return len(self.counts) == len(self.ids)


def split(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a layer's cache, each [blocks, tokens of a block, KV heads, head size]; nothing is copied."""
    keys, values = cache.chunk(2, dim=2)
    return keys, values


# Gathering ------------------------------------------------------------------------------------------------------------


def by_gathering(step: Step) -> Attend:
    """Attention over a copy of each sequence's blocks: of single tokens in one call, of each prompt in one."""
    if step.is_decode:
        return lambda queries, cache: _one_token_each(queries, cache, step.tables, step.lengths)
    single = [index for index, count in enumerate(step.counts) if count == 1]
    prompts = [index for index, count in enumerate(step.counts) if count > 1]
    begins, lengths = step.begins.tolist(), step.lengths.tolist()
    rows = step.begins[single].long()
    tables, their_lengths = step.tables[single], step.lengths[single]

    def attend(queries: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(queries)
        if single:
            out[rows] = _one_token_each(queries[rows], cache, tables, their_lengths)
        for index in prompts:
            own = slice(begins[index], begins[index + 1])
            out[own] = _one_prompt(queries[own], cache, step.tables[index], lengths[index])
        return out

    return attend


def _one_token_each(
    queries: torch.Tensor, cache: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Attention of the last token of each sequence, [sequences, heads, head size]."""
    gathered = cache[tables].flatten(1, 2).transpose(1, 2)  # [sequences, 2 × KV heads, tokens, head size]
    keys, values = gathered.chunk(2, dim=1)
    seen = torch.arange(keys.shape[2], device=lengths.device) < lengths[:, None]
    queries = queries[:, :, None]
    return scaled_dot_product_attention(queries, keys, values, attn_mask=seen[:, None, None], enable_gqa=True)[:, :, 0]


def _one_prompt(queries: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """Attention of one sequence's new tokens, the last of its `length`, to themselves and all before them."""
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
    """FlashAttention over the blocks. Its version in PyTorch takes blocks of a multiple of 256 tokens."""
    from torch.nn.attention.varlen import varlen_attn

    most_new = max(step.counts)

    def attend(queries: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        keys, values = split(cache)
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


# flex_attention -------------------------------------------------------------------------------------------------------


class FlexAttention:
    """`flex_attention` over the blocks for single tokens; an iteration with a prompt in it is gathered.

    The cache is to it one long row of keys. A mask of blocks names those that a sequence holds, and all of them are
    read as they are but the last, in which only so many tokens are the sequence's.

    Parameters
    ----------
    most_sequences : int
        Every call is made for so many, as each number would be compiled for; a sequence that is not there has no block.
    """

    def __init__(self, most_sequences: int):
        # What is compiled is kept for the next time, and read as code: not in a folder that others can write. Compiled
        # here, and not by processes of PyTorch's that outlive this one.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder.folder("compiled"))
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        from torch.nn.attention.flex_attention import flex_attention

        self._most_sequences = most_sequences
        self._compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def __call__(self, step: Step) -> Attend:
        if not step.is_decode:
            return by_gathering(step)
        number, missing = len(step.counts), self._most_sequences - len(step.counts)
        lengths, tables = pad(step.lengths, (0, missing)), pad(step.tables, (0, 0, 0, missing))
        masks: list = []

        def attend(queries: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
            if not masks:  # the same for every layer
                masks.append(self._mask(lengths, tables, *cache.shape[:2]))
            keys, values = (part.flatten(0, 1).transpose(0, 1)[None] for part in split(cache))
            attended = self._compiled(
                pad(queries, (0, 0, 0, 0, 0, missing)).contiguous()[:, :, None],
                keys,
                values,
                block_mask=masks[0],
                enable_gqa=queries.shape[1] != keys.shape[1],
                kernel_options={"SPLIT_KV": SPLITS},
            )
            return attended[:number, :, 0]

        return attend

    def _mask(self, lengths: torch.Tensor, tables: torch.Tensor, num_blocks: int, width: int):
        from torch.nn.attention.flex_attention import BlockMask

        counts = (lengths + width - 1) // width
        last = tables.gather(1, (counts - 1).clamp(min=0)[:, None].long())[:, 0]
        rest = lengths - (counts - 1) * width

        def belongs(sequence, head, query, place):
            return (place // width != last[sequence]) | (place % width < rest[sequence])

        return BlockMask.from_kv_blocks(
            kv_num_blocks=counts[:, None, None],
            kv_indices=tables[:, None, None],
            BLOCK_SIZE=(FLEX_ROWS, width),
            mask_mod=belongs,
            seq_lengths=(1, num_blocks * width),
            compute_q_blocks=False,
        )


# Which of them --------------------------------------------------------------------------------------------------------


def best(cache: torch.Tensor, num_heads: int, most_sequences: int, most_tokens: int) -> Way:
    """The best way over a cache that this device has, and that gives what gathering gives; the log says which.

    Parameters
    ----------
    cache : tensor
        That of one layer, not in use yet: what is compared is written into it, and removed again.
    most_sequences, most_tokens : int
        Most sequences in an iteration, and most tokens of one.
    """
    if cache.device.type == "cpu":
        log.info("attention: gathered, in %s on the CPU", cache.dtype)
        return by_gathering
    ways: dict[str, Callable[[], Way]] = {
        "FlashAttention": lambda: by_flash_attention,
        "flex_attention": lambda: FlexAttention(most_sequences),
    }
    return first_right(ways, cache, num_heads, most_sequences, most_tokens)


def first_right(
    ways: Mapping[str, Callable[[], Way]], cache: torch.Tensor, num_heads: int, most_sequences: int, most_tokens: int
) -> Way:
    """The first of `ways` that can be taken and gives what gathering gives; gathering, if none does."""
    reasons = []
    for name, make in ways.items():
        try:
            way = make()
            difference = distance(way, cache, num_heads, most_sequences, most_tokens)
        except Exception as error:  # a kernel that is not there, does not take these blocks, or cannot be compiled
            reasons.append(f"{name}: {(str(error).strip() or type(error).__name__).splitlines()[0][:200]}")
            continue
        finally:
            cache.zero_()
        if difference <= TOLERANCE[cache.dtype]:
            log.info("attention: %s, at most %.2g from gathering%s", name, difference, _because(reasons))
            return way
        reasons.append(f"{name}: {difference:.2g} from gathering")
    log.warning("attention: gathered, which copies the KV cache at every step%s", _because(reasons))
    return by_gathering


def _because(reasons: list[str]) -> str:
    return f" (not {'; not '.join(reasons)})" if reasons else ""


@torch.inference_mode()
def distance(way: Way, cache: torch.Tensor, num_heads: int, most_sequences: int, most_tokens: int) -> float:
    """Largest difference of a way from gathering, on random numbers: for single tokens, and for prompts beside them."""
    random = torch.Generator(cache.device).manual_seed(0)
    cache.normal_(generator=random)
    found = 0.0
    most = min(most_sequences, len(cache))
    for counts in ([1] * min(most, 4), [min(5, most_tokens), 1, 2][:most]):
        step = _example(cache, counts, most_tokens)
        queries = torch.empty(sum(counts), num_heads, cache.shape[3], dtype=cache.dtype, device=cache.device).normal_(
            generator=random
        )
        difference = (way(step)(queries, cache).float() - by_gathering(step)(queries, cache).float()).abs().max()
        found = max(found, difference.nan_to_num(torch.inf).item())
    return found


def _example(cache: torch.Tensor, counts: list[int], most_tokens: int) -> Step:
    """Sequences of several lengths, some of them in more than one block, that lie anywhere in the cache."""
    num_blocks, width = cache.shape[:2]
    most_blocks = -(-most_tokens // width)
    longest = min(most_tokens, num_blocks // len(counts) * width)
    lengths = [max(count, longest - index * (width // 2 + 1)) for index, count in enumerate(counts)]
    scattered = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
    tables = torch.zeros(len(counts), most_blocks, dtype=torch.int32)
    for row, length in zip(tables, lengths):
        for place in range(-(-length // width)):
            row[place] = scattered.pop()
    begins = torch.tensor([0, *counts]).cumsum(0).int()
    nothing = torch.zeros(sum(counts), dtype=torch.int32)
    step = Step(
        nothing, nothing, nothing, begins, torch.tensor(lengths, dtype=torch.int32), tables, counts, most_tokens
    )
    return step.to(cache.device)
