"""The dashboard of the lesson: who holds which blocks, under each policy."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import ipywidgets

from inflight.bench.workload import TimedRequest
from inflight.engine.scheduler import POLICIES
from inflight.lessons.kv_cache import promised_blocks
from inflight.lessons.kv_cache.charts import kv_blocks, kv_blocks_summary
from inflight.notebook.widgets.dashboard import Dashboard, Frame
from inflight.notebook.widgets.live_runs import Runs
from inflight.triton.serving.server import Server

PROMISES = "guaranteed_no_evict"  # the policy under which idle blocks may be promised


def board(server: Server, requests: list[TimedRequest], log_path: str | Path) -> Dashboard:
    """Choose policy and size of the KV cache: the config is edited, the model loaded again, and the blocks drawn.

    The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `ensemble` on an engine whose `max_seq_len` is at most 768.
    requests : list of TimedRequest
        What each run sends.
    log_path : path
        The engine's iteration log.
    """
    runs, before = Runs(log_path), ""  # the policy of the run before

    def work(server: Server, policy: str, cache_tokens: int) -> Generator[Frame, None, None]:
        nonlocal before
        for so_far in runs.next(
            server,
            f"{policy}, {cache_tokens:,} tokens",
            requests,
            batch_scheduler_policy=policy,
            max_tokens_in_paged_kv_cache=cache_tokens,
        ):
            logs = {title: run.log for title, run in so_far.items()}
            policies = zip(so_far.items(), [before, policy][-len(so_far) :])
            whole = [item for item, made_with in policies if made_with == PROMISES and len(item[1].requests)]
            idle = {title: promised_blocks.idle(run) for title, run in whole}
            yield Frame(kv_blocks(logs, idle), kv_blocks_summary(logs, idle))
        before = policy

    controls = {
        "policy": ipywidgets.Dropdown(
            options=list(POLICIES), value="max_utilization", description="batch_scheduler_policy"
        ),
        "cache_tokens": ipywidgets.IntSlider(
            768, 768, 2048, 128, description="max_tokens_in_paged_kv_cache", continuous_update=False
        ),
    }
    return Dashboard(controls, work, server, "Policies: who holds which blocks")
