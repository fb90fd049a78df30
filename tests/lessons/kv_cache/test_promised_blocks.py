"""What `guaranteed_no_evict` has promised, worked out from an iteration log and the requests that made it."""

import pandas as pd

from inflight.bench.load import Run
from inflight.bench.trace_run import TraceRun
from inflight.lessons.kv_cache import promised_blocks

# Two requests, the first of which computes half of its prompt; 32 tokens a block, 10 blocks.
LOG = pd.DataFrame({
    "iteration": [1, 2, 3],
    "requests": [[[7, 20, 0, 2]], [[7, 0, 1, 2], [8, 33, 0, 2]], [[7, 0, 1, 2], [8, 0, 1, 2]]],
    "client_ids": [["b"], ["b", "a"], ["b", "a"]],
    "kv_blocks_free": [8, 6, 8],
    "tokens_per_block": [32] * 3,
})  # fmt: skip
REQUESTS = pd.DataFrame({"request_id": ["a", "b"], "input_len": [33, 40], "max_tokens": [100, 30]})


def test_what_is_idle_is_promised_or_not():
    # Each request is found by its name: 40 + 30 tokens are 3 blocks, 33 + 100 are 5.
    idle = promised_blocks.idle(TraceRun(Run(REQUESTS, 0.0), LOG))
    assert idle.to_dict("list") == {"iteration": [1, 2, 3], "promised": [1, 4, 4], "to_nobody": [7, 2, 4]}
