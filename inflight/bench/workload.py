"""What to ask, how long an answer to ask for, and when: a dataset and an arrival process in, a list of requests out.

    requests = from_dataset(read_dataset(), load_tokenizer(engine_dir), limit=50)
    requests = with_times(requests, poisson(len(requests), rate=4.0, seed=0))

A dataset has MLPerf's layout: a JSON list of objects with `input` (an article), `instruction` and `output` (a summary).
The prompt is the article and the instruction; the summary is used for its length only, as tokens to ask for.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import random
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import httpx
import pandas as pd

from inflight import cache, files, schemas

# Arrivals are part of a workload's public face.
from inflight.bench.arrivals import all_at_once, check_number, constant, poisson  # noqa: F401
from inflight.bench.names import TRACES
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.errors import CourseError
from inflight.paths import ASSETS

MINI_CNN_EVAL = ASSETS / "datasets" / "mini_cnn_eval.json"
TOKENS_PER_WORD = 1.3  # what the classic client takes for English (--op-tokens-per-word)

MOST_DATASET_BYTES = 1 << 28  # the real CNN/DailyMail evaluation file has some 70 MB
# Of a recorded run: a million tokens are more than any model's positions, 31 days longer than any load.
MOST_RECORDED_BYTES = 1 << 26
MOST_RECORDED_VALUES = 4_000_000
MOST_TOKENS = 1 << 20
MOST_SECONDS = 31 * 24 * 3600

TOPICS = ("rivers", "bridges", "clouds", "chess", "bread", "maps", "bees", "trains")
TRACE_GAP_S = 0.005  # threads that all send at the same moment overtake each other
NUMBERS = itertools.count(1)  # for openings: none comes twice in a process, so that no prompt does
OPENING_WORDS = 5  # have at least as many tokens as a number of four digits with its colon
PASSAGE = (
    "The old train leaves the small station at seven in the morning and follows the river to the sea. On the way it "
    "stops at a market where people sell bread, apples and flowers. Children look out of the window and count the "
    "bridges, while their parents read a book or talk about the weather."
)


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
        When to send it, in seconds after the start of the run, or after the answer that it waits for.
    input_len : int
        Tokens of the prompt as the engine gets it, chat template included.
    after : int or None
        Place in the list of the request whose answer must be there first, as in a conversation; it comes earlier.
    """

    text: str
    max_tokens: int
    at_s: float
    input_len: int
    after: int | None = None


class Selection(list[TimedRequest]):
    """Requests made from a dataset; `num_dropped` records had a prompt that is too long."""

    num_dropped: int = 0


# Datasets -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One object of a dataset in MLPerf's layout."""

    input: str
    instruction: str
    output: str

    @property
    def prompt(self) -> str:
        return f"{self.input} {self.instruction}"

    @property
    def output_len(self) -> int:
        """Tokens to ask for: words of `output` × 1.3, rounded down, at least 1."""
        return max(1, int(len(self.output.split()) * TOKENS_PER_WORD))


def read_dataset(path: str | Path = MINI_CNN_EVAL) -> list[Record]:
    """The records of a dataset file, in its order.

    Raises
    ------
    CourseError
        There is no such file, it is not a JSON list, the list is empty, or a record is broken: the message says which.
    """
    path = Path(path).expanduser()
    text = files.read_text(path, "dataset", MOST_DATASET_BYTES, "Give the path of a JSON file in UTF-8.")
    schemas.check_size(text.encode(), f"The dataset {path}", "Give a smaller one.")
    try:
        objects = json.loads(text)
    except json.JSONDecodeError as error:
        raise CourseError(
            f"The dataset {path} is not JSON ({error.msg} in line {error.lineno}): download or copy it again."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists without end
        raise CourseError(
            f"The dataset {path} is not JSON that can be read ({error}): download or copy it again."
        ) from None
    if not isinstance(objects, list):
        raise CourseError(
            f"The dataset {path} is not a JSON list of records: give a file in the layout of cnn_eval.json."
        )
    if not objects:
        raise CourseError(f"The dataset {path} has no records: give a file that has some.")
    for number, thing in enumerate(objects, start=1):
        if problem := _problem(thing):
            raise CourseError(f"Record {number} of the dataset {path} {problem}: correct or remove it.")
    return [Record(*(thing[field.name] for field in fields(Record))) for thing in objects]


def _problem(thing: object) -> str | None:
    """What is wrong with one element of a dataset's list."""
    if not isinstance(thing, dict):
        return "is not an object with input, instruction and output"
    for field in fields(Record):
        if field.name not in thing:
            return f"has no {field.name}"
        if not isinstance(thing[field.name], str):
            return f"has an {field.name} that is not text ({type(thing[field.name]).__name__})"
        if not thing[field.name].strip():
            return f"has an empty {field.name}"
    return None


def write_dataset(records: list[Record], path: str | Path) -> Path:
    """Write `records` in the same layout: aside, then renamed, so that a file is whole or not there at all.

    Raises
    ------
    CourseError
        The file cannot be written.
    """
    path = Path(path).expanduser()
    text = json.dumps([asdict(record) for record in records], indent=1, ensure_ascii=False) + "\n"
    try:
        files.replace_text(path, text)
    except OSError as error:
        raise CourseError(
            f"The dataset cannot be written to {path} ({error.strerror}): name a file in a folder that "
            "exists and can be written."
        ) from error
    return path


def find_dataset(source: str) -> Path:
    """The dataset file that `source` names: a path, or "owner/name" of a dataset on the Hugging Face hub.

    From the hub only JSON files come; one of them must be called cnn_eval.json, or be the only one.

    Raises
    ------
    CourseError
        Neither a file nor an id, no such dataset, no network, no JSON file or several.
    """
    path = Path(source).expanduser()
    if path.exists():
        return path
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source) or path.suffix == ".json":
        raise CourseError(
            f"There is no dataset {source}: give the path of a JSON file, or the id of a dataset on the "
            "Hugging Face hub such as owner/name."
        )
    folder = _dataset_from_hub(source)
    found = sorted(folder.rglob("*.json"))
    chosen = [file for file in found if file.name == "cnn_eval.json"] or found
    if len(chosen) != 1:
        names = ", ".join(str(file.relative_to(folder)) for file in chosen) or "none"
        raise CourseError(
            f"The dataset {source} should have one JSON file, or one called cnn_eval.json, and has "
            f"{names}: download the right one and give its path."
        )
    return chosen[0]


def _dataset_from_hub(name: str) -> Path:
    """The JSON files of a dataset repository, in the cache folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(
            snapshot_download(
                name, repo_type="dataset", allow_patterns=["*.json"], cache_dir=cache.folder("huggingface")
            )
        )
    except RepositoryNotFoundError as error:
        raise CourseError(
            f"The Hugging Face hub has no dataset {name}, or only for those logged in: check the id, or "
            "run hf auth login."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.TransportError) as error:
        raise CourseError(
            f"The dataset {name} cannot be fetched from the Hugging Face hub ({str(error).partition(chr(10))[0]}): "
            "connect to the network, or download its JSON file elsewhere and give its path."
        ) from error


def fitting(
    records: list[Record], tokenizer: ChatTokenizer, max_input_len: int | None = None, limit: int | None = None
) -> list[Record]:
    """The first `limit` records, without those whose prompt has more than `max_input_len` tokens for the engine.

    Raises
    ------
    CourseError
        None is left, or the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise CourseError(f"The limit is {limit} records; it must be at least 1.")
    first = records[:limit]
    if max_input_len is None:
        return first
    lengths = [input_len(record.prompt, tokenizer) for record in first]
    if min(lengths) > max_input_len:
        raise CourseError(
            f"Every prompt of the dataset is longer than max_input_len ({max_input_len} tokens); the "
            f"shortest has {min(lengths)}. Allow longer ones, or take another dataset."
        )
    return [record for record, length in zip(first, lengths) if length <= max_input_len]


def from_dataset(
    records: list[Record], tokenizer: ChatTokenizer, max_input_len: int | None = None, limit: int | None = None
) -> Selection:
    """Requests for the records that `fitting` leaves, all at the start; `num_dropped` says how many it dropped.

    Raises
    ------
    CourseError
        As in `fitting`.
    """
    kept = fitting(records, tokenizer, max_input_len, limit)
    requests = Selection(
        TimedRequest(record.prompt, record.output_len, 0.0, input_len(record.prompt, tokenizer)) for record in kept
    )
    requests.num_dropped = len(records[:limit]) - len(kept)
    return requests


def length_table(records: list[Record], tokenizer: ChatTokenizer) -> pd.DataFrame:
    """How long the texts are: a row a measure, with its mean and the percentiles P10, P50 and P90."""
    measures = {
        "article, words": [len(record.input.split()) for record in records],
        "article, tokens": [len(tokenizer.encode(record.input)) for record in records],
        "prompt, tokens": [input_len(record.prompt, tokenizer) for record in records],
        "summary, words": [len(record.output.split()) for record in records],
        "summary, tokens": [len(tokenizer.encode(record.output)) for record in records],
        "answer asked for, tokens": [record.output_len for record in records],
    }
    table = pd.DataFrame(measures).T
    percentiles = table.quantile([0.1, 0.5, 0.9], axis=1).T.set_axis(["P10", "P50", "P90"], axis=1)
    return pd.concat([table.mean(axis=1).rename("mean"), percentiles], axis=1).round().astype(int)


def input_len(text: str, tokenizer: ChatTokenizer) -> int:
    """Tokens of a prompt as the engine gets it, chat template included."""
    return len(tokenizer.encode(tokenizer.chat(text)))


def count_tokens(tokenizer: ChatTokenizer, text: str) -> int:
    """Tokens into which the tokenizer cuts a text, without any that it would put before or after it."""
    return len(tokenizer.encode(text, add_special_tokens=False))


# Lengths and prompts without a dataset --------------------------------------------------------------------------------


def normal_lengths(number: int, mean: float, stdev: float, seed: int) -> list[int]:
    """`number` output lengths in tokens, normally distributed, rounded; what falls below 1 becomes 1."""
    check_number(number)
    if not (math.isfinite(mean) and mean >= 1 and math.isfinite(stdev) and stdev >= 0):
        raise CourseError(
            f"Output lengths of mean {mean} and standard deviation {stdev} cannot be drawn: the mean "
            "must be at least 1, the deviation at least 0."
        )
    draw = random.Random(seed)
    return [max(1, round(draw.gauss(mean, stdev))) for _ in range(number)]


def histogram_lengths(weights: dict[int, float], number: int, seed: int) -> list[int]:
    """`number` output lengths in tokens, each drawn from the keys of `weights` as often as its weight says."""
    check_number(number)
    for length, weight in weights.items():
        if length < 1 or not (math.isfinite(weight) and weight >= 0):
            raise CourseError(
                f"The histogram of output lengths has {length}: {weight}; a length must be at least 1, "
                "its weight at least 0."
            )
    if not any(weights.values()):
        raise CourseError("The histogram of output lengths has no weight above 0: give at least one length.")
    return random.Random(seed).choices(list(weights), list(weights.values()), k=number)


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


def with_lengths(requests: Sequence[TimedRequest], output_lens: Sequence[int]) -> list[TimedRequest]:
    """The same requests, asking for answers of other lengths."""
    return [replace(request, max_tokens=length) for request, length in zip(requests, output_lens, strict=True)]


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


# Arrivals -------------------------------------------------------------------------------------------------------------


def with_times(requests: Sequence[TimedRequest], times: Sequence[float]) -> list[TimedRequest]:
    """The same requests, sent at `times`, in seconds after the start of the run.

    Those that wait for another's answer keep their own: `times` has as many as there are others.
    """
    openings = [place for place, request in enumerate(requests) if request.after is None]
    at_s = dict(zip(openings, times, strict=True))
    return [replace(request, at_s=at_s.get(place, request.at_s)) for place, request in enumerate(requests)]


@dataclass(frozen=True)
class Recording:
    """Requests of an earlier run: when each was sent (s), tokens of its prompt and of its answer."""

    times: list[float]
    input_lens: list[int]
    output_lens: list[int]

    def requests(self, tokenizer: ChatTokenizer) -> list[TimedRequest]:
        """Requests of the same lengths at the same times; the words are others. CourseError as `prompts_of`."""
        prompts = prompts_of(self.input_lens, tokenizer)
        return [TimedRequest(*values) for values in zip(prompts, self.output_lens, self.times, self.input_lens)]


def recorded(path: str | Path) -> Recording:
    """Times and lengths from a per-request CSV with the columns `sent_s`, `input_len` and `output_len`.

    Rows are taken in the order in which they were sent. A request without an answer (`output_len` 0: it failed, or was
    not sent any more) is left out.

    Raises
    ------
    CourseError
        There is no such file, it is no CSV, a column is missing, or a value is not a number in its range.
    """
    path = Path(path).expanduser()
    give = "Give the per-request CSV of an earlier run."
    content = files.read_bytes(path, "recorded run", MOST_RECORDED_BYTES, give)
    if content.count(b",") > MOST_RECORDED_VALUES:
        raise CourseError(f"The recorded run {path} has more than {MOST_RECORDED_VALUES:,} values. {give}")
    try:
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):  # a line that is too long
            table = pd.read_csv(io.BytesIO(content), index_col=False)
    except (ValueError, pd.errors.ParserWarning) as error:  # the parser's own and the decoder's are ValueErrors
        raise CourseError(
            f"The recorded run {path} is not a CSV file ({str(error).splitlines()[0]}): give the "
            "per-request CSV of an earlier run."
        ) from error
    for column in ("output_len", "sent_s", "input_len"):
        if column not in table:
            raise CourseError(
                f"The recorded run {path} has no column {column}: give the per-request CSV of an earlier run."
            )
    table["output_len"] = _numbers(table["output_len"], 0, MOST_TOKENS, path)
    answered = table[table["output_len"] > 0]
    answered = answered.assign(
        sent_s=_numbers(answered["sent_s"], 0, MOST_SECONDS, path),
        input_len=_numbers(answered["input_len"], 1, MOST_TOKENS, path),
    ).sort_values("sent_s", kind="stable")
    if answered.empty:
        raise CourseError(
            f"The recorded run {path} has no request that was answered: give one of a run that went well."
        )
    return Recording(
        answered["sent_s"].tolist(),
        answered["input_len"].astype(int).tolist(),
        answered["output_len"].astype(int).tolist(),
    )


def _numbers(texts: pd.Series, least: float, most: float, path: Path) -> pd.Series:
    """A column of a recorded run as numbers from `least` to `most`."""
    numbers = pd.to_numeric(texts, errors="coerce")
    if bad := [row for row, value in numbers.items() if not least <= value <= most]:  # what is none is NaN now
        raise CourseError(
            f"In line {bad[0] + 2} of the recorded run {path}, {texts.name} is not a number of at least "
            f"{least} and at most {most:,}: correct or remove it."
        )
    return numbers
