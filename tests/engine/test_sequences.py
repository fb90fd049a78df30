"""What of a request the model computes: a prompt, an answer's next token, or an answer again after a pause."""

from dataclasses import replace

from inflight.engine.kv_cache import BlockManager
from inflight.engine.messages import Request
from inflight.engine.scheduler import Plan
from inflight.engine.sequences import Sequence, Sequences
from tests.engines import SMALL_BUILD

PER_BLOCK = SMALL_BUILD.tokens_per_block


def test_an_answer_that_is_computed_again_after_a_pause_counts_as_a_prompt_until_one_token_is_left():
    sequences = Sequences(BlockManager(8, PER_BLOCK), replace(SMALL_BUILD, max_seq_len=96), True, reuse=True)
    sequence = Sequence(1, Request(list(range(PER_BLOCK)), 60))
    sequences.add(sequence)
    assert len(sequences.now().waiting) == 1
    chunks = sequences.carry_out(Plan(admit=[1], compute={1: PER_BLOCK}))
    assert [chunk.is_context for chunk in chunks.values()] == [True]
    sequences.computed(sequence, PER_BLOCK)
    for token in (5, 6):
        sequence.add(token)
    sequences.carry_out(Plan(pause=[1]))
    assert (sequence.num_cached, sequences.blocks.num_used) == (0, 0)
    [again] = sequences.carry_out(Plan(admit=[1], compute={1: 1})).values()
    assert (again.num_past, again.token_ids, again.is_context, again.num_logits) == (PER_BLOCK, [5], True, 0)
    sequences.computed(sequence, 1)
    [last] = sequences.carry_out(Plan(compute={1: 1})).values()
    assert (last.num_past, last.token_ids, last.is_context, last.num_logits) == (PER_BLOCK + 1, [6], False, 1)
