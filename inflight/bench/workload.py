"""What is sent, how long an answer is asked for, and when: a list of requests.

    requests = trace("mild", tokenizer)                                         # a named set, in one burst
    requests = from_dataset(read_dataset(), tokenizer, limit=50)                # articles to be summarized
    requests = with_times(requests, poisson(len(requests), rate=4.0, seed=0))

`Traffic` is the same as the options of `inflight bench load` and `inflight bench sweep` name it.
"""

from __future__ import annotations

import io
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path

import pandas as pd

from inflight import files
from inflight.bench.dataset import MINI_CNN_EVAL, Record, fitting, input_len, read_dataset
from inflight.bench.names import TRACE_FILES, TRACES
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.engine.config import BuildConfig
from inflight.errors import CourseError
from inflight.paths import ASSETS, cache_dir

TOPICS = ("rivers", "bridges", "clouds", "chess", "bread", "maps", "bees", "trains")
TRACE_GAP_S = 0.005  # threads that all send at the same moment overtake each other
NUMBERS = itertools.count(1)  # for openings: none comes twice in a process, so that no prompt does
OPENING_WORDS = 5  # have at least as many tokens as a number of four digits with its colon
PASSAGE = (
    "The old train leaves the small station at seven in the morning and follows the river to the sea. On the way it "
    "stops at a market where people sell bread, apples and flowers. Children look out of the window and count the "
    "bridges, while their parents read a book or talk about the weather."
)
SYSTEM_PROMPT = "You answer for a railway company, politely and in a few words. What you know of it:"

# Columns of a trace file: those of the public Azure LLM inference traces, and of a run's own CSV.
AZURE, RECORDED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ("sent_s", "input_len", "output_len")
MOST_TRACE_BYTES, MOST_TRACE_ROWS = 1 << 30, 200_000  # the public week of 2024 has some 700 MB a file
MOST_TOKENS = 1 << 20  # more than any model's positions


@dataclass(frozen=True)
class TimedRequest:
    """One request of a workload.

    Attributes
    ----------
    text : str
        What the user types.
    max_tokens : int
        Tokens of the answer.
    at_s : float
        When to send it, in seconds after the start of the run.
    input_len : int
        Tokens of the prompt as the engine gets it, chat template included.
    """

    text: str
    max_tokens: int
    at_s: float
    input_len: int


def from_dataset(
    records: list[Record], tokenizer: ChatTokenizer, max_input_len: int | None = None, limit: int | None = None
) -> list[TimedRequest]:
    """Requests for the records that `dataset.fitting` leaves, all at the start; CourseError as there."""
    return [
        TimedRequest(record.prompt, record.output_len, 0.0, input_len(record.prompt, tokenizer))
        for record in fitting(records, tokenizer, max_input_len, limit)
    ]


def trace(name: str, tokenizer: ChatTokenizer, seed: int = 0, num_requests: int | None = None) -> list[TimedRequest]:
    """A named set of requests in one burst: short prompts of about equal length, answers of very different lengths.

    Each comes TRACE_GAP_S after the one before, so that they reach the engine in their order. "mild" has 32 requests,
    "skewed" 48, where one answer in nine is 32 times as long as most; `num_requests` asks for more of the same, or
    fewer.

    Raises
    ------
    CourseError
        The name is not in TRACES.
    """
    if name not in TRACES:
        raise CourseError(f"There is no trace {name}: give {' or '.join(TRACES)}.")
    default_number, lengths = TRACES[name]
    number = default_number if num_requests is None else num_requests
    check_number(number)
    choose = random.Random(seed)
    prompts = [f"Tell me {index + 2} facts about {TOPICS[index % len(TOPICS)]}." for index in range(number)]
    return [
        TimedRequest(prompt, choose.choice(lengths), index * TRACE_GAP_S, input_len(prompt, tokenizer))
        for index, prompt in enumerate(prompts)
    ]


# Texts ----------------------------------------------------------------------------------------------------------------


def count_tokens(tokenizer: ChatTokenizer, text: str) -> int:
    """Tokens into which the tokenizer cuts a text, without any that it would put before or after it."""
    return len(tokenizer.encode(text, add_special_tokens=False))


def prompts_of(input_lens: Sequence[int], tokenizer: ChatTokenizer) -> list[str]:
    """Prompts in plain words, each different, of exactly the given numbers of tokens as the engine gets them.

    Raises
    ------
    CourseError
        A length is less than the chat template and one word take.
    """
    return [_prompt_of(length, f"Story {number}:", tokenizer) for number, length in enumerate(input_lens, start=1)]


def _prompt_of(length: int, opening: str, tokenizer: ChatTokenizer) -> str:
    shortest = input_len("a", tokenizer)
    if length < shortest:
        raise CourseError(f"A prompt of {length} tokens cannot be made: with the chat template a word has {shortest}.")
    # A word is a token or more, so `length` words are enough; the most that fit are found by halving.
    passage = PASSAGE.split()
    words = [*opening.split(), *passage * (length // len(passage) + 1)]
    fits, too_many = 0, length
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if input_len(" ".join(words[:middle]), tokenizer) <= length:
            fits = middle
        else:
            too_many = middle
    words = words[:fits]
    # The next word may have had several tokens; single letters fill the rest, one token each.
    words += ["a"] * (length - input_len(" ".join(words), tokenizer))
    if input_len(" ".join(words), tokenizer) != length:
        raise CourseError(f"No prompt of exactly {length} tokens could be made with this tokenizer: try one more.")
    return " ".join(words)


def with_system_prompt(requests: Sequence[TimedRequest], tokens: int, tokenizer: ChatTokenizer) -> list[TimedRequest]:
    """The same requests, each with one and the same text of `tokens` tokens, or one less, before its own.

    An engine that keeps the KV cache blocks of earlier prompts (`enable_kv_cache_reuse`) computes that text once.
    """
    words = [*SYSTEM_PROMPT.split(), *itertools.islice(itertools.cycle(PASSAGE.split()), tokens)]
    ids = tokenizer.encode(" ".join(words), add_special_tokens=False)
    shared = tokenizer.decode(ids[:tokens])
    texts = [f"{shared}\n\n{request.text}" for request in requests]
    return [replace(request, text=text, input_len=input_len(text, tokenizer)) for request, text in zip(requests, texts)]


def alike_until(texts: Iterable[str]) -> int:
    """How many characters all texts begin with; none where there is but one text, once or several times."""
    different = set(texts)
    if len(different) < 2:
        return 0
    pairs = enumerate(zip(min(different), max(different)))  # what these two share, those between them do
    return next((place for place, (one, other) in pairs if one != other), len(min(different)))


def opening(text: str, number: int, shared: int = 0) -> str:
    """`text` with a number in place of its first words, so that no prompt of another number begins like it.

    It has no more tokens than before, unless it has hardly any words.

    Parameters
    ----------
    shared : int
        Characters that come before the number, and stay: what prompts share on purpose.
    """
    words = text[shared:].split(maxsplit=OPENING_WORDS)
    rest = words[-1] if len(words) > OPENING_WORDS else text[shared:]
    return f"{text[:shared]}{number}: {rest}"


def repeated(requests: list[TimedRequest], number: int, tokenizer: ChatTokenizer) -> list[TimedRequest]:
    """`number` requests: the given ones again and again, each time with another opening, after what all begin with.

    So no prompt comes twice, in this list or in another, and an engine that keeps what it computed of prompts finds
    none again but for what they share.
    """
    shared = alike_until(request.text for request in requests)
    found: list[TimedRequest] = []
    while len(found) < number:
        turn = next(NUMBERS)
        for request in requests[: number - len(found)]:
            text = opening(request.text, turn, shared)
            found.append(replace(request, text=text, input_len=input_len(text, tokenizer)))
    return found


# Arrivals: seconds after the start of the run, the first at 0 ---------------------------------------------------------


def constant(number: int, rate: float) -> list[float]:
    """`rate` requests a second at equal distances."""
    check_number(number)
    check_rate(rate)
    return [index / rate for index in range(number)]


def poisson(number: int, rate: float, seed: int) -> list[float]:
    """`rate` requests a second on average, independent of one another: exponential gaps."""
    check_number(number)
    check_rate(rate)
    draw = random.Random(seed)
    return list(accumulate((draw.expovariate(rate) for _ in range(number - 1)), initial=0.0))


def gamma(number: int, rate: float, cv: float, seed: int = 0) -> list[float]:
    """`rate` requests a second on average, in bursts or more evenly: gaps from a gamma distribution.

    Parameters
    ----------
    cv : float
        Coefficient of variation of the gaps, their standard deviation over their mean: 1 is a Poisson process, above 1
        requests come in bursts with long pauses between, below 1 they come more evenly.
    """
    check_number(number)
    check_rate(rate)
    if not 0.1 <= cv <= 20:
        raise CourseError(
            f"The coefficient of variation is {cv:g}; it must be from 0.1 (nearly even) to 20, where 1 is a Poisson "
            "process."
        )
    shape, draw = cv**-2, random.Random(seed)
    gaps = (draw.gammavariate(shape, 1 / (shape * rate)) for _ in range(number - 1))
    return list(accumulate(gaps, initial=0.0))


def with_times(requests: Sequence[TimedRequest], times: Sequence[float]) -> list[TimedRequest]:
    """The same requests, sent at `times`, in seconds after the start of the run."""
    return [replace(request, at_s=at_s) for request, at_s in zip(requests, times, strict=True)]


def check_number(number: int) -> None:
    """CourseError for less than one request."""
    if number < 1:
        raise CourseError(f"The number of requests is {number}; it must be at least 1.")


def check_rate(rate: float) -> None:
    """CourseError for a rate that is none."""
    if not (math.isfinite(rate) and rate > 0):
        raise CourseError(f"The rate is {rate} requests a second; it must be above 0.")


# Trace files ----------------------------------------------------------------------------------------------------------


def find_trace(name: str) -> Path:
    """The file that `name` names: a path, or a name of `TRACE_FILES` (the small one ships with the course).

    Raises
    ------
    CourseError
        There is no such file; for one of the public ones the message says where it is to be had.
    """
    path = Path(name).expanduser()
    if name not in TRACE_FILES:
        if path.exists():
            return path
        raise CourseError(f"There is no trace file {name}: give the path of a CSV file, or {' or '.join(TRACE_FILES)}.")
    places = [folder / TRACE_FILES[name] for folder in (ASSETS / "datasets", cache_dir() / "traces")]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise CourseError(
            f"The trace {name} is not on this machine: download {TRACE_FILES[name]} from "
            f"https://github.com/Azure/AzurePublicDataset, folder data, to {places[-1].parent}, or give its path."
        )
    return found


def read_trace(path: str | Path) -> pd.DataFrame:
    """Arrivals and lengths: `at_s` (seconds after the first), `input_len`, `output_len`, in the order of arrival.

    The file's columns are those of the public Azure LLM inference traces (TIMESTAMP, a date with its time or a plain
    number of seconds; ContextTokens; GeneratedTokens), or those of a run's own CSV (sent_s, input_len, output_len).
    Requests without an answer are left out.

    Raises
    ------
    CourseError
        It cannot be read, is no CSV, lacks a column, or a value is not in its range: the message names the line.
    """
    path = Path(path).expanduser()
    fix = f"Give a CSV file with the columns {', '.join(AZURE)}."
    content = files.read_bytes(path, "trace", MOST_TRACE_BYTES, fix)
    try:
        table = pd.read_csv(io.BytesIO(content), index_col=False, nrows=MOST_TRACE_ROWS)
    except ValueError as error:  # the parser's own and the decoder's are ValueErrors
        raise CourseError(f"The trace {path} is not a CSV file ({str(error).splitlines()[0]}). {fix}") from error
    names = RECORDED if set(RECORDED) <= set(table) else AZURE
    if missing := [name for name in names if name not in table]:
        raise CourseError(f"The trace {path} has no column {missing[0]}. {fix}")
    rows = table[list(names)].set_axis(["at_s", "input_len", "output_len"], axis=1)
    rows = rows.assign(output_len=_numbers(rows["output_len"], 0, path))
    rows = rows[rows["output_len"] > 0]
    if rows.empty:
        raise CourseError(f"The trace {path} has no request with an answer: give one that has some.")
    rows = rows.assign(input_len=_numbers(rows["input_len"], 1, path), at_s=_seconds(rows["at_s"], path))
    rows = rows.sort_values("at_s", kind="stable", ignore_index=True)
    return rows.assign(at_s=rows["at_s"] - rows["at_s"].iloc[0])


def _numbers(texts: pd.Series, least: int, path: Path) -> pd.Series:
    numbers = pd.to_numeric(texts, errors="coerce")
    bad = ~(numbers.between(least, MOST_TOKENS) & (numbers % 1 == 0))
    if bad.any():
        line = int(bad.idxmax())  # the header is line 1
        raise CourseError(
            f"In line {line + 2} of the trace {path}, the {texts.name} is {str(texts[line])[:40]}, which is not a "
            f"whole number from {least} to {MOST_TOKENS:,}: correct or remove it."
        )
    return numbers.astype(int)


def _seconds(texts: pd.Series, path: Path) -> pd.Series:
    seconds = pd.to_numeric(texts, errors="coerce")
    if seconds.isna().any():
        moments = pd.to_datetime(texts.astype(str), format="ISO8601", utc=True, errors="coerce")
        seconds = (moments - moments.min()).dt.total_seconds()
    bad = ~seconds.map(math.isfinite)
    if bad.any():
        line = int(bad.idxmax())
        raise CourseError(
            f"In line {line + 2} of the trace {path}, the time is {str(texts[line])[:40]!r}, which is neither a date "
            "with a time of day nor a number of seconds: correct or remove it."
        )
    return seconds


def from_trace(
    name: str, tokenizer: ChatTokenizer, build: BuildConfig, tell: Callable[[str], None] = lambda sentence: None
) -> list[TimedRequest]:
    """Requests at the times and of the lengths of a trace file; what is asked is plain words.

    Those that are longer than the engine takes are left out, and those shorter than the chat template with a word are
    lengthened to it: `tell` is called with a sentence then.

    Raises
    ------
    CourseError
        As `find_trace` and `read_trace`; or no request fits into the engine.
    """
    path = find_trace(name)
    rows, shortest = read_trace(path), input_len("a b", tokenizer)
    if short := int((rows["input_len"] < shortest).sum()):
        tell(f"{short} prompts of {path} are shorter than the chat template with a word and get {shortest} tokens.")
    rows["input_len"] = rows["input_len"].clip(lower=shortest)
    fits = (rows["input_len"] <= build.max_input_len) & (rows["input_len"] + rows["output_len"] <= build.max_seq_len)
    limits = f"max_input_len ({build.max_input_len}) or max_seq_len ({build.max_seq_len})"
    if not fits.any():
        raise CourseError(
            f"Every request of the trace {path} is longer than the engine's {limits}: build a larger one."
        )
    if long := int((~fits).sum()):
        tell(f"{long} of {len(rows)} requests of {path} are longer than the engine's {limits} and are left out.")
    rows = rows[fits]
    prompts = prompts_of(rows["input_len"].tolist(), tokenizer)
    start = rows["at_s"].iloc[0]
    return [
        TimedRequest(text, int(row.output_len), float(row.at_s - start), int(row.input_len))
        for text, row in zip(prompts, rows.itertuples())
    ]


# Traffic --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """What is sent and when.

    Attributes
    ----------
    dataset : str
        A name of `TRACES`, "dataset" for the course's own, or the path of a file in MLPerf's layout.
    trace : str or None
        In place of it a file of arrivals with lengths: a path, or a name of `TRACE_FILES`.
    rate : float or None
        Requests a second on average; a trace file's times are stretched to it. None: all at once, or as the file says.
    cv : float
        How uneven the gaps of `rate` are: see `gamma`; 1 is a Poisson process.
    system_prompt : int
        Tokens of a text that all prompts begin with.
    seed : int
        Of all that is drawn.
    """

    dataset: str = "dataset"
    trace: str | None = None
    rate: float | None = None
    cv: float = 1.0
    system_prompt: int = 0
    seed: int = 0

    def requests(
        self,
        tokenizer: ChatTokenizer,
        build: BuildConfig,
        number: int | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> list[TimedRequest]:
        """The first `number` requests, or all, at their times.

        Raises
        ------
        CourseError
            A value is out of its range, a file is not right or has fewer requests, or one does not fit into the engine.
        """
        if self.trace is not None:
            found = from_trace(self.trace, tokenizer, build, tell)
        elif self.dataset in TRACES:
            found = trace(self.dataset, tokenizer, self.seed, number)
        else:
            path = MINI_CNN_EVAL if self.dataset == "dataset" else Path(self.dataset)
            records = read_dataset(path)
            found = from_dataset(records, tokenizer, build.max_input_len)
            if len(found) < len(records):
                tell(f"{len(records) - len(found)} prompts of {path} are longer than the engine takes and left out.")
        if number is not None and not 1 <= number <= len(found):
            raise CourseError(f"There are {len(found)} requests: ask for 1 to {len(found)} with --requests.")
        found = found[:number]
        if self.system_prompt:
            found = with_system_prompt(found, self.system_prompt, tokenizer)
        check_fit(found, build)
        return self.timed(found, self.rate, self.seed)

    def timed(self, requests: Sequence[TimedRequest], rate: float | None, seed: int) -> list[TimedRequest]:
        """The same requests as they arrive at `rate` a second; without a rate as they are."""
        if rate is None:
            return list(requests)
        check_rate(rate)
        if self.trace is None:
            draw = poisson(len(requests), rate, seed) if self.cv == 1 else gamma(len(requests), rate, self.cv, seed)
            return with_times(requests, draw)
        lasts_s = requests[-1].at_s
        if not lasts_s:
            raise CourseError("All requests of the trace come at one moment, which no rate can be made of.")
        factor = (len(requests) - 1) / rate / lasts_s
        return with_times(requests, [request.at_s * factor for request in requests])

    def settings(self) -> dict:
        """What a result states of it."""
        return asdict(self)


def check_fit(requests: Sequence[TimedRequest], build: BuildConfig) -> None:
    """Refuse a prompt that is longer than the engine takes, and an answer that would end at its `max_seq_len`."""
    for number, request in enumerate(requests):
        if request.input_len > build.max_input_len or request.input_len + request.max_tokens > build.max_seq_len:
            raise CourseError(
                f"Request {number} has {request.input_len} tokens and asks for {request.max_tokens} more, but the "
                f"engine's max_input_len is {build.max_input_len} and its max_seq_len {build.max_seq_len}: ask for "
                "less, or build an engine with larger ones."
            )
