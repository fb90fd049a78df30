"""A learner's quantizer makes a checkpoint, and one that makes no blocks leaves none."""

import pytest

from inflight import engine
from inflight.checkpoint import quantized
from inflight.checkpoint.weights import GgufFile
from inflight.engine import BuildConfig, Executor, Request
from inflight.errors import CourseError
from inflight.notebook.checks import parts


def test_the_courses_quantizer_makes_an_engine(small_checkpoint, tmp_path):
    """As a learner's does: a checkpoint is written with it, built, loaded, and answers."""
    own = quantized(small_checkpoint, parts.load("quantizer").quantize, tmp_path / "own.gguf")
    assert GgufFile(own.path).precision() == "W4"
    limits = {"max_batch_size": 4, "max_input_len": 48, "max_seq_len": 96, "max_num_tokens": 64}
    folder = engine.build(own, BuildConfig(**limits), tmp_path / "engine", tier="cpu")
    with Executor.load(folder) as executor:
        assert len(executor.generate(Request([5, 6, 7], 8)).token_ids) == 8


def test_a_quantizer_that_gives_no_blocks_leaves_no_checkpoint(small_checkpoint, tmp_path):
    with pytest.raises(CourseError, match=r"uint8 \[blocks, 20\]; of \d+ blocks this one made float32"):
        quantized(small_checkpoint, lambda blocks: blocks, tmp_path / "own.gguf")
    assert list(tmp_path.iterdir()) == []
