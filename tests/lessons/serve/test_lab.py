"""Lab 03's answers: a stream that is cut anywhere, a client that ends what nobody reads, readers who share."""

from concurrent.futures import ThreadPoolExecutor

from inflight.notebook.checks.answers import load
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.triton.client.client import Client
from tests.lessons.answers import SERVER, SLOW, Answer, File, Made, of_the_lab, replaced, written
from tests.lessons.table import *  # noqa: F403

FAR_FROM_BUDGET = {
    "3.2": dict.fromkeys(("tokens computed", "pieces with a time of their own"), "a real server's speed decides"),
}


# 3.1: a stream, cut anywhere ------------------------------------------------------------------------------------------

EVENTS = written("serve", "solutions", "events.py")
A_LINE = """        *lines, held = (held + chunk).split(b"\\n")
        for line in lines:
"""
TELLS = """    told = {"text": "", "reasoning": "", "end": None, "tokens": None, "error": None}
"""


def events(*changes):
    return File(replaced(EVENTS, *changes), "events.py")


BY_CHARACTERS = '''
import codecs
import json
import re


def answer_of(chunks):
    """Decodes as the bytes come, and cuts the text into lines."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    lines = re.split("\\r?\\n", "".join(decode(chunk) for chunk in chunks))[:-1]
    found = [json.loads(line[5:]) for line in lines if re.match("data: *{", line)]
    choices = [choice for event in found for choice in event.get("choices", ())]
    deltas = [choice["delta"] for choice in choices]
    thoughts = [one.get(name) or "" for one in deltas for name in ("reasoning", "reasoning_content")]
    used = [event["usage"]["completion_tokens"] for event in found if event.get("usage")]
    failed = [event["error"]["message"] for event in found if event.get("error")]
    ends = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    return {
        "text": "".join(one.get("content") or "" for one in deltas),
        "reasoning": "".join(thoughts),
        "end": ends[-1] if ends else None,
        "tokens": used[-1] if used else None,
        "error": failed[-1] if failed else None,
    }
'''

# 3.2: a client --------------------------------------------------------------------------------------------------------

COURSES = COURSES_OWN["client"].read_text(encoding="utf-8")
CALLBACK = "lambda result, error: self._arrived.put((self._now_s(), result, error))"
CANCEL = "        self._connection.stop_stream(cancel_requests=True)\n"
READS = """            if word in stream.answer.text:
                break
"""
CLOSE = "        self._connection.close()\n"
IF_ERROR = "            if error is not None:\n"
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


# 3.3: with a server --------------------------------------------------------------------------------------------------


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


S, SS, SLOW_ = [SERVER], [SERVER, SLOW], [SLOW]
ANSWERS = [
    *of_the_lab("serve", {"3.1": "events.py"}),
    Answer("3.1", "by characters", File(BY_CHARACTERS, "events.py")),
    Answer("3.1", "an empty dict", File("def answer_of(chunks):\n    return {}\n"), "wrong", "is wanted"),
    Answer("3.1", "a chunk is a line", events((A_LINE, "        for line in chunk.split(b\"\\n\"):\n")), "partly",
           "a line a chunk ✓, cut anywhere not right yet"),
    Answer("3.1", "decodes chunks", events((A_LINE, A_LINE.replace("(held + chunk)", "(held + chunk.decode().encode())"))),
           "partly", "UnicodeDecodeError"),
    Answer("3.1", "splitlines", events((A_LINE, """        *lines, held = [one.encode() for one in (held + chunk).decode(errors="ignore").splitlines()] or [b""]
        for line in lines:
""")), "wrong", "JSONDecodeError"),
    Answer("3.1", "a blank is needed", events(('partition(b":")', 'partition(b": ")')), "partly",
           "cut anywhere ✓, other servers' lines not right yet"),
    Answer("3.1", "one name of reasoning", events((' or delta.get("reasoning")', "")), "partly", "reasoning not right yet"),
    Answer("3.1", "null is text", events(('delta.get("content") or ""', 'delta.get("content", "")')), "partly", "TypeError"),
    Answer("3.1", "null is an error", events(('event.get("error")', '"error" in event')), "partly", "usage not right yet"),
    Answer("3.1", "no text is none", events(("    return told\n\n\ndef take", '    return told | {"text": told["text"] or None}\n\n\ndef take')),
           "wrong", "'text': None"),
    Answer("3.1", "choices[0]", events(('for choice in event.get("choices") or []:', 'for choice in event["choices"][:1]:')),
           "partly", "KeyError"),
    Answer("3.1", "[DONE] is the end", events(('data.strip() != b"[DONE]":', 'data.strip() == b"[DONE]":\n'
           '                told["end"] = told["end"] or "stop"\n            elif field == b"data":')), "partly", "an error not right yet"),
    Answer("3.1", "the rest is a line", events(("    return told\n\n\ndef take", '    if b":" in held:\n'
           '        take(json.loads(held.partition(b":")[2]), told)\n    return told\n\n\ndef take')), "partly", "JSONDecodeError"),
    Answer("3.1", "never comes back", events((TELLS, TELLS + "    while True:\n        pass\n")), "wrong", "events.py", SLOW_),

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
    Answer("3.2", "an error is not looked at", client((IF_ERROR + RAISES, "")), "partly", "'get_response'", SS),
    Answer("3.2", "the word in a piece", client((READS, READS.replace(".text", ".pieces[-1]"))), "partly", "Up to the piece", SS),
    Answer("3.2", "the stream waits for its end", client((CANCEL, CANCEL.replace("cancel_requests=True", ""))), "partly",
           "tokens computed, of 120", SS),
    Answer("3.2", "cancel but once", client((CLOSE, CLOSE + "        del self._connection\n")), "partly", "AttributeError", SS),
    Answer("3.2", "options are left out", client(("    values |= {name", "    {name")), "partly", "pass the options on", SS),

    Answer("3.3", "as handed out", readers(), "not done yet", marks=S),
    Answer("3.3", "the solution", asking(), marks=S),
    Answer("3.3", "with the client of 3.2", readers(with_the_courses_client, waited, fit), marks=S),
    Answer("3.3", "one prompt for all", asking(prompt="Say."), marks=SS),
    Answer("3.3", "one after the other", asking(num_threads=1), "partly",
           "at_once not right yet, who_waited ✓, readers_that_fit ✓. most readers in one iteration", SS),
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
            "less than promised": lambda table, ttft, itl: fit(table, ttft - 0.5, itl - 0.5),
            "in the table's order": lambda table, ttft, itl: fit(table.assign(readers=range(len(table))), ttft, itl),
        }.items()
    ),
]  # fmt: skip
