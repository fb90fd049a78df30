"""Data like a lesson's for every picture of the course: `FIGURES` has each at least once, by the function's name."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from inflight.lessons import (
    batchers,
    batching,
    capstone,
    iterative_gpt2,
    kv_cache,
    repository,
    serve,
    start_here,
)
from inflight.lessons.batchers.batch_run import Outcome
from inflight.lessons.capstone.service import BRIEF, Deployment, Served
from inflight.triton.telemetry import Statistics

RANDOM = np.random.default_rng(4)
NO_STATISTICS = Statistics(0, 0, 0, 0, pd.Series(dtype=int))
SLOTS, BLOCKS = 8, 40


# Lessons 04 and 05: an engine's iterations ----------------------------------------------------------------------------


def stays(lengths: list[int], is_static: bool, first_id: int = 1) -> pd.DataFrame:
    """Who sits when: each takes the first free slot, with static batching only when the batch before has ended."""
    rows, free_at = [], [1] * SLOTS
    for number, length in enumerate(lengths):
        if is_static and number % SLOTS == 0:
            free_at = [max(free_at)] * SLOTS
        slot = free_at.index(min(free_at))
        first = free_at[slot]
        rows.append((first_id + number, slot + 1, first, first + length - 1))
        free_at[slot] = first + length
    return pd.DataFrame(rows, columns=["request", "slot", "first", "last"])


ANSWERS = RANDOM.choice([8, 64, 256], 32, p=[0.6, 0.2, 0.2]).tolist()
STAYS = {"static (V1)": stays(ANSWERS, True), "in-flight": stays(ANSWERS, False, first_id=501)}


def iterations(number: int, holds: Callable[[int, int], int], requests: int, first_id: int) -> pd.DataFrame:
    """An iteration log in which `holds` tells the blocks of a request by iteration and request."""
    rows = []
    for iteration in range(1, number + 1):
        held = {request: holds(iteration, request) for request in range(requests)}
        paused = [request for request in held if request == 2 and 40 <= iteration < 60]
        running = {request: blocks for request, blocks in held.items() if blocks and request not in paused}
        rows.append({
            "iteration": iteration,
            "requests": [[first_id + request, 0, 1, blocks] for request, blocks in running.items()],
            "paused_ids": [first_id + request for request in paused],
            "paused": len(paused),
            "waiting": max(0, 5 - iteration // 15),
            "kv_blocks_used": sum(running.values()),
            "kv_blocks_max": BLOCKS,
        })  # fmt: skip
    return pd.DataFrame(rows)


def grows(iteration: int, request: int) -> int:
    begins = 12 * request
    return (iteration - begins) // 10 + 1 if begins < iteration <= begins + 60 else 0


LOGS = {
    "guaranteed_no_evict, 1,280 tokens": iterations(120, grows, 6, first_id=1),
    "max_utilization, 1,280 tokens": iterations(100, grows, 5, first_id=31),
    "nothing yet": iterations(2, grows, 2, first_id=1).iloc[:0],
}


IDLE = {
    title: pd.DataFrame({"iteration": log["iteration"], "promised": 2, "to_nobody": BLOCKS - log["kv_blocks_used"] - 2})
    for title, log in LOGS.items()
    if title.startswith("guar")
}


def requests(ms_a_token: float) -> pd.DataFrame:
    itl_ms = ms_a_token + RANDOM.uniform(0, 4, len(ANSWERS))
    waits_ms = RANDOM.uniform(200, 9000 / ms_a_token, len(ANSWERS))
    return pd.DataFrame({"output_len": ANSWERS, "latency_ms": np.array(ANSWERS) * itl_ms + waits_ms, "itl_ms": itl_ms})


# Lesson 06: batches ---------------------------------------------------------------------------------------------------


def outcome(instances: int, number: int = 24, rejected: int = 0) -> Outcome:
    """Requests that come every 10 ms; batches of three take 60 ms, on the instances in turn."""
    groups = [list(range(first, min(first + 3, number + 1))) for first in range(1, number + 1, 3)]
    table = pd.DataFrame(
        [
            (batch, batch % instances, 0.06 * batch, 0.06 * batch + 0.06, len(group), len(group), group)
            for batch, group in enumerate(groups, 1)
        ],
        columns=["execution", "instance", "start_s", "end_s", "size", "work", "requests"],
    )
    home = {request: row for row in table.itertuples() for request in row.requests}
    rows = [
        {
            "request": request,
            "sent_s": 0.01 * request,
            "priority": int(request > 20),
            "answered_s": home[request].end_s + (0.05 if request == 5 else 0.001) if request in home else 0.4,
            "outcome": "answered" if request in home else "rejected",
            "execution": home[request].execution if request in home else None,
        }
        for request in range(1, number + rejected + 1)
    ]
    frame = pd.DataFrame(rows).astype({"execution": "Int64"})
    frame["latency_ms"] = (frame["answered_s"] - frame["sent_s"]) * 1000
    return Outcome(frame, table, NO_STATISTICS)


RUNS = {"no batcher": outcome(1), "three instances": outcome(3, rejected=3), "now": outcome(2)}


# Lesson 08: streams ---------------------------------------------------------------------------------------------------


def tokens(streams: int, seconds_a_token: float, number: int = 48) -> pd.DataFrame:
    rows = [
        (stream, token, 0.1 * stream + seconds_a_token * token)
        for stream in range(1, streams + 1)
        for token in range(1, number + 1)
    ]
    return pd.DataFrame(rows, columns=["stream", "token", "time_s"])


# Lessons 00 to 03, and the lab GPU ------------------------------------------------------------------------------------

PATH = pd.DataFrame(
    [
        ("client", "travel", 0.0, 4.0),
        ("preprocessing", "text to tokens", 4.0, 9.0),
        ("preprocessing", "travel", 9.0, 11),
    ]
    + [("tensorrt_llm", "prompt", 11.0, 55.0)]
    + [("tensorrt_llm", "token", 55.0 + 18 * number, 72.0 + 18 * number) for number in range(12)]
    + [("postprocessing", "tokens to text", 73.0 + 18 * number, 75.0 + 18 * number) for number in range(12)]
    + [("client", "arrival", 77.0 + 18 * number, 77.0 + 18 * number) for number in range(12)],
    columns=["lane", "what", "start_ms", "end_ms"],
)
FILES = [f"{model}/{name}" for model in ("ensemble", "postprocessing", "preprocessing", "tensorrt_llm")
         for name in ("config.pbtxt", "1/model.py")]  # fmt: skip
EDGES = pd.DataFrame(
    [
        ("client", "preprocessing", "text_input", "QUERY", "STRING", (1,), False),
        ("client", "tensorrt_llm", "temperature", "temperature", "FP32", (1,), True),
        ("preprocessing", "tensorrt_llm", "INPUT_ID", "input_ids", "INT32", (-1,), False),
        ("tensorrt_llm", "postprocessing", "output_ids", "TOKENS_BATCH", "INT32", (-1, -1), False),
        ("postprocessing", "client", "OUTPUT", "text_output", "STRING", (-1,), False),
    ],
    columns=["source", "target", "output", "input", "data_type", "dims", "optional"],
)
PIECES = pd.DataFrame(
    [("one user, whole", 0, 1.2)]
    + [("one user, streamed", 0, 0.1 + 0.025 * number) for number in range(48)]
    + [("eight users, whole", user, 2.5 + 0.01 * user) for user in range(8)]
    + [("eight users, streamed", user, 0.2 + 0.01 * user + 0.05 * number) for user in range(8) for number in range(48)],
    columns=["case", "user", "time_s"],
)


# Lesson 09: runs of the service


def served(times_ms: float, itl_ms: float, settings: dict) -> Served:
    """Forty requests, whose first token takes about so long; where the queue is limited, some are refused."""
    draw = np.random.default_rng(round(times_ms))
    ttfts_ms, itls_ms = times_ms * draw.uniform(0.3, 1.2, 40), itl_ms * draw.uniform(0.6, 1, 40)
    table = pd.DataFrame({"ttft_ms": ttfts_ms, "itl_ms": itls_ms})
    table["error"] = "" if "max_queue_size" not in settings else np.where(np.arange(40) % 4, "", "The queue is full.")
    table.loc[table["error"] != "", ["ttft_ms", "itl_ms"]] = np.nan
    return Served(Deployment(**settings), table, BRIEF)


SERVED = {"default": served(5000, 60, {}), "shed": served(1400, 105, {"max_queue_size": 4})}

# A name may have a second sample, after a full stop.
FIGURES: dict[str, go.Figure] = {
    "batches": batchers.batches(RUNS),
    "kv_blocks": kv_cache.kv_blocks(LOGS, IDLE),
    "race": iterative_gpt2.race({"simple-gpt2": tokens(6, 0.03), "iterative-gpt2": tokens(6, 0.02)}, np.arange(6) / 10),
    "race.nothing yet": iterative_gpt2.race({"simple-gpt2": tokens(2, 0.03).iloc[:0]}, [0.0, 0.1]),
    "repository_map": repository.repository_map(FILES, EDGES),
    "request_map": start_here.request_map(PATH),
    "requests_in_time": capstone.requests_in_time(SERVED, BRIEF),
    "requests_in_time.no run yet": capstone.requests_in_time({}, BRIEF),
    "slot_map": batching.slot_map(STAYS, SLOTS),
    "slot_map.nobody yet": batching.slot_map({"in-flight": STAYS["in-flight"].iloc[:0]}, SLOTS),
    "token_timeline": serve.token_timeline(PIECES),
    "who_pays": batching.who_pays({"static": requests(8.4), "in-flight": requests(13.5)}),
}  # fmt: skip
