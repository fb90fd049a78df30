"""What `guaranteed_no_evict` has promised, worked out from an iteration log and the requests that made it."""

import pandas as pd
import pytest

from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.lessons.kv_cache import promised_blocks

# Two requests, the second of which came first in the list of three; 32 tokens a block, 10 blocks.
LOG = pd.DataFrame({
    "iteration": [1, 2, 3],
    "requests": [[[7, 40, 0, 2]], [[7, 0, 1, 2], [8, 33, 0, 2]], [[7, 0, 1, 2], [8, 0, 1, 2]]],
    "kv_blocks_free": [8, 6, 8],
    "tokens_per_block": [32] * 3,
})  # fmt: skip
REQUESTS = [TimedRequest("a", 100, 0, 33), TimedRequest("b", 30, 0, 40)]


def test_what_is_idle_is_promised_or_not():
    # Each request is found by its prompt: 40 + 30 tokens are 3 blocks, 33 + 100 are 5.
    idle = promised_blocks.idle(LOG, REQUESTS)
    assert idle.to_dict("list") == {"iteration": [1, 2, 3], "promised": [1, 4, 4], "to_nobody": [7, 2, 4]}


def test_a_log_of_other_requests_is_told():
    with pytest.raises(CourseError, match="a prompt of 40 tokens that is none of these requests'"):
        promised_blocks.idle(LOG, REQUESTS[:1])
