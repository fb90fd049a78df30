"""Lab 07: the steps of sequences, what becomes of them, and a model that asks to be called again."""

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

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
        if [(step.sequence, step.value) for step in got] != messages:
            return f"{messages}: the steps are not these messages in this order, one each."
        for place, (sequence, _) in enumerate(messages):
            others = [number for number, (other, _) in enumerate(messages) if other == sequence]
            for name, wanted in (("start", place == others[0]), ("end", place == others[-1])):
                if findings[name] is None and getattr(got[place], name) != wanted:
                    findings[name] = (
                        f"{messages}: message {place + 1}, of sequence {sequence}, has {name}={not wanted}. START goes "
                        "to the first of its sequence alone, END to its last; one message may be both."
                    )
    return findings


# Exercise 7.2 ---------------------------------------------------------------------------------------------------------

_FATES = {
    "a free place": (
        [Step(1, start=True), Step(2, start=True, end=True), Step(1, end=True)],
        2,
        "There is room for all.",
    ),
    "no START": ([Step(1), Step(2, start=True), Step(2, end=True), Step(2)], 2, "Before START and after END: refused."),
    "nobody ends": (
        [Step(1, start=True), Step(2, start=True), Step(2), Step(1)],
        1,
        "Without an END no place gets free: who waits, waits for ever, with all its steps.",
    ),
    "a place gets free": (
        [Step(1, start=True), Step(2, start=True), Step(3, start=True), Step(2, end=True), Step(1, end=True)],
        1,
        "An END frees the place for who waits longest, and their own END may free it again.",
    ),
}


@grades("7.2", "A place is held from START to END, so who comes to a full house waits for somebody else's END.")
def _fates(fates: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    cases = {part: [case] for part, case in _FATES.items()}
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
        start, end = choose.random() < 0.9, choose.random() < 0.7
        steps[0] = Step(number, start=start)
        steps[-1] = Step(number, start=steps[-1].start, end=end)
        left[number] = steps
    mixed = []
    while left:
        number = choose.choice(sorted(left))
        mixed.append(left[number].pop(0))
        left = {one: steps for one, steps in left.items() if steps}
    return mixed


def _fates_on_paper(steps: list[Step], places: int) -> list[str]:
    fates, seated, ended = [""] * len(steps), set[int](), set[int]()
    waiting: dict[int, list[int]] = {}  # by sequence, in the order of their START: numbers of their steps

    def serve(number: int, fate: str) -> None:
        fates[number] = fate
        if steps[number].end:
            seated.discard(steps[number].sequence)
            ended.add(steps[number].sequence)

    for number, step in enumerate(steps):
        if step.sequence in seated:
            serve(number, "at once")
        elif step.sequence in waiting:
            waiting[step.sequence].append(number)
        elif not step.start:
            fates[number] = "refused"
        elif len(seated) < places:
            seated.add(step.sequence)
            serve(number, "at once")
        else:
            waiting[step.sequence] = [number]
        while waiting and len(seated) < places:
            sequence = next(iter(waiting))
            seated.add(sequence)
            for late in waiting.pop(sequence):
                serve(late, "later")
    return [fate or "never" for fate in fates]


# Exercises 7.3 and 7.4 ------------------------------------------------------------------------------------------------

MODEL, WRITTEN, PLACES = "words", "written.py", 4
# With more candidates than places requests wait in the queue for their turn, which is where a cancelled one is lost.
TURNS, PLACES_IN_TURN = "oldest { max_candidate_sequences: 16 }", 1
# Triton drops by itself those that it finds cancelled in its queue; now and then these are all, and it is played again.
TRIES = 5
# Of streams that are over: keys, states, words, senders, wherever they are. One stream has four of them and more.
LEFT, MOST_LEFT = "things that are kept when all streams are over", 4
TIMEOUT_S = 20  # for the next word of anybody
# Sent twice when all others have ended, one call each: when the second is answered, what was kept after the first is
# written down. What was kept after the second may not be, yet.
AFTER = "more"
# `execute` in the file as it is handed out.
_OPEN = "def execute(self, requests):\n        return None  # your code"
# Around what the learner has written: counts calls, notes what each had and what is kept after it, and loses some.
_AROUND = """
import importlib.util, json, os, time, traceback
import triton_python_backend_utils as pb_utils
from inflight.notebook.kept import kept
spec = importlib.util.spec_from_file_location("written", os.path.join(os.path.dirname(__file__), "written.py"))
written = importlib.util.module_from_spec(spec)
spec.loader.exec_module(written)
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
release, again = None, []  # what a request does with its flags, and whose were rescheduled in this call


def note_releases(kind):
    global release
    release = release or kind.set_release_flags

    def noting(request, flags):
        release(request, flags)
        if flags == RESCHEDULE:
            again.append(id(request))

    kind.set_release_flags = noting


class TritonPythonModel(written.TritonPythonModel):
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.cancelled = 0
        self.log = config["parameters"]["log"]["string_value"]
        self.log_of_calls = open(self.log, "a")
        super().initialize(args)
        self.before = 0
        self.before = kept(self, written)

    def execute(self, requests):
        time.sleep(0.01)
        note_releases(type(requests[0]))
        requests = [request for request in requests if not self.is_lost(request)]
        number = sum(int(written.value(request, "READY")) for request in requests)
        gone = [request for request in requests if written.value(request, "READY") and request.is_cancelled()]
        again.clear()
        try:
            return super().execute(requests)
        except Exception as error:
            places = traceback.extract_tb(error.__traceback__)
            lines = [place.lineno for place in places if place.filename == spec.origin]
            where = f" in line {lines[-1]} of your file" if lines else ""
            with open(self.log + ".failed", "a") as failed:
                print(f"execute has failed{where}: {type(error).__name__}: {error}.", file=failed)
            raise
        finally:
            released = sum(id(request) not in again for request in gone)
            more = kept(self, written) - self.before
            self.log_of_calls.write(json.dumps([number, more, released, len(gone)]) + "\\n")
            self.log_of_calls.flush()

    def is_lost(self, request):
        # Every other one that is cancelled is dropped without a word, as Triton does with those that it finds in its
        # queue: whether one is there at that moment is chance.
        if not written.value(request, "READY") or not request.is_cancelled():
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


@grades("7.3", "Whoever says RESCHEDULE gives the batch back: each call has whoever is there, a word for each.")
def _model(path: Path, choose: random.Random) -> Finding | dict[str, Finding]:
    if _is_open(path):
        return NOT_YET
    texts = [_text(choose, choose.randrange(3, 14)) for _ in range(6)]
    texts.insert(choose.randrange(1, 7), "")  # it has nothing to say, and must not keep the others waiting
    played = _play(Path(path), texts, {}, "direct { }", PLACES)
    if isinstance(played, str):
        return played
    heard, calls = played
    spoken = heard[heard["word"] != ""]  # a model may end an empty text with an empty word
    said = {number: spoken[spoken["stream"] == number]["word"].tolist() for number in range(1, len(texts) + 1)}
    mixed = [number for number, words in said.items() if words != texts[number - 1].split()]
    wrong = mixed and f"Stream {mixed[0]} sent {texts[mixed[0] - 1]!r} and heard {said[mixed[0]]}."
    words, longest = sum(len(text.split()) for text in texts), max(len(text.split()) for text in texts)
    on_paper = max(longest, -(-words // PLACES))
    return {
        "words": f"{wrong} Each stream has words of its own, one a call, in their order." if wrong else None,
        "calls": [
            Measured(
                "ready requests that got no word",
                max(0, sum(ready for ready, *_ in calls) - words - texts.count("") - 2 * len(AFTER.split())),
                exactly=0,
                course=0,
                advice="All that are ready are computed in one call.",
            ),
            Measured("calls of execute", len(calls), course=on_paper, nothing=words),
            Measured(
                "most words of a stream",
                longest,
                at_most=len(calls),
                advice="One word a call: then the request goes back into the queue.",
            ),
        ],
        "states at the end": Measured(
            LEFT,
            _left_over(calls),
            at_most=MOST_LEFT,
            course=0,
            nothing=4 * len(texts),
            advice="Who is done is forgotten.",
        ),
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
        heard, calls = played
        if any(gone for *_, gone in calls):
            break
    stayed = [number for number in range(1, len(texts) + 1) if number not in leave_after]
    mixed = [
        number for number in stayed if heard[heard["stream"] == number]["word"].tolist() != texts[number - 1].split()
    ]
    words = sum(len(text.split()) for text in texts)
    return {
        "those who stay": f"Stream {mixed[0]} stayed, and did not hear its own words in their order."
        if mixed
        else None,
        "states at the end": Measured(
            LEFT,
            _left_over(calls),
            at_most=MOST_LEFT,
            course=0,
            nothing=4 * len(leave_after),
            advice="Who has gone is in no call any more: ask the senders that you keep, is_cancelled().",
        ),
        "their places": Measured(
            "cancelled requests released at once",
            sum(released for *_, released, _ in calls),
            exactly=0,
            course=0,
            nothing=0,
            advice="Their places stay taken: reschedule a cancelled request, and Triton frees its place.",
        ),
        "words for nobody": Measured(
            "words computed",
            sum(ready for ready, *_ in calls),
            at_most=words - 40,
            nothing=words,
            advice="A request whose client has gone needs no further word: request.is_cancelled().",
        ),
    }


def _left_over(calls: list[list[int]]) -> int:
    return min(kept for _, kept, *_ in calls[-2:])


def _is_open(path: Path) -> bool:
    path = Path(path)
    return not path.is_file() or _OPEN in path.read_text(encoding="utf-8", errors="replace")


def _text(choose: random.Random, number: int) -> str:
    return " ".join("".join(choose.choices(_SYLLABLES, k=2)) for _ in range(number))


def _play(path: Path, texts: list[str], leave_after: dict[int, int], strategy: str, places: int) -> tuple | str:
    """What was heard, and what happened in each call; or what went wrong.

    Of a call there is how many were ready, how much was kept after it, how many requests were released whose
    clients had gone, and how many of those there were.

    In the end two more texts are sent, so that a model which looks around in each call has had the occasion.
    """
    with tempfile.TemporaryDirectory(prefix="inflight-check-") as folder:
        repo, log = Path(folder) / "repo", Path(folder) / "calls.jsonl"
        (repo / MODEL / "1").mkdir(parents=True)
        config = _CONFIG.replace("LOG", str(log)).replace("STRATEGY", strategy).replace("PLACES", str(places))
        (repo / MODEL / "config.pbtxt").write_text(config, encoding="utf-8")
        (repo / MODEL / "1" / "model.py").write_text(_AROUND, encoding="utf-8")
        shutil.copyfile(path, repo / MODEL / "1" / WRITTEN)
        progress.say(f"a Triton with your model answers {len(texts)} texts, {strategy}, {places} places")
        try:
            server = Server(repo).start()
        except CourseError as error:
            return f"Triton cannot load it. {_first(error)}"
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
        return problem or (heard, [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()])


def _first(error: CourseError) -> str:
    return str(error).partition("\n")[0][:300]
