"""Readers in the middle of their streams, and somebody's long prompt that arrives: what do the readers feel?

gaps, newcomer = send_while_others_read(client, prompt_ids)
gaps["gap_ms"].max(), newcomer.time_to_first_s
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pandas as pd

from inflight.bench import workload
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.errors import CourseError
from inflight.triton.client import Answer, Client

QUIET_TOKENS = 40  # what every reader has read when the prompt is sent
READERS_PROMPT_TOKENS = 16
LIMIT = re.compile(r"exceeds maximum input length \((\d+)\)")  # in the words of TensorRT-LLM, and of our engine


def prompts_that_fit(client: Client, input_lens: Sequence[int], tokenizer: ChatTokenizer) -> list[str]:
    """`workload.prompts_of` these lengths; where the engine takes only shorter ones, of as many tokens as it takes.

    That happens on a server that runs elsewhere, whose engine is its own; then a sentence says so.

    Raises
    ------
    CourseError
        The longest prompt is refused for another reason; or as `workload.prompts_of`.
    """
    prompts = workload.prompts_of(input_lens, tokenizer)
    longest = prompts[input_lens.index(max(input_lens))]
    try:
        client.ask_tokens(tokenizer.encode(tokenizer.chat(longest)), 1)
    except CourseError as error:
        found = LIMIT.search(str(error))
        if found is None:
            raise
        most = int(found[1])
        print(
            f"The engine at {client.url} takes prompts of at most {most:,} tokens: here the longest has so many, and "
            f"not {max(input_lens):,}.",
            file=sys.stderr,
        )
        prompts = workload.prompts_of([min(length, most) for length in input_lens], tokenizer)
    return prompts


def send_while_others_read(
    client: Client, prompt_ids: list[int], readers: int = 7, tokens: int = 140
) -> tuple[pd.DataFrame, Answer]:
    """Send a long prompt to a decoupled engine that is answering others.

    Parameters
    ----------
    prompt_ids : list of int
        The long prompt. The readers' own prompts are its first tokens.
    readers : int
        Streams that are under way.
    tokens : int
        Length of each reader's answer; more than `QUIET_TOKENS`.

    Returns
    -------
    gaps : DataFrame
        One row a token that a reader got, but the first: `reader`, `time_s` since the long prompt was sent (negative
        before), `gap_ms` since the reader's token before: the ITL.
    newcomer : Answer
        A few tokens that answer the long prompt; its `time_to_first_s` is its TTFT.

    Raises
    ------
    CourseError
        A request failed.
    """
    quiet = threading.Semaphore(0)

    def read(_: int) -> list[float]:
        times = []
        try:
            for _ in client.stream_tokens(prompt_ids[:READERS_PROMPT_TOKENS], tokens, end_id=-1):
                times.append(time.perf_counter())
                if len(times) == QUIET_TOKENS:
                    quiet.release()
        finally:
            if len(times) < QUIET_TOKENS:  # a reader that failed must not keep the newcomer waiting
                quiet.release()
        return times

    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(read, number) for number in range(readers)]
        for _ in reading:
            quiet.acquire()
        sent = time.perf_counter()
        newcomer = client.stream_tokens(prompt_ids, 4, end_id=-1).read()
    rows = [
        (reader, after - sent, (after - before) * 1000)
        for reader, times in enumerate(reading)
        for before, after in zip(times.result(), times.result()[1:])
    ]
    return pd.DataFrame(rows, columns=["reader", "time_s", "gap_ms"]), newcomer
