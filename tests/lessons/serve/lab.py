"""Lab 03's answers: what readers feel, a client that ends what nobody reads, readers who share, calls that are counted."""

from concurrent.futures import ThreadPoolExecutor

import pandas as pd

from inflight.lessons.serve.grading import MODELS
from inflight.notebook.checks.answers import load
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.triton import telemetry
from inflight.triton.client.client import Client
from tests.lessons.answers import SERVER, SLOW, Answer, Made, of_the_lab, replaced, written

FAR_FROM_BUDGET = {
    "3.2": dict.fromkeys(("tokens computed", "pieces with a time of their own"), "a real server's speed decides"),
}


# 3.1: what readers feel -----------------------------------------------------------------------------------------------


def gaps_of(answers):
    return [gap for times_s in answers for gap in pd.Series(times_s).diff().dropna()]


def tpots_of(answers):
    return [(times_s[-1] - times_s[0]) / (len(times_s) - 1) for times_s in answers if len(times_s) > 1]


def right_felt(answers, percent):
    numbers = {
        "ttft_ms": [times_s[0] for times_s in answers],
        "tpot_ms": tpots_of(answers),
        "itl_ms": gaps_of(answers),
        "e2e_ms": [times_s[-1] for times_s in answers],
    }
    return {name: pd.Series(values).quantile(percent / 100) * 1000 for name, values in numbers.items()}


def felt_but(name, numbers, statistic=None):
    def felt(answers, percent):
        values = pd.Series(numbers(answers))
        wrong = statistic(values) if statistic else values.quantile(percent / 100)
        return {**right_felt(answers, percent), name: wrong * 1000}

    return felt


def crashes_for_one(answers, percent):
    tpots = [(times_s[-1] - times_s[0]) / (len(times_s) - 1) for times_s in answers]
    return {**right_felt(answers, percent), "tpot_ms": pd.Series(tpots).quantile(percent / 100) * 1000}


def no_gap_is_0(answers, percent):
    padded = [*tpots_of(answers), *(0 for times_s in answers if len(times_s) == 1)]
    return {**right_felt(answers, percent), "tpot_ms": pd.Series(padded).quantile(percent / 100) * 1000}


# 3.2: a client --------------------------------------------------------------------------------------------------------

COURSES = COURSES_OWN["client"].read_text(encoding="utf-8")
CALLBACK = "lambda result, error: self._arrived.put((self._now_s(), result, error))"
CANCEL = "        self._connection.stop_stream(cancel_requests=True)\n"
READS = """            if word in stream.answer.text:
                break
"""
CLOSE = "        self._connection.close()\n"
RAISES = "                raise error\n"
NOTES = "times_s.append(after_s)"


def client(*changes, text=COURSES):
    def make(request, folder):
        path = folder / "client.py"
        path.write_text(replaced(text, *changes), encoding="utf-8")
        return path, request.getfixturevalue("lab_server")

    return Made(make)


STOPS_BY_ID = '''
    def cancel(self):
        """TensorRT-LLM's own way: a second request with the same id, and `stop`."""
        zero = {"input_ids": 0, "input_lengths": 0, "request_output_len": 0}
        made = []
        for name, datatype, value in [*((name, "INT32", 0) for name in zero), ("stop", "BOOL", True)]:
            array = np.array([[value]], triton_to_np_dtype(datatype))
            made.append(triton.InferInput(name, array.shape, datatype))
            made[-1].set_data_from_numpy(array)
        if self._connection is not None:
            self._connection.async_stream_infer("tensorrt_llm", made, request_id=self._id)
            self._connection.close()
            self._connection = None


def ask('''
BY_ID = replaced(
    COURSES[: COURSES.index("\n    def cancel")] + STOPS_BY_ID + COURSES.partition("\ndef ask(")[2],
    ("        self._arrived = queue", "        self._id = str(id(self))\n        self._arrived = queue"),
    ('            "ensemble",\n', '            "ensemble",\n            request_id=self._id,\n            inputs='),
    ("inputs=            tensors", "inputs=tensors"),
)


# 3.3 and 3.4: with a server -------------------------------------------------------------------------------------------


def at_once(
    server, number, max_tokens, num_threads=None, prompt="Tell me about the number {}.", whole=False, **options
):
    with Client(server.grpc_url) as client, ThreadPoolExecutor(num_threads or number) as readers:

        def ask(reader):
            if whole:
                return client.ask(prompt.format(reader), max_tokens, **options)
            return client.stream(prompt.format(reader), max_tokens, **options).read()

        return list(readers.map(ask, range(number)))


def waited(answers):
    return sum(one.times_s[0] > min(other.times_s[-1] for other in answers) for one in answers)


def fit(table, max_ttft_ms, max_itl_ms):
    rows = table.sort_values("readers")
    holds = (rows["ttft_ms"] <= max_ttft_ms) & (rows["itl_ms"] <= max_itl_ms)
    return int(rows["readers"][holds.cummin()].max()) if holds.iloc[0] else 0


def any_that_holds(table, max_ttft_ms, max_itl_ms):
    holds = (table["ttft_ms"] <= max_ttft_ms) & (table["itl_ms"] <= max_itl_ms)
    return int(table["readers"][holds].max()) if holds.any() else 0


def with_the_courses_client(server, number, tokens):
    own = load(COURSES_OWN["client"])
    with ThreadPoolExecutor(number) as readers:
        return list(readers.map(lambda n: own.ask(server.grpc_url, f"Say {n}.", tokens, end_id=-1), range(number)))


def no_function(*_):
    return None


def readers(ask=no_function, who=no_function, fits=no_function):
    def make(request, folder):
        server = request.getfixturevalue("lab_server")
        return (lambda number, tokens: ask(server, number, tokens)), who, fits, server

    return Made(make)


def asking(**options):
    return readers(lambda server, number, tokens: at_once(server, number, tokens, **options, end_id=-1), waited, fit)


def counted(server):
    return {model: telemetry.statistics(server.http_url, model).executions for model in MODELS}


def calls_of(server, send):
    before = telemetry.settled(lambda: counted(server))
    send()
    after = telemetry.settled(lambda: counted(server))
    return {model: after[model] - before[model] for model in MODELS}


def without_subtraction(server, send):
    send()
    return telemetry.settled(lambda: counted(server))


def sends_twice(server, send):
    send()
    return calls_of(server, send)


def unsettled(server, send):
    before = counted(server)
    send()
    after = counted(server)
    return {model: after[model] - before[model] for model in MODELS}


def calls(function):
    def make(request, folder):
        server = request.getfixturevalue("lab_server")
        return (lambda send: function(server, send)), server

    return Made(make)


S, SS = [SERVER], [SERVER, SLOW]
ANSWERS = [
    *of_the_lab("serve", {"3.1": "felt"}),
    Answer("3.1", "a Series", lambda answers, percent: pd.Series(right_felt(answers, percent))),
    Answer("3.1", "rounded", lambda answers, percent: pd.Series(right_felt(answers, percent)).round(2)),
    Answer("3.1", "an empty dict", lambda answers, percent: {}, "not done yet"),
    Answer("3.1", "a constant", lambda answers, percent: dict.fromkeys(right_felt(answers, percent), 5700.0), "wrong",
           "From where to where"),
    Answer("3.1", "in seconds",
           lambda answers, percent: {name: value / 1e3 for name, value in right_felt(answers, percent).items()}, "wrong",
           "It is in seconds"),
    Answer("3.1", "over the pieces", felt_but("tpot_ms", lambda answers: [times_s[-1] / len(times_s) for times_s in answers]),
           "partly", "gaps between them"),
    Answer("3.1", "TPOT from all gaps", felt_but("tpot_ms", gaps_of), "partly", "TPOT is one number for each answer"),
    Answer("3.1", "ITL from the means", felt_but("itl_ms", tpots_of), "partly", "all gaps count together"),
    Answer("3.1", "the mean", felt_but("itl_ms", gaps_of, pd.Series.mean), "partly", "That is the mean"),
    Answer("3.1", "the largest", felt_but("itl_ms", gaps_of, pd.Series.max), "partly", "From where to where"),
    Answer("3.1", "from the first piece",
           felt_but("e2e_ms", lambda answers: [times_s[-1] - times_s[0] for times_s in answers]), "partly", "is sent"),
    Answer("3.1", "no gap is 0", no_gap_is_0, "partly", "e2e_ms ✓, an answer of one piece among them not right yet"),
    Answer("3.1", "crashes for one piece", crashes_for_one, "partly",
           "ttft_ms ✓, tpot_ms ✓, itl_ms ✓, e2e_ms ✓, an answer of one piece among them not right yet. Your answer could not "
           "be checked: ZeroDivisionError"),
    Answer("3.1", "half of it", lambda answers, percent: {name: value for name, value in right_felt(answers, percent).items()
                                                          if name in ("ttft_ms", "e2e_ms")},
           "partly", "ttft_ms ✓, tpot_ms still open, itl_ms still open, e2e_ms ✓"),

    Answer("3.2", "the solution", client(text=written("serve", "solutions", "client.py")), marks=S),
    Answer("3.2", "as handed out", client(text=written("serve", "labs", "client.py")), "not done yet", marks=S),
    Answer("3.2", "stops by id", client(text=BY_ID), marks=S),
    Answer("3.2", "a callback with other names", client((CALLBACK, CALLBACK.replace("result", "answer"))), "wrong",
           "unexpected keyword argument 'result'", S),
    Answer("3.2", "cancel does nothing", client((CANCEL + CLOSE, "        _left.append(self)\n\n\n_left = []\n")), "partly",
           "for 3 pieces and a cancel: yours 120", S),
    Answer("3.2", "waits for ever", client(("            is_final = parameters", "            is_over = parameters")), "wrong",
           "a wait for what never comes?", SS),
    Answer("3.2", "nothing is read", client((READS, "            break\n")), "partly", "read_until returns the whole text", SS),
    Answer("3.2", "a whole answer", client(('("BOOL", True)', '("BOOL", False)')), "partly", "in 1 pieces; the server sends", SS),
    Answer("3.2", "pieces lose their blanks", client(("text[0].decode())", "text[0].decode().strip())")), "partly", "and ask gives", SS),
    Answer("3.2", "one time for all", client((NOTES, "times_s = [after_s] * len(self.answer.pieces)")), "partly",
           "with a time of their own: 1", SS),
    Answer("3.2", "times since the first", client((NOTES, "times_s.append(after_s if self.answer.times_s else 0.0)")), "partly",
           "for the first piece alone", SS),
    Answer("3.2", "times of the reader", client((NOTES, "times_s.append(self._now_s())")), "partly", "in the callback", SS),
    Answer("3.2", "milliseconds", client((NOTES, "times_s.append(after_s * 1000)")), "partly", "seconds since the request", SS),
    Answer("3.2", "an error is the end", client((RAISES, "                return\n")), "partly", "your client says nothing", SS),
    Answer("3.2", "the word in a piece", client((READS, READS.replace(".text", ".pieces[-1]"))), "partly", "Up to the piece", SS),
    Answer("3.2", "the stream waits for its end", client((CANCEL, CANCEL.replace("cancel_requests=True", ""))), "partly",
           "tokens computed, of 120", SS),
    Answer("3.2", "cancel but once", client((CLOSE, CLOSE + "        del self._connection\n")), "partly", "AttributeError", SS),
    Answer("3.2", "options are left out", client(("    values |= {name", "    {name")), "partly", "pass the options on", SS),

    Answer("3.3", "as handed out", readers(), "not done yet", marks=S),
    Answer("3.3", "the solution", asking(), marks=S),
    Answer("3.3", "with the client of 3.2", readers(with_the_courses_client, waited, fit), marks=S),
    Answer("3.3", "one prompt for all", asking(prompt="Say."), marks=S),
    Answer("3.3", "one after the other", asking(num_threads=1), "partly",
           "at_once not right yet, who_waited ✓, readers_that_fit ✓. most readers in one iteration", S),
    Answer("3.3", "one answer for all", readers(lambda server, number, tokens: at_once(server, 1, tokens, end_id=-1) * number,
                                                waited, fit), "partly", "readers in one iteration", S),
    Answer("3.3", "eight", readers(lambda server, number, tokens: at_once(server, 8, tokens, end_id=-1), waited, fit), "partly",
           "gave 8 answers", S),
    Answer("3.3", "half the tokens", readers(lambda server, number, tokens: at_once(server, number, tokens // 2, end_id=-1),
                                             waited, fit), "partly", "tokens computed for", S),
    Answer("3.3", "whole answers", asking(whole=True), "partly", "in pieces: 0", S),
    *(
        Answer("3.3", f"who waited: {name}", readers(who=who), "wrong", "had no token before somebody else had all", S)
        for name, who in {
            "nobody": lambda answers: 0,
            "all": len,
            "more than eight": lambda answers: max(0, len(answers) - 8),
            "after the last": lambda answers: sum(one.times_s[0] > max(other.times_s[-1] for other in answers) for one in answers),
            "after the first reader": lambda answers: sum(one.times_s[0] > answers[0].times_s[-1] for one in answers),
        }.items()
    ),
    *(
        Answer("3.3", f"readers that fit: {name}", readers(fits=fits), "wrong", "this table allows", S)
        for name, fits in {
            "all": lambda table, *_: table["readers"].max(),
            "eight": lambda table, *_: 8,
            "any that holds": any_that_holds,
            "one promise": lambda table, ttft, itl: fit(table, ttft, 1e9),
            "in the table's order": lambda table, ttft, itl: fit(table.assign(readers=range(len(table))), ttft, itl),
        }.items()
    ),

    Answer("3.4", "as handed out", calls(lambda server, send: None), "not done yet", marks=S),
    Answer("3.4", "the solution", calls(calls_of), marks=S),
    Answer("3.4", "a Series", calls(lambda server, send: pd.Series(calls_of(server, send))), marks=S),
    Answer("3.4", "a guess", calls(lambda server, send: dict.fromkeys(MODELS, 1)), "wrong", "called send 0 times", S),
    Answer("3.4", "one of each", calls(lambda server, send: {**calls_of(server, send), "postprocessing": 1}), "partly",
           "calls of postprocessing: 1", S),
    Answer("3.4", "nothing", calls(lambda server, send: send() or {}), "wrong", "calls of preprocessing: none", S),
    Answer("3.4", "no subtraction", calls(without_subtraction), "wrong", "Subtract what", S),
    Answer("3.4", "sends twice", calls(sends_twice), "wrong", "called send 2 times", S),
    Answer("3.4", "read too early", calls(unsettled), "partly", "read them once they no longer change", S),
]  # fmt: skip
