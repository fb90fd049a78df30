"""Pages of the KV cache: which blocks are free, which sequence holds which, and which hold a prefix worth keeping.

A block has room for the keys and values of `tokens_per_block` tokens in every layer. A sequence holds a list of blocks
that need not be neighbours, as a process holds pages of memory. With reuse, a full block is kept under its tokens and a
hash of all tokens before them, so that a prompt that begins with the same tokens starts from there. The hash begins
with a request's salt, so that prompts of two salts never meet.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import takewhile

# Content of a full block: the hash of all tokens before it, which its keys and values depend on, and its own tokens.
Content = tuple[bytes, bytes]


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
        self._content_of: dict[int, Content] = {}  # of each full block, those beside this one with the same included
        self._kept: dict[Content, int] = {}  # content -> the block to find it in; a hit compares the tokens
        self._idle: dict[int, None] = {}  # kept blocks that no sequence holds, the least recent first

    @property
    def num_free(self) -> int:
        """The number of blocks that can be handed out; a kept one is forgotten when it is needed."""
        return len(self._blank) + len(self._idle)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens of one sequence fill."""
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
                content = self._content_of.get(block)
                if content and self._kept.get(content) == block:
                    self._idle[block] = None
                else:
                    self._content_of.pop(block, None)
                    self._blank.append(block)
        blocks.clear()

    # Reuse ------------------------------------------------------------------------------------------------------------

    def keep(
        self, blocks: list[int], token_ids: list[int], num_computed: int, salt: bytes = b""
    ) -> list[tuple[int, Content]]:
        """Remember the full blocks of a sequence whose first `num_computed` tokens are computed; return new ones."""
        num_full = first_new = num_computed // self.tokens_per_block
        while first_new and blocks[first_new - 1] not in self._content_of:
            first_new -= 1
        before, new = _hash(self._content_of[blocks[first_new - 1]]) if first_new else salt, []
        for block, content in zip(blocks[first_new:], self._contents(token_ids, first_new, num_full, before)):
            self._content_of[block] = content
            # Where a sequence beside this one computed the same, one is enough.
            if self._kept.setdefault(content, block) == block:
                new.append((block, content))
        return new

    def find(self, blocks: list[int], token_ids: list[int], salt: bytes = b"") -> int:
        """Fill the empty list `blocks` with kept blocks of the longest prefix of `token_ids`; return its tokens.

        The last token is always left to compute, since its logits choose the next one.
        """
        for block in self._find(token_ids, salt):
            self._idle.pop(block, None)
            self._num_holders[block] += 1
            blocks.append(block)
        self.num_reused += len(blocks)
        return len(blocks) * self.tokens_per_block

    def count_kept(self, token_ids: list[int], salt: bytes = b"") -> int:
        """Return how many of `token_ids` `find` would find; nothing is changed, and any thread may ask."""
        kept = takewhile(self._kept.__contains__, self.findable(token_ids, salt))
        return sum(1 for _ in kept) * self.tokens_per_block

    def findable(self, token_ids: list[int], salt: bytes = b"") -> Iterator[Content]:
        """Yield the contents of the full blocks of a prompt that `find` looks for, in their order."""
        return self._contents(token_ids, 0, (len(token_ids) - 1) // self.tokens_per_block, salt)

    def adopt(self, token_ids: list[int], number: int, salt: bytes, fill: Callable[[list[int]], None]) -> int:
        """Let `fill` fill the next `number` blocks that a prompt lacks, or as many as are free; return how many.

        Then they are kept and nobody holds them: `find` finds them, and they are forgotten as others are.
        """
        held: list[int] = []
        num_kept = self.find(held, token_ids, salt) // self.tokens_per_block
        self.num_reused -= num_kept
        try:
            self.grow(held, (num_kept + min(number, self.num_free)) * self.tokens_per_block)
            fill(held[num_kept:])
            self.keep(held, token_ids, len(held) * self.tokens_per_block, salt)
            return len(held) - num_kept
        finally:
            self.release(held)

    def count_own(self, blocks: list[int]) -> int:
        """Count the blocks of a sequence that no other holds."""
        return sum(self._num_holders[block] == 1 for block in blocks)

    def _find(self, token_ids: list[int], salt: bytes) -> Iterator[int]:
        return (self._kept[content] for content in takewhile(self._kept.__contains__, self.findable(token_ids, salt)))

    def _contents(self, token_ids: list[int], first: int, end: int, before: bytes) -> Iterator[Content]:
        """Yield the content of a sequence's blocks `first` to `end` - 1; `before` is the hash of all earlier tokens."""
        for index in range(first, end):
            own = token_ids[index * self.tokens_per_block : (index + 1) * self.tokens_per_block]
            content = before, array("i", own).tobytes()
            yield content
            before = _hash(content)

    def _forget_least_recent(self) -> int:
        block = next(iter(self._idle))
        del self._idle[block]
        del self._kept[self._content_of.pop(block)]
        return block


def _hash(content: Content) -> bytes:
    """Hash all tokens up to the end of a block; cryptographically, since users choose what is hashed."""
    return sha256(b"".join(content)).digest()
