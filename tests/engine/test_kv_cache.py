"""Blocks: none is lost, none is shared by two that should not share it, a kept one holds what it is kept for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.engine.kv_cache import BlockManager

TOKENS_PER_BLOCK = 4
# Few tokens and lengths around a block's edge, so that prefixes often agree.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=18)
steps = st.lists(st.tuples(prompts, st.integers(0, 5)), min_size=1, max_size=40)


class Sequence:
    def __init__(self, tokens):
        self.tokens, self.blocks = tokens, []


def write(contents, sequence, start):
    """What the model does: keys and values of each token from `start` on depend on all tokens up to it."""
    for position in range(start, len(sequence.tokens)):
        contents[sequence.blocks[position // TOKENS_PER_BLOCK], position % TOKENS_PER_BLOCK] = tuple(
            sequence.tokens[: position + 1]
        )


@settings(derandomize=True, max_examples=200, deadline=None, database=None)
@given(steps=steps)
def test_a_sequence_always_reads_its_own_tokens(steps):
    manager, contents, running = BlockManager(8, TOKENS_PER_BLOCK), {}, []
    for tokens, num_leaving in steps:
        sequence = Sequence(tokens)
        if manager.blocks_for(len(tokens)) <= manager.num_free:
            start = manager.find(sequence.blocks, tokens)
            assert start < len(tokens)
            manager.grow(sequence.blocks, len(tokens))
            write(contents, sequence, start)
            for num_computed in (start + (len(tokens) - start) // 2, len(tokens)):  # a prompt in two parts
                manager.keep(sequence.blocks, tokens, num_computed)
            running.append(sequence)
        for other in running:
            for position in range(len(other.tokens)):
                held = contents[other.blocks[position // TOKENS_PER_BLOCK], position % TOKENS_PER_BLOCK]
                assert held == tuple(other.tokens[: position + 1])
        assert manager.num_used == len({block for other in running for block in other.blocks})
        for _ in range(min(num_leaving, len(running))):
            manager.release(running.pop(0).blocks)
    for other in running:
        manager.release(other.blocks)
    assert manager.num_free == 8


def test_what_was_used_least_recently_is_given_up_first():
    manager = BlockManager(3, TOKENS_PER_BLOCK)
    for token in (1, 2):
        blocks = []
        manager.grow(blocks, TOKENS_PER_BLOCK)
        manager.keep(blocks, [token] * TOKENS_PER_BLOCK, TOKENS_PER_BLOCK)
        manager.release(blocks)
    grown = []
    manager.grow(grown, 2 * TOKENS_PER_BLOCK)  # the blank block, then the older of the two kept ones
    assert manager.find([], [1] * 5) == 0
    assert manager.find([], [2] * 5) == TOKENS_PER_BLOCK
    assert manager.num_reused == 1


def test_the_end_of_a_prefix_is_given_up_before_its_beginning():
    manager, blocks = BlockManager(3, TOKENS_PER_BLOCK), []
    manager.grow(blocks, 3 * TOKENS_PER_BLOCK)
    manager.keep(blocks, list(range(12)), 12)
    manager.release(blocks)
    for left in (8, 4, 0):
        manager.grow(blocks, (12 - left) // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK)
        assert manager.count_kept(list(range(13))) == left


def test_what_is_kept_for_the_first_time_is_told_once():
    manager, one, beside, tokens = BlockManager(4, TOKENS_PER_BLOCK), [], [], list(range(8))
    for blocks in (one, beside):
        manager.grow(blocks, 8)
    assert [block for block, _ in manager.keep(one, tokens, 5)] == one[:1]
    assert [block for block, _ in manager.keep(one, tokens, 8)] == one[1:]
    assert manager.keep(beside, tokens, 8) == []


def test_a_block_is_a_sequences_own_while_no_other_holds_it():
    manager, one, other, tokens = BlockManager(4, TOKENS_PER_BLOCK), [], [], list(range(12))
    manager.grow(one, 12)
    manager.keep(one, tokens, 12)
    assert manager.count_own(one) == 3 and manager.find(other, tokens) == 8
    assert (manager.count_own(one), manager.count_own(other)) == (1, 0)
    manager.release(other)
    assert manager.count_own(one) == 3


def test_the_last_token_is_always_computed():
    manager, blocks = BlockManager(4, TOKENS_PER_BLOCK), []
    manager.grow(blocks, 8)
    manager.keep(blocks, list(range(8)), 8)
    assert manager.find([], list(range(8))) == 4
    assert manager.find([], list(range(9))) == 8


def test_adopted_blocks_are_found_and_nobody_holds_them():
    manager, filled, tokens = BlockManager(5, TOKENS_PER_BLOCK), [], list(range(17))
    with pytest.raises(ZeroDivisionError):
        manager.adopt(tokens, 2, b"", lambda blocks: 1 / 0)
    assert (manager.count_kept(tokens), manager.num_free) == (0, 5)
    assert manager.adopt(tokens, 2, b"", filled.extend) == 2
    assert (len(filled), manager.count_kept(tokens), manager.num_used) == (2, 8, 0)
    manager.grow(others := [], 2 * TOKENS_PER_BLOCK)
    assert manager.adopt(tokens, 9, b"", filled.extend) == 1  # it lacks two, and one is free
    assert manager.find(found := [], tokens) == 12 and found == filled
    assert manager.num_reused == 3 and not set(found) & set(others)
