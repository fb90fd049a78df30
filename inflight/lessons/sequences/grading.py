"""Lab 07: the steps of sequences, what becomes of them, and a model that asks to be called again."""

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from inflight.errors import CourseError
from inflight.lessons.sequences import streams
from inflight.lessons.sequences.sequences import Step
from inflight.notebook import progress
from inflight.notebook.checks import NOT_YET, Finding, Measured, grades
from inflight.triton.client import NoAnswer, ServerGone
from inflight.triton.server import Server


@grades("7.1", "From START to END a sequence keeps its place, so a forgotten END keeps everybody else waiting.")
def _steps(steps: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    cases = [[(1, 5)], [(1, 5), (1, 6)], [(1, 5), (2, 1), (1, 6), (2, 3), (1, 7)]]
    cases += [[(choose.randrange(1, 6), choose.randrange(9)) for _ in range(12)] for _ in range(10)]
    findings: dict[str, Finding] = {"messages": None, "start": None, "end": None}
    for messages in cases:
        got = steps(list(messages))
        if got is None:
            return NOT_YET
        got = list(got)
        if [(step.sequence, step.value) for step in got] != messages:
            return f"{messages}: the steps are not these messages in this order, one each."
        for place, (sequence, _) in enumerate(messages):
            own = [number for number, (other, _) in enumerate(messages) if other == sequence]
            for name, wanted in (("start", place == own[0]), ("end", place == own[-1])):
                if findings[name] is None and bool(getattr(got[place], name)) != wanted:
                    findings[name] = (
                        f"{messages}: message {place + 1}, of sequence {sequence}, has {name}={not wanted}. START is "
                        "on the first message of its sequence alone, END on the last; one message may be both."
                    )
    return findings


# Exercise 7.2 ---------------------------------------------------------------------------------------------------------


def _said(text: str) -> list[Step]:
    """ "1S 2 1E": a step each, S where its sequence starts, E where it ends."""
    return [Step(int(word.strip("SE")), start="S" in word, end="E" in word) for word in text.split()]


# By part: steps, places, and a hint.
_FATES = {
    "a free place": ("1S 2SE 1E", 2, "There is room for all."),
    "no START": ("1 2S 2E 2", 2, "A step without START is refused where its sequence has no place and does not wait."),
    "nobody ends": ("1S 2S 2 1", 1, "Without an END no place gets free: a sequence that waits does so for ever."),
    "a place gets free": (
        "1S 2S 3S 2E 1E",
        1,
        "An END frees a place for the sequence that has waited longest, whose own END may free it again.",
    ),
}


@grades("7.2", "A place is held from START to END, so a sequence that finds none waits for somebody else's END.")
def _fates(fates: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    cases = {part: [(_said(text), places, hint)] for part, (text, places, hint) in _FATES.items()}
    cases["any steps"] = [(_any_steps(choose), choose.choice((1, 2, 3)), "Play it step by step.") for _ in range(20)]

    def right_in(part: str) -> Finding:
        for steps, places, hint in cases[part]:
            got = fates(list(steps), places)
            if got is None:
                return NOT_YET
            right = _fates_on_paper(steps, places)
            if list(got) != right:
                shown = " ".join(f"{one.sequence}{'S' * one.start}{'E' * one.end}" for one in steps)
                return f"{shown}, places: {places}. It is {right}, and you say {list(got)}. {hint}"
        return None

    return {part: lambda part=part: right_in(part) for part in cases}


def _any_steps(choose: random.Random) -> list[Step]:
    """Sequences side by side, of which some lack START or END; none begins twice."""
    left = {}
    for number in range(1, 6):
        steps = [Step(number) for _ in range(choose.randrange(1, 4))]
        steps[0] = Step(number, start=choose.random() < 0.9)
        steps[-1] = Step(number, start=steps[-1].start, end=choose.random() < 0.7)
        left[number] = steps
    mixed = []
    while any(left.values()):
        mixed.append(left[choose.choice([number for number, steps in left.items() if steps])].pop(0))
    return mixed


def _fates_on_paper(steps: list[Step], places: int) -> list[str]:
    fates, seated = ["never"] * len(steps), set[int]()
    waiting: dict[int, list[int]] = {}  # by sequence, in the order of their START: numbers of their steps
    for number, step in enumerate(steps):
        if step.sequence in waiting:
            waiting[step.sequence].append(number)
        elif step.start and len(seated) == places:
            waiting[step.sequence] = [number]
        elif step.start or step.sequence in seated:
            fates[number] = "at once"
            seated.add(step.sequence)
            if step.end:
                seated.remove(step.sequence)
        else:
            fates[number] = "refused"
        while waiting and len(seated) < places:
            sequence = next(iter(waiting))
            late = waiting.pop(sequence)
            fates = ["later" if one in late else fate for one, fate in enumerate(fates)]
            if not any(steps[one].end for one in late):
                seated.add(sequence)
    return fates


# Exercises 7.3 and 7.4 ------------------------------------------------------------------------------------------------

MODEL, PLACES = "words", 4
# With more candidates than places requests wait in the queue for their turn, which is where a cancelled one is lost.
TURNS, PLACES_IN_TURN = "oldest { max_candidate_sequences: 16 }", 1
# Triton drops by itself the requests that it finds cancelled in its queue; where these are all, it is played again.
TRIES = 5
# Of streams that are over: keys, states, words, senders, wherever they are. One stream has four of them and more.
LEFT, MOST_LEFT = "things that are kept when all streams are over", 4
TIMEOUT_S = 20  # for the next word of anybody
AFTER = "more"  # sent twice when all others have ended, one call each: what is kept is counted then
# `execute` in the file as it is handed out.
_OPEN = "def execute(self, requests):\n        return None  # your code"
# Around what the learner has written: notes of each call how many requests were ready, how much is kept after it, how
# many requests of clients that had gone were released at once, and how many of those there were.
_AROUND = """
import importlib.util, json, pathlib, time, traceback
import triton_python_backend_utils as pb_utils
from inflight.notebook.kept import kept
PATH = str(pathlib.Path(__file__).with_name("written.py"))
spec = importlib.util.spec_from_file_location("written", PATH)
written = importlib.util.module_from_spec(spec)
spec.loader.exec_module(written)
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
release, again = None, []  # Triton's own way to set the flags of a request; whose are set to come again in this call


def note_releases(kind):
    global release
    release = release or kind.set_release_flags

    def noting(request, flags):
        release(request, flags)
        if flags == RESCHEDULE:
            again.append(id(request))

    kind.set_release_flags = noting


def is_ready(request):
    return bool(pb_utils.get_input_tensor_by_name(request, "READY").as_numpy().item())


class TritonPythonModel(written.TritonPythonModel):
    def initialize(self, args):
        self.log = json.loads(args["model_config"])["parameters"]["log"]["string_value"]
        self.log_of_calls = open(self.log, "a", buffering=1)
        self.cancelled = self.before = 0
        super().initialize(args)
        self.before = kept(self, written)

    def execute(self, requests):
        time.sleep(0.01)
        note_releases(type(requests[0]))
        requests = [request for request in requests if not self.is_lost(request)]
        ready = [request for request in requests if is_ready(request)]
        gone = [request for request in ready if request.is_cancelled()]
        again.clear()
        try:
            return super().execute(requests)
        except Exception as error:
            lines = [row.lineno for row in traceback.extract_tb(error.__traceback__) if row.filename == PATH]
            where = f" in line {lines[-1]} of your file" if lines else ""
            with open(self.log + ".failed", "a") as failed:
                print(f"execute has failed{where}: {type(error).__name__}: {error}.", file=failed)
            raise
        finally:
            released = sum(id(request) not in again for request in gone)
            line = [len(ready), kept(self, written) - self.before, released, len(gone)]
            self.log_of_calls.write(json.dumps(line) + "\\n")

    def is_lost(self, request):
        # Every other one that is cancelled is dropped without a word, as Triton does with those that it finds in its
        # queue: whether one is there at that moment is chance.
        if not is_ready(request) or not request.is_cancelled():
            return False
        self.cancelled += 1
        if self.cancelled % 2:
            release(request, RESCHEDULE)
        return bool(self.cancelled % 2)
"""
_CONFIG = """
name: "words"  backend: "python"  max_batch_size: PLACES
model_transaction_policy { decoupled: true }
input [ { name: "text"  data_type: TYPE_STRING  dims: [ 1 ] } ]
output [ { name: "word"  data_type: TYPE_STRING  dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
sequence_batching {
  iterative_sequence: true
  max_sequence_idle_microseconds: 1000000
  STRATEGY
  control_input [
    { name: "ID"     control [ { kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 } ] },
    { name: "START"  control [ { kind: CONTROL_SEQUENCE_START  int32_false_true: [ 0, 1 ] } ] },
    { name: "READY"  control [ { kind: CONTROL_SEQUENCE_READY  int32_false_true: [ 0, 1 ] } ] }
  ]
}
parameters { key: "log"  value { string_value: "LOG" } }
"""
_SYLLABLES = [consonant + vowel for consonant in "bdgk" for vowel in "aeiou"]


class _Played(NamedTuple):
    """What was heard, a row a word, and what the model did in each call: see `_AROUND`."""

    texts: list[str]
    heard: pd.DataFrame
    calls: list[list[int]]

    @property
    def num_words(self) -> int:
        return sum(len(text.split()) for text in self.texts)

    @property
    def num_ready(self) -> int:
        return sum(ready for ready, *_ in self.calls)

    def wrong(self, numbers: list[int]) -> Finding:
        """The first of these streams that has not heard its own words."""
        spoken = self.heard[self.heard["word"] != ""]  # a model may end an empty text with an empty word
        for number in numbers:
            text, words = self.texts[number - 1], spoken[spoken["stream"] == number]["word"].tolist()
            if words != text.split():
                return (
                    f"Stream {number} sent {text!r} and heard {words}. Each stream has its own words, one a call, "
                    "in their order."
                )
        return None

    def left_over(self, nothing: int, advice: str) -> Measured:
        kept = min(kept for _, kept, *_ in self.calls[-2:])
        return Measured(LEFT, kept, at_most=MOST_LEFT, course=0, nothing=nothing, advice=advice)


@grades("7.3", "A model that says RESCHEDULE gives the batch back, so each call has whoever is there, a word for each.")
def _model(path: Path, choose: random.Random) -> Finding | dict[str, Finding]:
    if _is_open(path):
        return NOT_YET
    texts = [_text(choose, choose.randrange(3, 14)) for _ in range(6)]
    texts.insert(choose.randrange(1, 7), "")  # it has nothing to say, and must not keep the others waiting
    played = _play(Path(path), texts, {}, "direct { }", PLACES)
    if isinstance(played, str):
        return played
    longest = max(len(text.split()) for text in texts)
    without_word = played.num_ready - played.num_words - texts.count("") - 2 * len(AFTER.split())
    return {
        "words": played.wrong([*range(1, len(texts) + 1)]),
        "calls": [
            Measured(
                "ready requests that got no word",
                max(0, without_word),
                exactly=0,
                course=0,
                advice="All that are ready are computed in one call.",
            ),
            Measured(
                "calls of execute",
                len(played.calls),
                at_least=max(longest, -(-played.num_words // PLACES)),
                nothing=played.num_words,
                advice="One word of each stream in a call: then the request goes back into the queue.",
            ),
        ],
        "states at the end": played.left_over(4 * len(texts), "Forget a stream that is over."),
    }


@grades(
    "7.4",
    "A model is told of a beginning, never of a client that has gone: it has to look.",
    keeps="iterative_model",
)
def _left(path: Path, choose: random.Random) -> Finding | dict[str, Finding]:
    if _is_open(path):
        return NOT_YET
    texts = [_text(choose, 40 if number % 2 else choose.randrange(8, 14)) for number in range(12)]
    leave_after = {number: choose.randrange(1, 5) for number in range(2, 13, 2)}
    for _ in range(TRIES):
        played = _play(Path(path), texts, leave_after, TURNS, PLACES_IN_TURN)
        if isinstance(played, str):
            return played
        if any(gone for *_, gone in played.calls):
            break
    return {
        "those who stay": played.wrong([number for number in range(1, len(texts) + 1) if number not in leave_after]),
        "states at the end": played.left_over(
            4 * len(leave_after), "A client that has gone is in no call any more: ask the senders, is_cancelled()."
        ),
        "their places": Measured(
            "cancelled requests released at once",
            sum(released for *_, released, _ in played.calls),
            exactly=0,
            course=0,
            advice="Their places stay taken: reschedule a cancelled request, and Triton frees its place.",
        ),
        "words for nobody": Measured(
            "words computed",
            played.num_ready,
            at_most=played.num_words - 40,
            nothing=played.num_words,
            advice="A request whose client has gone needs no further word: request.is_cancelled().",
        ),
    }


def _is_open(path: Path) -> bool:
    path = Path(path)
    return not path.is_file() or _OPEN in path.read_text(encoding="utf-8", errors="replace")


def _text(choose: random.Random, number: int) -> str:
    return " ".join("".join(choose.choices(_SYLLABLES, k=2)) for _ in range(number))


def _play(path: Path, texts: list[str], leave_after: dict[int, int], strategy: str, places: int) -> _Played | str:
    """What a Triton with the model makes of the texts, and of two more at the end; or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="inflight-check-") as folder:
        repo, log = Path(folder) / "repo", Path(folder) / "calls.jsonl"
        (repo / MODEL / "1").mkdir(parents=True)
        config = _CONFIG.replace("LOG", str(log)).replace("STRATEGY", strategy).replace("PLACES", str(places))
        (repo / MODEL / "config.pbtxt").write_text(config, encoding="utf-8")
        (repo / MODEL / "1" / "model.py").write_text(_AROUND, encoding="utf-8")
        shutil.copyfile(path, repo / MODEL / "1" / "written.py")
        progress.say(f"a Triton with your model answers {len(texts)} texts, {strategy}, {places} places")
        try:
            server = Server(repo).start()
        except CourseError as error:
            return f"Triton cannot load it. {str(error).partition(chr(10))[0][:300]}"
        problem = ""
        try:
            heard = streams.ask(server, MODEL, texts, leave_after, TIMEOUT_S)
            after = [streams.ask(server, MODEL, [AFTER], timeout_s=TIMEOUT_S) for _ in range(2)]
            problem = next((message for each in (heard, *after) for message in each["message"] if message), "")
        except ServerGone:
            problem = (
                "Your model has brought Triton down. After FINAL a request's sender must not send again, and the "
                "request must not be rescheduled."
            )
        except NoAnswer:
            problem = (
                f"Somebody waits in vain: nothing came for {TIMEOUT_S} s. A request that is neither rescheduled nor "
                "ended with FINAL leaves its client waiting."
            )
        finally:
            server.stop(drain_s=0)
        failed = log.with_name(f"{log.name}.failed")
        if failed.is_file():  # whatever came of it
            return failed.read_text(encoding="utf-8").splitlines()[0]
        return problem or _Played(texts, heard, list(map(json.loads, log.read_text(encoding="utf-8").splitlines())))
