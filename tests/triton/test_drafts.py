"""Drafts in the running server: by the engine's lookup, or by a learner's; the log and /metrics tell of them."""

import pytest

from inflight.errors import CourseError
from inflight.triton import repository, telemetry
from inflight.triton.serving.server import Server
from tests.engines import ask_tokens, metric, wait_until

pytestmark = pytest.mark.server

CONFIG = {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2}
ZEROS = "class Drafter:\n    def propose(self, token_ids, k):\n        return [0] * k\n"
PROMPT = [5, 6, 7, 8] * 8


def test_they_take_effect_at_a_load_and_leave_the_answer_as_it_is(small_engine, tmp_path):
    log, own = tmp_path / "log.jsonl", tmp_path / "mine.py"
    repo = repository.assemble(tmp_path / "repo", small_engine, iteration_log_path=log)
    answers, sums = [], []
    with Server(repo, drain_s=0) as server:
        for setting in ({}, {"speculative_config": CONFIG}, {"drafter_path": own}):
            own.write_text(ZEROS)
            server.load("tensorrt_llm", **setting)
            start = log.stat().st_size if log.exists() else 0
            answers.append(ask_tokens(server, PROMPT, 40))
            sums.append(telemetry.iterations(log, start)[["rows", "drafted", "accepted"]].sum())
        drafted = lambda: metric(server, "nv_trt_llm_general_metrics", general_type="drafted")
        wait_until(lambda: drafted() == sums[2]["drafted"], "/metrics has what was drafted since the load")
        own.write_text(ZEROS.replace("* k", "* (k + 1)"))
        server.load("tensorrt_llm", drafter_path=own)
        with pytest.raises(CourseError, match=r"mine.py, line 2: propose\(\) gave \[0"):
            ask_tokens(server, PROMPT, 40)
        with pytest.raises(CourseError, match="must be NGram"):
            server.load("tensorrt_llm", speculative_config={"decoding_type": "Medusa"})
    assert answers[0] == answers[1] == answers[2]
    off, lookup, zeros = sums
    assert (off["rows"], off["drafted"], off["accepted"]) == (40, 0, 0)
    for sum_ in (lookup, zeros):
        assert sum_["rows"] >= 40 - sum_["accepted"] + sum_["drafted"]  # padding is computed, too
