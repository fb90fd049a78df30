"""Lab 08's answers: new tokens behind known ones, models with few slots, models with blocks."""

import numpy as np

from inflight.notebook.checks.parts import COURSES_OWN
from tests.lessons.answers import SLOW, Answer, File, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403


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


# 8.2 and 8.3: models --------------------------------------------------------------------------------------------------

COURSES, PAGED = (COURSES_OWN[part].read_text() for part in ("iterative_gpt2", "paged_gpt2"))
WITH_ROOM = COURSES[COURSES.index("        for text in [") : COURSES.index("    def forget(")]
FORGET = """        text = self.texts.pop(number)
        if text.slot is not None:
            self.free.append(text.slot)
"""
SET_OF_SLOTS = """        for number in numbers:
            text = self.texts[number]
            if text.slot is None and self.free:
                text.slot = min(self.free)
                self.free.remove(text.slot)
        return [one for one in self.texts if one in numbers and self.texts[one].slot is not None]

"""
ARRIVAL = "[self.texts[n] for n in self.texts if n in numbers]"
LATEST = f"{ARRIVAL}[::-1]"
GIVEN_SLOT = "                text.slot = self.free.pop()\n"
NEXT_CALL = WITH_ROOM.replace(
    "        for", "        had = [n for n in numbers if self.texts[n].slot is not None]\n        for"
)
NEXT_CALL = NEXT_CALL.replace("return", "return had or")
WAITED = "calls in which a text waited while a slot was free: "
GIVEN = "text.blocks = [self.free.pop() for _ in range(needed)]"
# A method more, behind the last one.
STEP = "\n    def step(self, texts):\n"
NOBODYS = """        if not hasattr(self, "is_first"):
            self.is_first = False
            self.network.next_tokens([7], [0], [0], lambda layer, qkv: qkv[:, 2])
        return super().step(texts)
"""
IN_TWO = """        self.split = getattr(self, "split", 0) + (1 < len(texts) < 8)
        if not 1 < len(texts) < 8 or self.split > CALLS:
            return super().step(texts)
        return super().step(texts[:1]) + super().step(texts[1:])
"""
IN_ORDER = PAGED[PAGED.index("        for text in [") : PAGED.index("        return [number for number in numbers if")]
IN_TURN = """        waiting = [text for number, text in self.texts.items() if number in numbers and not text.blocks]
        while waiting and -(-waiting[0].length // BLOCK) <= len(self.free):
            text = waiting.pop(0)
            while len(text.blocks) * BLOCK < text.length:
                text.blocks.append(self.free.pop(0))
"""
BREAK = "                break  # a shorter one that came later would overtake it for ever\n"


def model(*changes, more=""):
    return File(replaced(COURSES, *changes) + more, "model.py")


def paged(*changes, more=""):
    return File(replaced(PAGED, *changes) + more, "model.py")


def keeps(items, model=model):
    """Keeps so much more of one text of eleven."""
    first = "        self.over = getattr(self, 'over', 0) + 1\n"
    keep = f"        self.more = getattr(self, 'more', []) + [0] * {items} * (self.over % 11 == 0)\n"
    says = '        """Keep nothing more of a sequence."""\n'
    return model((says, says + first + keep))


def split(calls):
    """So many calls have two passes where one is enough."""
    return STEP + IN_TWO.replace("CALLS", str(calls))


FAR_FROM_BUDGET = {"8.3": {"tokens computed": "8.2 counts them", "items and bytes more": "8.2 counts it"}}
ANSWERS = [
    *of_the_lab("iterative_gpt2", {"8.1": "next_part", "8.2": "gpt2_model.py", "8.3": "paged_model.py"}),
    Answer("8.1", "lists, and one mask", in_parts),
    Answer("8.1", "token by token", token_by_token, "partly", "go in together"),
    Answer("8.1", "is_causal's mask", as_is_causal, "partly", "one projection each ✓, the result not right yet"),
    Answer("8.1", "no mask", no_mask, "partly", "is not that of the whole text"),
    Answer("8.1", "without itself", without_itself, "partly", "is not that of the whole text"),
    Answer("8.1", "one cache for all", one_cache_for_all, "partly", "is not that of the whole text"),
    Answer("8.1", "all again", all_again, "partly", "the result ✓. tokens projected: "),
    Answer("8.1", "no numbers", lambda *given: in_parts(*given) is not None and [None], "partly", "the result, [new, size], is"),

    Answer("8.2", "the lowest slot, in the order of the batch", model((WITH_ROOM, SET_OF_SLOTS))),
    Answer("8.2", "the latest first", model((ARRIVAL, LATEST)), marks=[SLOW]),
    Answer("8.2", "passes, just inside", model(more=split(12))),
    Answer("8.2", "passes, just outside", model(more=split(13)), "wrong", "forward passes: "),
    Answer("8.2", "one slot a call", model((GIVEN_SLOT, f"{GIVEN_SLOT}                break\n")), "wrong", WAITED),
    Answer("8.2", "computed from the next call on", model((WITH_ROOM, NEXT_CALL)), "wrong", WAITED, [SLOW]),
    Answer("8.2", "keeps, just inside", keeps(100)),
    Answer("8.2", "keeps, just outside", keeps(101), "wrong", "items and bytes more after the same texts once more: 101"),
    Answer("8.2", "a slot too many", model(("SLOTS = 4", "SLOTS = 5")), "wrong", "texts in the fullest pass: 5"),
    Answer("8.2", "no slot comes back", model((FORGET, "        self.texts.pop(number)\n")), "wrong", "none gets a token"),
    Answer("8.2", "nobody waits", model((" and self.free:", ":")), "wrong", "model.py, line", [SLOW]),
    Answer("8.2", "one at a time", model((WITH_ROOM, WITH_ROOM.rstrip() + "[:1]\n\n")), "wrong", WAITED, [SLOW]),
    Answer("8.2", "one slot for all", model(("self.free.pop()\n", "0\n")), "wrong", "answers that differ", [SLOW]),
    Answer("8.2", "texts stay in the module",
           model(("        text = self.texts.pop(number)\n", "        text = self.texts.pop(number)\n        OVER.append(text)\n"),
                 ("SLOTS = 4", "OVER = []\nSLOTS = 4")), "wrong", "items and bytes more", [SLOW]),
    Answer("8.2", "a token for nobody", model(more=STEP + NOBODYS), "wrong", "tokens computed: "),

    Answer("8.3", "a queue", paged((IN_ORDER, IN_TURN)), marks=[SLOW]),
    Answer("8.3", "as they fit", paged((BREAK, "                continue\n")), "wrong", "overtaken one that waits: "),
    Answer("8.3", "in the order of the batch", paged(("for number in self.texts if number in numbers]", "for number in numbers]")),
           "wrong", "overtaken one that waits: ", [SLOW]),
    Answer("8.3", "passes, just inside", paged(more=split(4))),
    Answer("8.3", "passes, just outside", paged(more=split(5)), "wrong", "forward passes: "),
    Answer("8.3", "one fewer at a time", paged(("if self.texts[number].blocks]", "if self.texts[number].blocks][:7]")), "wrong",
           "texts in the fullest pass: 7"),
    Answer("8.3", "keeps half a block more", paged(("list(range(BLOCKS))", "list(range(BLOCKS))\n        self.more = [0] * 130_000"))),
    Answer("8.3", "keeps more than half", paged(("list(range(BLOCKS))", "list(range(BLOCKS))\n        self.more = [0] * 135_000")),
           "wrong", "items and bytes kept: "),
    Answer("8.3", "a block too few", paged(("needed = -(-text.length // BLOCK)", "needed = text.length // BLOCK")), "wrong",
           "list index out of range"),
    Answer("8.3", "the table is not read", paged(("text.blocks[token // BLOCK] * BLOCK", "text.blocks[0] * BLOCK")), "wrong",
           "answers that differ"),
    Answer("8.3", "eight blocks for each",
           paged(("-(-text.length // BLOCK)", "8")), "wrong", "texts in the fullest pass: 2", [SLOW]),
    Answer("8.3", "one block too many", paged(("BLOCKS, BLOCK = 16", "BLOCKS, BLOCK = 17")), "wrong", "items and bytes kept: ", [SLOW]),
    Answer("8.3", "no block comes back", paged(("        self.free += self.texts.pop(number).blocks", "        self.texts.pop(number)")),
           "wrong", "none gets a token", [SLOW]),
    Answer("8.3", "all have the same blocks", paged((GIVEN, "text.blocks = self.free[:needed]")), "wrong", "answers that differ",
           [SLOW]),
]  # fmt: skip
