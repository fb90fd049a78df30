"""Lab 03: what a reader feels, an answer that is ended early, and how many readers fit."""

import math
import random
from collections.abc import Callable, Iterator

import pandas as pd

from inflight.notebook.grading.checker import grades
from inflight.notebook.grading.finding import NOT_YET, Finding
from inflight.triton.client import Answer, Stream


@grades("3.1", "TTFT and ITL are two promises: a service may keep one and break the other, and one mean shows neither.")
def _felt(felt: Callable, _choose: random.Random) -> dict[str, Finding] | Finding:
    findings: dict[str, Finding] = {}
    for times_s in ([0.25, 0.3, 0.5, 0.8], [0.05, 0.06], [0.4]):
        answer, got = Answer(["word"] * len(times_s), times_s), felt(times_s)
        if got is None:
            return NOT_YET
        gaps = answer.inter_token_s
        right = {"ttft_ms": answer.time_to_first_s * 1000, "itl_ms": sum(gaps) / len(gaps) * 1000 if gaps else None,
                 "end_to_end_ms": answer.latency_s * 1000, "tokens_per_s": len(times_s) / answer.latency_s}  # fmt: skip
        for name, value in right.items():
            findings[name] = findings.get(name) or _felt_so(times_s, name, got, value)
    return findings


def _felt_so(times_s: list[float], name: str, got: dict, value: float | None) -> Finding:
    if name not in got:
        return f"The key {name!r} is missing."
    if value is None and got[name] is not None:
        return f"An answer of one piece has no gaps, so {name} is None; yours is {got[name]}."
    if value is not None and (got[name] is None or not math.isclose(got[name], value, rel_tol=1e-6)):
        return f"For times_s = {times_s}, {name} is {got[name]}. Look at its unit and where it is counted from."
    return None


@grades("3.2", "Who stops reading should say so: a request that nobody ends keeps its slot to the last token.")
def _read_until(read_until: Callable, _choose: random.Random) -> dict[str, Finding] | Finding:
    findings: dict[str, Finding] = {"the text": None, "the end of the request": None}
    for pieces, word, wanted in ((["The", " city", " is", " Par", "is", ".", " It", " lies"], "Paris", 5),
                                 (["Rome", " and", " Paris"], "Rome", 1),
                                 (["No", " idea", "."], "Paris", 3)):  # fmt: skip
        given: list[str] = []
        source = _noting(pieces, given)
        text = read_until(Stream(source), word)
        if text is None:
            return NOT_YET
        if text != "".join(pieces[:wanted]):
            findings["the text"] = f"From the pieces {pieces} and the word {word!r} your function returned {text!r}."
        if len(given) > wanted or next(source, None) is not None:
            findings["the end of the request"] = "The request was not ended: the server would go on to the last token."
    return findings


def _noting(pieces: list[str], given: list[str]) -> Iterator[str]:
    """`pieces` one by one, each noted in `given` when it is taken."""
    for piece in pieces:
        given.append(piece)
        yield piece


@grades("3.3", "Beyond the slots it is the first word that waits: who has a slot is served as before.")
def _readers_that_fit(
    answer: tuple[Callable, str | None], _choose: random.Random
) -> dict[str, Finding | Callable[[], Finding]]:
    readers_that_fit, worse = answer
    return {
        "readers_that_fit": lambda: _fits(readers_that_fit),
        "what gets worse": NOT_YET
        if worse is None
        else None
        if worse == "TTFT"
        else "Compare the rows for 8 and 16 readers: which column grows more?",
    }


def _fits(readers_that_fit: Callable) -> Finding:
    choose = random.Random(3)
    for _ in range(20):
        rows = [(number, choose.uniform(50, 400), choose.uniform(5, 40)) for number in (1, 2, 4, 8, 16)]
        max_ttft_ms, max_itl_ms, right = choose.uniform(200, 400), choose.uniform(20, 40), 0
        for number, ttft_ms, itl_ms in rows:
            if ttft_ms > max_ttft_ms or itl_ms > max_itl_ms:
                break
            right = number
        choose.shuffle(rows)
        table = pd.DataFrame(rows, columns=["readers", "ttft_ms", "itl_ms"])
        got = readers_that_fit(table, max_ttft_ms, max_itl_ms)
        if got is None:
            return NOT_YET
        if got != right:
            return (f"With {max_ttft_ms:.0f} and {max_itl_ms:.0f} ms promised, {right} readers fit into this table, "
                    f"and you say {got}: {table.round().astype(int).to_dict('records')}.")  # fmt: skip
    return None
