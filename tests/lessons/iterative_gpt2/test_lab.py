"""Lab 08's answers: tokens on paper, a prompt in parts, settings for ten streams, models with few rows."""

import numpy as np
import pandas as pd

from inflight.errors import CourseError
from inflight.lessons.iterative_gpt2 import grading
from inflight.models import gpt2_checkpoint
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.triton import repository
from inflight.triton.serving.server import Server
from tests.lessons.answers import SERVER, SLOW, Answer, File, Made, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403


def padded(prompts, answer):
    return len(prompts) * (max(prompts) * answer + answer * (answer - 1) // 2)


def without(prompts, answer):
    return sum(prompts) * answer + len(prompts) * answer * (answer - 1) // 2


def with_cache(prompts, answer):
    return sum(prompts) + len(prompts) * (answer - 1)


def attention(query, keys, values, seen):
    """Of all new tokens at once; `seen` says which keys each may look at."""
    weights = np.exp(np.where(seen, np.array(query) @ np.array(keys).T / 2, -np.inf))
    return weights / weights.sum(1, keepdims=True) @ np.array(values)


def grown(x, key, value, cache):
    for name, function in (("k", key), ("v", value)):
        cache.setdefault(name, []).extend(function(x))
    return cache["k"], cache["v"]


def in_parts(x, query, key, value, cache, offset=0, by_known=True):
    keys, values = grown(x, key, value, cache)
    return attention(query(x), keys, values, np.tri(len(x), len(keys), (len(keys) - len(x)) * by_known + offset))


def token_by_token(x, query, key, value, cache):
    return [in_parts(one[None], query, key, value, cache)[0].tolist() for one in x]


def as_is_causal(*given):
    return in_parts(*given, by_known=False)


def without_itself(x, query, key, value, cache):
    first = not cache
    keys, values = grown(x, key, value, cache)
    seen = np.tri(len(x), len(keys), len(keys) - len(x) - 1)
    seen[0, 0] = seen[0, 0] or first
    return attention(query(x), keys, values, seen)


def no_mask(*given):
    return in_parts(*given, offset=99)


SHARED = {}


def one_cache_for_all(x, query, key, value, cache):
    return in_parts(x, query, key, value, SHARED)


def all_again(x, query, key, value, cache):
    text = cache["text"] = np.concatenate([cache["text"], x]) if cache else x
    return attention(query(x), key(text), value(text), np.tri(len(x), len(text), len(text) - len(x)))


def passes(*members, computed=1):
    """A log in which each pass has these sequences."""
    rows = [(number, sequence) for number, sequences in enumerate(members, 1) for sequence in sequences]
    return pd.DataFrame(rows, columns=["iteration", "sequence"]).assign(computed=computed)


TEN = range(1, 11)
IN_TURN = passes(*(TEN[:4], TEN[4:8], (9, 10, 1, 2), TEN[2:6], TEN[6:]) * 12)  # 24 tokens each
ONE_BY_ONE = passes(*((number,) for number in TEN for _ in range(24)))
FOUR_THEN_FOUR = passes(*(group for group in (TEN[:4], TEN[4:8], TEN[8:]) for _ in range(24)))


# 8.3: settings --------------------------------------------------------------------------------------------------------

SETTINGS = {"max_batch_size": 4, "sequence_batching.oldest.max_candidate_sequences": 10, "kv_cache_slots": 10}


def seen(found):
    """The settings, judged by this log, or by what the server said."""

    def passes_with(server, settings):
        if isinstance(found, CourseError):
            raise found
        return found

    def make(request, folder):
        request.getfixturevalue("monkeypatch").setattr(grading, "passes_with", passes_with)
        return SETTINGS, None

    return Made(make)


def measured(settings):
    """The settings, on a server."""

    def make(request, folder):
        model = {"gpt2_checkpoint_dir": gpt2_checkpoint.find("course-gpt2"), "iteration_log_path": folder / "log.jsonl"}
        server = Server(repository.assemble(folder / "repo", models=("iterative-gpt2",), **model)).start()
        request.addfinalizer(server.stop)
        return settings, server

    return Made(make)


# 8.4: models ----------------------------------------------------------------------------------------------------------

COURSES = COURSES_OWN["iterative_gpt2"].read_text()
STEP = """        attend = partial(self.attend, texts)
        tokens = self.network.next_tokens(ids, positions, last, attend)
"""
WITH_ROW = COURSES[COURSES.index("        for number in numbers:") : COURSES.index("    def forget_those_who_left")]
FORGET = """        text = self.texts.pop(number)
        if text.row is not None:
            self.free.append(text.row)
"""
SET_OF_ROWS = """        for number in numbers:
            text = self.texts[number]
            if text.row is None and self.free:
                text.row = min(self.free)
                self.free.remove(text.row)
        return [one for one in self.texts if one in numbers and self.texts[one].row is not None]

"""


def model(*changes):
    return File(replaced(COURSES, *changes), "model.py")


def keeps(items):
    """Keeps so much more of one text of eleven."""
    keep = f"                    self.begun += 1\n                    self.kept += [0] * {items} * (self.begun % 11 == 0)\n"
    begins = "                    self.texts[number] = self.begin(request)\n"
    return model(
        ("        self.texts = {}", "        self.kept, self.begun, self.texts = [], 0, {}"), (begins, keep + begins)
    )


def split(calls):
    """So many calls have two passes where one is enough."""
    step = "            tokens = self.step([self.texts[number] for number in computed])\n"
    in_two = """            self.split = getattr(self, "split", 0) + (len(computed) > 1)
            texts = [self.texts[number] for number in computed]
            first = 1 if len(texts) > 1 and self.split <= CALLS else 0
            tokens = [*(self.step(texts[:first]) if first else ()), *self.step(texts[first:])]
"""
    return model((step, in_two.replace("CALLS", str(calls))))


NOBODYS = """        if not hasattr(self, "is_first"):
            self.is_first = False
            self.network.next_tokens([7], [0], [0], lambda layer, projected: projected[:, 2])
"""
ANSWERS = [
    *of_the_lab(
        "iterative_gpt2",
        {"8.1": "(padded, without_cache, with_cache)", "8.2": "next_part", "8.4": "model.py"},
    ),
    Answer("8.1", "without loops", (padded, without, with_cache)),
    Answer("8.1", "of NumPy", (lambda *given: np.int64(padded(*given)), lambda *given: float(without(*given)), with_cache)),
    Answer("8.1", "one formula for two", (padded, padded, with_cache), "partly", "padded ✓, without a cache not right yet"),
    Answer("8.1", "the last token too", (padded, without, lambda prompts, answer: sum(prompts) + len(prompts) * answer),
           "partly", "with a cache not right yet"),
    Answer("8.1", "one written", (padded, lambda *_: None, lambda *_: None), "partly",
           "padded ✓, without a cache still open, with a cache still open"),

    Answer("8.2", "lists, and one mask", in_parts),
    Answer("8.2", "token by token", token_by_token),
    Answer("8.2", "is_causal's mask", as_is_causal, "partly", "one projection each ✓, the result not right yet"),
    Answer("8.2", "no mask", no_mask, "partly", "and to none after it"),
    Answer("8.2", "without itself", without_itself, "partly", "attends to itself"),
    Answer("8.2", "one cache for all", one_cache_for_all, "partly", "in its own cache"),
    Answer("8.2", "all again", all_again, "partly", "the result ✓. tokens projected: "),

    Answer("8.3", "ten in turn", seen(IN_TURN)),
    Answer("8.3", "the solution", measured(SETTINGS), marks=[SERVER, SLOW]),
    Answer("8.3", "as handed out", ({}, None), "not done yet"),
    Answer("8.3", "four in a pass alone", measured({"max_batch_size": 4}), "partly", "began after another had ended: ",
           [SERVER, SLOW]),
    Answer("8.3", "ten in a pass", seen(passes(*[TEN] * 24)), "partly", "streams in the fullest pass: 10, where exactly 4"),
    Answer("8.3", "one by one", seen(ONE_BY_ONE), "partly", "streams in the fullest pass: 1, where exactly 4"),
    Answer("8.3", "four, then four", seen(FOUR_THEN_FOUR), "partly", "began after another had ended: 6, where exactly 0"),
    Answer("8.3", "no cache", seen(IN_TURN.assign(computed=20)), "partly", "tokens computed twice: 4,370, where exactly 0"),
    Answer("8.3", "a field that is not there", seen(CourseError("The model has no field x.", log="a line")), "wrong",
           "Not right yet. The model has no field x."),

    Answer("8.4", "the lowest row, in the order of their start", model((WITH_ROW, SET_OF_ROWS)), marks=[SLOW]),
    Answer("8.4", "who is cancelled in the call gets no token",
           model(("self.with_row(batch)", "[one for one in self.with_row(batch) if not batch[one].is_cancelled()]"))),
    Answer("8.4", "passes, just inside", split(2)),
    Answer("8.4", "passes, just outside", split(3), "wrong", "forward passes: "),
    Answer("8.4", "keeps, just inside", keeps(100)),
    Answer("8.4", "keeps, just outside", keeps(101), "wrong", "more kept after the same texts once more: 101"),
    Answer("8.4", "a row too many", model(("ROWS = 4", "ROWS = 5")), "wrong", "texts in the fullest pass: 5"),
    Answer("8.4", "no row comes back", model((FORGET, "        self.texts.pop(number)\n")), "wrong", "none gets a token"),
    Answer("8.4", "no row comes back from who left",
           model(("            if self.texts[number].sender.is_cancelled():", "            if False:")), "wrong",
           "none gets a token", [SLOW]),
    Answer("8.4", "nobody waits", model((" and self.free:", ":")), "wrong", "model.py, line", [SLOW]),
    Answer("8.4", "one at a time", model((WITH_ROW, WITH_ROW.rstrip() + "[:1]\n\n")), "wrong", "forward passes", [SLOW]),
    Answer("8.4", "one row for all", model(("self.free.pop()\n", "0\n")), "wrong", "answers that differ", [SLOW]),
    Answer("8.4", "forgets who is in the call", model(("if number not in batch]:\n", "]:\n")), "wrong", "KeyError", [SLOW]),
    Answer("8.4", "the text stays elsewhere",
           model(("self.texts[number] = self.begin(request)",
                  "self.texts[number] = self.begin(request)\n                    self.all_texts = "
                  "[*getattr(self, 'all_texts', []), self.texts[number].ids]")), "wrong", "more kept", [SLOW]),
    Answer("8.4", "a token for nobody", model((STEP, NOBODYS + STEP)), "wrong", "tokens computed: 124, where at most 123"),
    Answer("8.4", "no last response", model(("flags=FINAL if is_last else 0", "flags=0")), "wrong", "without FINAL", [SLOW]),
]  # fmt: skip
