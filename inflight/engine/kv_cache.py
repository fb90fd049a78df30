"""Pages of the KV cache: which blocks are free, which sequence holds which, and which hold a prefix worth keeping.

A block has room for the keys and values of `tokens_per_block` tokens in every layer. A sequence holds a list of blocks
that need not be neighbours, as a process holds pages of memory. With reuse, a full block is kept under the tokens that
it and all blocks before it hold, so that a prompt that begins with the same tokens starts from there.
"""

from __future__ import annotations

from array import array


class BlockManager:
    """Hands out block numbers 0 … num_blocks − 1.

    Parameters
    ----------
    num_blocks : int
    tokens_per_block : int

    Attributes
    ----------
    num_reused : int
        Blocks found again instead of computed, counted since the start.
    """

    def __init__(self, num_blocks: int, tokens_per_block: int):
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self.num_reused = 0
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._num_holders = [0] * num_blocks
        self._block_of: dict[bytes, int] = {}  # prefix -> the block that holds its last tokens
        self._prefix_of: dict[int, bytes] = {}
        self._idle: dict[int, None] = {}  # blocks with a prefix that no sequence holds, the least recent first

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out; a kept prefix is given up when its block is needed."""
        return len(self._blank) + len(self._idle)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens of one sequence fill."""
        return -(-num_tokens // self.tokens_per_block)

    def grow(self, blocks: list[int], num_tokens: int) -> None:
        """Append free blocks to `blocks` until they hold `num_tokens` tokens; there must be as many."""
        while len(blocks) < self.blocks_for(num_tokens):
            block = self._blank.pop() if self._blank else self._forget_least_recent()
            self._num_holders[block] = 1
            blocks.append(block)

    def release(self, blocks: list[int]) -> None:
        """Take back every block of a sequence and empty its list."""
        for block in reversed(blocks):  # the end of a prefix is given up before its beginning
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                if block in self._prefix_of:
                    self._idle[block] = None
                else:
                    self._blank.append(block)
        blocks.clear()

    # Reuse ------------------------------------------------------------------------------------------------------------

    def keep(self, blocks: list[int], token_ids: list[int]) -> None:
        """Remember the full blocks of a sequence whose first `len(token_ids)` tokens have been computed."""
        for index in range(len(token_ids) // self.tokens_per_block):
            if blocks[index] not in self._prefix_of:
                prefix = self._prefix(token_ids, index)
                if prefix not in self._block_of:  # else a sequence beside this one computed the same: one is enough
                    self._block_of[prefix], self._prefix_of[blocks[index]] = blocks[index], prefix

    def find(self, blocks: list[int], token_ids: list[int]) -> int:
        """Fill the empty list `blocks` with kept blocks of the longest prefix of `token_ids`; return its tokens.

        The last token is never part of it: it has to be computed for what follows it.
        """
        for index in range((len(token_ids) - 1) // self.tokens_per_block):
            block = self._block_of.get(self._prefix(token_ids, index))
            if block is None:
                break
            self._idle.pop(block, None)
            self._num_holders[block] += 1
            blocks.append(block)
        self.num_reused += len(blocks)
        return len(blocks) * self.tokens_per_block

    def count_kept(self, token_ids: list[int]) -> int:
        """How many of `token_ids` `find` would find; nothing is changed."""
        for index in range((len(token_ids) - 1) // self.tokens_per_block):
            if self._prefix(token_ids, index) not in self._block_of:
                return index * self.tokens_per_block
        return (len(token_ids) - 1) // self.tokens_per_block * self.tokens_per_block

    def count_own(self, blocks: list[int]) -> int:
        """Blocks of a sequence that no other holds."""
        return sum(self._num_holders[block] == 1 for block in blocks)

    def _prefix(self, token_ids: list[int], index: int) -> bytes:
        """All tokens up to the end of block `index`: keys and values depend on every token before them."""
        return array("i", token_ids[: (index + 1) * self.tokens_per_block]).tobytes()

    def _forget_least_recent(self) -> int:
        block = next(iter(self._idle))
        del self._idle[block]
        del self._block_of[self._prefix_of.pop(block)]
        return block
