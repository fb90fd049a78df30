"""Measures where one request spends its time on its way from the client through the models and back.

    path = measure(server, client, "iterations.jsonl", "Name the capital of France.", max_tokens=32)

Three clocks are read: the client's, Triton's statistics of each model, and the engine's iteration log. Triton counts
how long a model's part took, not when it began; and `tensorrt_llm` answers from a thread of its own, so that Triton's
figure for it is the hand-over alone. Its work is taken from the iteration log, which has times of day. What none of the
three measures, on the way there and on the way back, remains.
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd

from inflight.errors import CourseError
from inflight.triton import telemetry
from inflight.triton.client.client import Answer, Client
from inflight.triton.client.connection import get_json
from inflight.triton.serving.server import Server

PARTS = ("preprocessing", "tensorrt_llm", "postprocessing")
LANES = ("client", *PARTS)
TIMEOUT_S = 10
REMAINS = "what remains"
# Each stage up to the first word -> the part of the path that it belongs to, and who measures its length.
STAGES = {
    "connecting, client → Triton": ("travel", REMAINS),
    "preprocessing": ("preprocessing", "Triton"),
    "hand-over to the engine": ("travel", "Triton"),
    "tensorrt_llm: the prompt": ("tensorrt_llm", "the engine"),
    "delivery, engine → client": ("travel", REMAINS),
    "postprocessing": ("postprocessing", "Triton, a mean"),
}
PART_OF = {stage: part for stage, (part, _) in STAGES.items()}


def measure(
    server: Server, client: Client, iteration_log: str | Path, text: str, max_tokens: int
) -> tuple[Answer, pd.DataFrame]:
    """Send one streamed request and say what happened when.

    Parameters
    ----------
    server : Server
        Serves the pipeline, decoupled, and nothing else meanwhile; `iteration_log` is its `iteration_log_path`.

    Returns
    -------
    Answer, DataFrame
        The answer, and one row a step: `lane` (one of `LANES`), `what` ("text to tokens", "hand-over", "prompt",
        "token", "tokens to text", "arrival"), `start_ms` and `end_ms` in milliseconds since the request was sent.
        Durations are measured; "text to tokens" is placed before the engine's first iteration, each "tokens to text"
        (of mean length) before the arrival of its piece.

    Raises
    ------
    CourseError
        The request failed; the server did not give its figures, or those of other requests are mixed in.
    """
    # Those of a request before this one are counted a moment after its answer.
    before = telemetry.settled(lambda: _statistics(server))
    sent = time.time()
    stream = client.stream(text, max_tokens)
    for _ in stream:
        pass

    def figures() -> tuple[dict, pd.DataFrame]:
        log = telemetry.iterations(iteration_log)
        return _statistics(server), log[log["timestamp"] >= sent]

    after, log = telemetry.wait_for(  # both are written a moment after the last word has left
        figures,
        lambda found: found[0]["ensemble"][0] > before["ensemble"][0] and found[1]["finished"].sum() > 0,
        f"The server wrote no figures about the request within {TIMEOUT_S} s. Look at its log.",
        TIMEOUT_S,
    )
    if after["ensemble"][0] - before["ensemble"][0] != 1:
        raise CourseError("Other requests ran at the same time. Measure again when the server has nothing else to do.")
    spent = {
        model: (after[model][1] - before[model][1]) / max(1, after[model][0] - before[model][0]) for model in PARTS
    }
    steps = _steps(log, spent, stream.answer, sent)
    return stream.answer, pd.DataFrame(steps, columns=["lane", "what", "start_ms", "end_ms"])


def first_word(path: pd.DataFrame) -> pd.DataFrame:
    """Split the time to the first word: one row a stage, `stage`, `ms` and `measured by`; the sum is the TTFT."""
    begins = path.groupby("what")["start_ms"].min()
    computed = path.loc[path["what"] == "prompt", "end_ms"].max()
    before, after = begins[["text to tokens", "hand-over", "prompt"]], begins[["tokens to text", "arrival"]]
    moments = [0.0, *before, computed, *after]
    return pd.DataFrame(
        {
            "stage": list(STAGES),
            "ms": [end - begin for begin, end in zip(moments, moments[1:])],
            "measured by": [by for _, by in STAGES.values()],
        }
    )


def _statistics(server: Server) -> dict[str, tuple[int, float]]:
    """Model -> requests it has finished, and milliseconds they took in all, waiting in its queue included."""
    rows = get_json(server.http_url, "/v2/models/stats")["model_stats"]
    return {
        row["name"]: (row["inference_stats"]["success"]["count"], row["inference_stats"]["success"]["ns"] / 1e6)
        for row in rows
    }


def _steps(log: pd.DataFrame, spent: dict, answer: Answer, sent: float) -> list[tuple]:
    begins = ((log["timestamp"] - sent) * 1000).tolist()
    engine = [(begin, begin + length) for begin, length in zip(begins, log["iteration_ms"])]
    handed = max(0.0, engine[0][0] - spent["tensorrt_llm"])
    tokenized = max(0.0, handed - spent["preprocessing"])
    steps = [
        ("preprocessing", "text to tokens", tokenized, handed),
        ("tensorrt_llm", "hand-over", handed, engine[0][0]),
    ]
    arrivals = [seconds * 1000 for seconds in answer.times_s]
    computed = 0.0
    for (begin, end), context_tokens in zip(engine, log["context_tokens"]):
        if context_tokens:
            computed = end = min(end, arrivals[0])  # two clocks: the wall's, and one that only goes forward
        steps.append(("tensorrt_llm", "prompt" if context_tokens else "token", begin, end))
    for arrival in arrivals:
        steps.append(("postprocessing", "tokens to text", max(computed, arrival - spent["postprocessing"]), arrival))
        steps.append(("client", "arrival", arrival, arrival))
    return steps
