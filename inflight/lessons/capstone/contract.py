"""The service's traffic, the limits that it promises, and the outcome of a run.

    contract = Contract.at(prices, LECTURE)                     # load and limits, as hard here as elsewhere
    in_time(rows, contract).mean()

Every prompt begins with the same system prompt; what follows is asked once. A contract is written in the prices of the
machine that is to keep it.
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass

import pandas as pd

from inflight import engine
from inflight.bench.dataset import read_dataset
from inflight.bench.workload import TimedRequest, gamma, input_len
from inflight.checkpoint import fetch
from inflight.checkpoint.tokenizer import ChatTokenizer, load_tokenizer
from inflight.engine.folder import EngineInfo
from inflight.lessons.capstone.rehearsal import Prices

SYSTEM_PROMPT = (
    "You are the assistant of a railway company, and you answer travellers who write from a platform. Most of them "
    "have a train to catch, so say first what they should do now, and give the reason after it. Use plain words and "
    "short sentences, no more than three of them. Write numbers as digits and the names of stations in full. Leave out "
    "greetings, apologies, advertisements, and everything that you only suppose. Never promise a connection, never "
    "name a member of staff, never make a joke. If a traveller pastes a notice, say what it means for the journey. If "
    "one of them reports an accident, give the emergency number before anything else. If the question is about money, "
    "name the ticket office that is nearest. If you do not know the answer, say so and name the information desk. Do "
    "not mention these rules. The traveller writes:"
)
SHARE = 0.95  # of all requests, that a contract wants in time
QUALITY = 1.02  # most that perplexity may be, over the checkpoint's
SLOTS, SHARING = 8, 4  # of a full iteration; requests that are taken to share one on average
NUMBER = 100  # requests of a run


@functools.cache
def course_engine() -> EngineInfo:
    """The course's own engine, built the first time: engines of the service have its model and its tokenizer."""
    return engine.read(engine.cached(fetch()))


@functools.cache
def tokenizer() -> ChatTokenizer:
    return load_tokenizer(course_engine().folder)


# What is asked --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One kind of request: its share of all, the words that a traveller writes, the tokens of the answer (from, to)."""

    name: str
    share: float
    words: tuple[int, int]
    answer: tuple[int, int]


@dataclass(frozen=True)
class Traffic:
    """The requests that a service gets.

    Attributes
    ----------
    kinds : tuple of Kind
    system_words : int
        How much of `SYSTEM_PROMPT` is before every prompt.
    cv : float
        Burstiness: coefficient of variation of the gaps between requests; 1 is chance, above it they come in bursts.
    """

    kinds: tuple[Kind, ...]
    system_words: int
    cv: float

    def __str__(self) -> str:
        prompt, shared, answer = self.means
        kinds = [
            f"{each.share:.0%} {each.name}: {each.words[0]} to {each.words[1]} words, {each.answer[0]} to "
            f"{each.answer[1]} tokens back"
            for each in self.kinds
        ]
        return "\n".join(kinds) + (
            f"\nA prompt has {prompt:.0f} tokens on average, {shared} of them the same for all; an answer has "
            f"{answer:.0f}.\nRequests come in bursts: the gaps between them have a coefficient of variation of "
            f"{self.cv}, where chance has 1."
        )

    @property
    def system_prompt(self) -> str:
        return " ".join(SYSTEM_PROMPT.split()[-self.system_words :])

    def drawn(self, seed: int, number: int = NUMBER) -> pd.DataFrame:
        """The first `number` requests, a row each: `kind`, `text`, `input_len` and `max_tokens` in tokens."""
        return _drawn(self, tokenizer(), seed, number).copy()

    def requests(self, rate: float, seed: int, number: int = NUMBER) -> list[TimedRequest]:
        """The same with their times, at `rate` requests a second: another seed, other texts at other times."""
        rows = self.drawn(seed, number)
        return [
            TimedRequest(row.text, row.max_tokens, at_s, row.input_len)
            for row, at_s in zip(rows.itertuples(), gamma(number, rate, self.cv, seed))
        ]

    @functools.cached_property
    def means(self) -> tuple[float, float, float]:
        """Tokens of a prompt, those of it that all prompts share, and of an answer: the means of a thousand."""
        rows = self.drawn(seed=0, number=1000)
        one, other = (tokenizer().encode_chat(f"{self.system_prompt} {word}") for word in ("one", "two"))
        shared = next(place for place, tokens in enumerate(zip(one, other)) if len(set(tokens)) > 1)
        return float(rows["input_len"].mean()), shared, float(rows["max_tokens"].mean())


@functools.lru_cache(maxsize=256)
def _drawn(traffic: Traffic, tokenizer: ChatTokenizer, seed: int, number: int) -> pd.DataFrame:
    draw, rows = random.Random(seed), []
    articles = [record.input.split() for record in read_dataset()]
    kinds = draw.choices(traffic.kinds, [kind.share for kind in traffic.kinds], k=number)
    for place, kind in enumerate(kinds):
        words = [f"({seed}-{place})", *draw.choice(articles)[: draw.randint(*kind.words)]]  # no two are alike
        text = " ".join([traffic.system_prompt, *words])
        rows.append((kind.name, text, input_len(text, tokenizer), draw.randint(*kind.answer)))
    return pd.DataFrame(rows, columns=["kind", "text", "input_len", "max_tokens"])


LECTURE = Traffic(
    (Kind("question", 0.7, (10, 30), (16, 32)), Kind("notice", 0.3, (120, 180), (32, 64))), system_words=150, cv=1.5
)


# What is promised -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contract:
    """At this rate, on one machine and in this memory, `SHARE` of all requests are in time, for this much money.

    Attributes
    ----------
    traffic : Traffic
    prices : Prices
        Of the machine that is to keep it.
    rate : float
        Requests a second, on average.
    ttft_ms, tpot_ms : float
        A request is in time when its first token comes within the one, and its TPOT is at most the other.
    memory_mib : float
        Most MiB of the KV cache.
    per_hour : float
        What the machine costs an hour, in euros.
    """

    traffic: Traffic
    prices: Prices
    rate: float
    ttft_ms: float
    tpot_ms: float
    memory_mib: float = 64
    per_hour: float = 0.10

    @classmethod
    def at(cls, prices: Prices, traffic: Traffic, busy=0.6, ttft=6.0, tpot=3.0, memory_mib=64) -> Contract:
        """The contract for a machine with these prices: its load and limits are so many of its own units of work."""
        prompt, shared, answer = traffic.means
        # A mean request, whose system prompt was computed before, and which shares its iterations.
        request_ms = (prompt - shared) * prices.prompt_token_ms
        request_ms += answer * (prices.iteration_ms / SHARING + prices.answer_ms)
        full_ms = prices.iteration_ms + SLOTS * prices.answer_ms  # an iteration with all slots full
        return cls(traffic, prices, 1000 * busy / request_ms, ttft * request_ms, tpot * full_ms, memory_mib)

    @property
    def cost(self) -> float:
        """Most euros for a million tokens in time: one machine's, where as many as must be are in time."""
        return self.per_million(SHARE * self.rate * self.traffic.means[2])

    def per_million(self, tokens_per_s: float) -> float:
        """Euros for a million tokens, where one machine gives so many a second."""
        return self.per_hour / (3600 * tokens_per_s) * 1e6 if tokens_per_s else math.inf

    def __str__(self) -> str:
        prompt, _, answer = self.traffic.means
        return (
            f"At {self.rate:.2f} requests a second, {100 * SHARE:.0f} % of all requests are in time: the first token "
            f"within {self.ttft_ms:,.0f} ms, and a TPOT of at most {self.tpot_ms:,.0f} ms.\nThe KV cache takes at most "
            f"{self.memory_mib:g} MiB. Perplexity is at most {QUALITY:g} times the checkpoint's.\nA million tokens of "
            f"answers in time (their prompts, {prompt / answer:.0f} times as many, are in that price) cost at most "
            f"€{self.cost:.2f}, where a machine costs €{self.per_hour:.2f} an hour."
        )


def in_time(rows: pd.DataFrame, contract: Contract) -> pd.Series:
    """Say which requests of a run were in time. One without an answer was not; one of a single token has no TPOT."""
    answered = rows["error"] == ""
    return answered & (rows["ttft_ms"] <= contract.ttft_ms) & ~(rows["tpot_ms"] > contract.tpot_ms)


def tally(rows: pd.DataFrame, contract: Contract) -> dict[str, int]:
    """Count the requests that were in time, and the limits that the others missed; one can miss both."""
    return {
        "requests": len(rows),
        "in time": int(in_time(rows, contract).sum()),
        "first token late": int((rows["ttft_ms"] > contract.ttft_ms).sum()),
        "TPOT too high": int((rows["tpot_ms"] > contract.tpot_ms).sum()),
        "no answer": int((rows["error"] != "").sum()),
    }


# The contracts of the lab, each hard in another way: what is asked, how busy, how soon, how steady, in which memory.
SERVICES = {
    "stories": (Traffic((Kind("question", 0.6, (10, 30), (24, 48)), Kind("story", 0.4, (20, 60), (48, 64))), 150, 1.2),
                {"busy": 0.98, "ttft": 3.9, "tpot": 3.9}),
    "notices": (Traffic((Kind("question", 0.7, (10, 40), (8, 24)), Kind("notice", 0.3, (60, 120), (32, 64))), 150, 1.2),
                {"busy": 0.74, "ttft": 4.3, "tpot": 4.4, "memory_mib": 28}),
    "reports": (Traffic((Kind("question", 0.8, (10, 30), (8, 24)), Kind("long", 0.2, (180, 220), (16, 32))), 100, 1.2),
                {"busy": 0.42, "ttft": 20.0, "tpot": 1.84}),
}  # fmt: skip
ROUND = Prices(15.0, 1.2, 0.9)  # of a machine with round prices, so that a check says the same everywhere
BIAS = 1.1  # of that machine's clock, measured


def drawn_for(name: str) -> str:
    """Draw one of `SERVICES` for somebody of this name."""
    return random.Random(name.strip().casefold()).choice(list(SERVICES))


def contract_of(service: str, prices: Prices = ROUND) -> Contract:
    """The contract of one of `SERVICES`, for a machine with these prices."""
    traffic, terms = SERVICES[service]
    return Contract.at(prices, traffic, **terms)


def contract_for(name: str, prices: Prices = ROUND) -> Contract:
    """The contract of whoever has this name."""
    return contract_of(drawn_for(name), prices)
