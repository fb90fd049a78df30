"""Pages of the KV cache: which blocks are free, and which sequence holds which.

A block has room for the keys and values of `tokens_per_block` tokens in every layer. A sequence holds a list of blocks
that need not be neighbours, as a process holds pages of memory.
"""

from __future__ import annotations


class BlockManager:
    """Hands out block numbers 0 … num_blocks − 1.

    Parameters
    ----------
    num_blocks : int
    tokens_per_block : int
    """

    def __init__(self, num_blocks: int, tokens_per_block: int):
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens of one sequence fill."""
        return -(-num_tokens // self.tokens_per_block)

    def can_grow(self, blocks: list[int], num_tokens: int) -> bool:
        return self.blocks_for(num_tokens) - len(blocks) <= len(self._free)

    def grow(self, blocks: list[int], num_tokens: int) -> None:
        """Append free blocks to `blocks` until they hold `num_tokens` tokens; ask `can_grow` first."""
        while len(blocks) < self.blocks_for(num_tokens):
            blocks.append(self._free.pop())

    def release(self, blocks: list[int]) -> None:
        """Take back every block of a sequence and empty its list."""
        self._free.extend(blocks)
        blocks.clear()
