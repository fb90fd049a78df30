"""What a load sends and when, as the options of `inflight bench load` and `inflight bench sweep` name it.

traffic = Traffic(arrivals="bursts", system_prompt=200)
requests = traffic.requests(tokenizer, build)
requests = traffic.timed(requests, rate=4.0, seed=0)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from inflight.bench import plan
from inflight.bench.arrivals import BURSTS_CV, DAY_S, DAY_SWING
from inflight.bench.workload import NUMBERS, TimedRequest, alike_until, input_len, opening
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.engine.config import BuildConfig


@dataclass(frozen=True)
class Traffic:
    """Requests and their arrivals; each attribute is an option of the command line, and told of there.

    Attributes
    ----------
    arrivals : str
        One of `names.ARRIVALS`, as `plan.arrivals` gives it.
    """

    arrivals: str
    dataset: str = "dataset"
    max_input_len: int | None = None
    recorded: Path | None = None
    trace: str | None = None
    output_lengths: str = "dataset"
    cv: float = BURSTS_CV
    day_s: float = DAY_S
    day_swing: float = DAY_SWING
    system_prompt: int | None = None
    turns: int = 1
    think_s: float = 0.0
    let_end: bool = False
    seed: int = 0

    def requests(
        self,
        tokenizer: ChatTokenizer,
        build: BuildConfig,
        number: int | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> list[TimedRequest]:
        """The first `number` requests, or all, with their lengths and prefixes; of a file's times, its own.

        Raises
        ------
        CourseError
            An option is out of its range, a file is not right, or a request does not fit into the engine.
        """
        if self.recorded is not None:
            found = plan.recorded(self.recorded, number, tokenizer)
        elif self.trace is not None:
            found = plan.from_trace(self.trace, number, tokenizer, build, tell)
        else:
            found = plan.requests(self.dataset, number, tokenizer, build, self.seed, tell, self.max_input_len)
            found = plan.with_lengths(found, self.output_lengths, self.seed)
        found = plan.with_prefixes(found, self.system_prompt, self.turns, self.think_s, tokenizer, build)
        plan.check_fit(found, build)
        return found

    def timed(self, requests: list[TimedRequest], rate: float | None, seed: int) -> list[TimedRequest]:
        """The same requests at the arrivals that a seed draws, at `rate` a second where they have one."""
        return plan.with_arrivals(requests, self.arrivals, rate, seed, self.cv, self.day_s, self.day_swing)

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts begin alike on purpose."""
        return self.system_prompt is not None or self.turns > 1

    def settings(self) -> dict:
        """The options, as a result states them; those that play no part are None."""
        named = asdict(self) | {"recorded": self.recorded and str(self.recorded)}
        of_file = self.recorded is not None or self.trace is not None
        idle = {
            "dataset": of_file,
            "output_lengths": of_file,
            "cv": self.arrivals != "bursts",
            "day_s": self.arrivals != "day",
            "day_swing": self.arrivals != "day",
            "think_s": self.turns == 1,
        }
        return {name: None if idle.get(name) else value for name, value in named.items()}


def repeated(requests: list[TimedRequest], number: int, tokenizer: ChatTokenizer) -> list[TimedRequest]:
    """`number` requests: the given ones again and again, each time with another opening, after what all begin with.

    So no prompt comes twice, in this list or in another, and an engine that keeps what it computed of prompts finds
    none again but for what they share. A turn of a conversation begins with the turn before it, as it did.
    """
    shared = alike_until(request.text for request in requests if request.after is None)
    found: list[TimedRequest] = []
    while len(found) < number:
        turn, start = next(NUMBERS), len(found)
        for request in requests[: number - start]:
            if request.after is None:
                text, after = opening(request.text, turn, shared), None
            else:
                after = request.after + start
                text = found[after].text + request.text.removeprefix(requests[request.after].text)
            found.append(replace(request, text=text, input_len=input_len(text, tokenizer), after=after))
    return found
