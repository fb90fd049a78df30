"""Lab 13's answers: a policy, a seal, bytes on paper, whom a full store forgets, and a client that goes on."""

import hashlib
import math

from inflight.notebook.checks.parts import COURSES_OWN
from tests.lessons.answers import Answer, File, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403

# 13.1 -----------------------------------------------------------------------------------------------------------------

COURSES = COURSES_OWN["kv_policy"].read_text()


def policy(body):
    return File(f"class Policy:\n    def choose(self, tokens, found, prices):\n        {body}\n", "kv_policy.py")


SAVED = """saved = {way: number * (prices["compute"] - prices[way]) for way, number in found.items()}
        best = max(saved, key=saved.get)
        return best if saved[best] > 0 else "compute\""""
BEST = """saved = {way: number * (prices["compute"] - prices[way]) for way, number in found.items()}
        best = max(saved, key=saved.get)
        return best if saved[best] > LIMIT else "compute\""""

# 13.2 -----------------------------------------------------------------------------------------------------------------

SEAL = """
import json
from hashlib import sha256


def head(engine, salt, tokens):
    return sha256(json.dumps([engine, salt, tokens], sort_keys=True).encode()).digest()


def seal(engine, salt, tokens, keys):
    content = head(engine, salt, tokens) + keys
    return content + sha256(content).digest()


def opened(engine, salt, tokens, content):
    whole = sha256(content[:-32]).digest() == content[-32:]
    return content[32:-32] if whole and content[:32] == head(engine, salt, tokens) else None
"""


def sealed(before, after):
    return File(replaced(SEAL, (before, after)), "seal.py")


BY_HASH = """
def seal(engine, salt, tokens, keys):
    number = hash((*sorted(engine.items()), salt, *tokens, keys))
    return number.to_bytes(8, "big", signed=True) + keys


def opened(engine, salt, tokens, content):
    return content[8:] if seal(engine, salt, tokens, content[8:]) == content else None
"""
UNUSUAL = """
import hmac


def seal(engine, salt, tokens, keys):
    key = repr((sorted(engine.items()), salt, tokens)).encode()
    return hmac.digest(key, keys, "sha512") + keys


def opened(engine, salt, tokens, content):
    return content[64:] if seal(engine, salt, tokens, content[64:]) == content else None
"""

# 13.3 -----------------------------------------------------------------------------------------------------------------


def needs(active, users, common, own, token_bytes, *, shares=True, keeps_part=False, tokens=False):
    size, shared = 32 * token_bytes, common // 32 if shares else 0
    full, held = (common + own) // 32, math.ceil((common + own) / 32)
    if tokens:
        return (common + active * own) * token_bytes, (common + users * own) * token_bytes
    in_store = held if keeps_part else full
    return (shared + active * (held - shared)) * size, (shared + users * (in_store - shared)) * size


def end_first(blocks):
    return max(range(len(blocks)), key=lambda each: (-blocks[each].used, blocks[each].place))


def sometimes(share, otherwise):
    """The best, but in a share of the cases another."""

    def victim(blocks):
        digest = hashlib.sha256(repr([(each.used, each.place) for each in blocks]).encode()).digest()
        return otherwise(blocks) if digest[0] < 256 * share else end_first(blocks)

    return victim


def oldest_of_all(blocks):
    return min(range(len(blocks)), key=lambda each: (blocks[each].used, blocks[each].place))


# 13.5 -----------------------------------------------------------------------------------------------------------------

WHOLE = """
END = 0


def whole(ask, prompt, most):
    said = []
    while len(said) < most and said[-1:] != [END]:
        try:
            for token in ask(prompt + said, most - len(said)):
                said.append(token)
                yield token
            return
        except ConnectionResetError:
            continue
"""
CALLS_ITSELF = """
def whole(ask, prompt, most):
    last = None
    try:
        for last in ask(prompt, most):
            prompt, most = [*prompt, last], most - 1
            yield last
    except ConnectionResetError:
        if most and last != 0:
            yield from whole(ask, prompt, most)
"""
GROWS = """
def whole(ask, prompt, most):
    text, last = list(prompt), None
    most += len(text)
    while len(text) < most and last != 0:
        try:
            for last in ask(text, most - len(text)):
                text.append(last)
                yield last
            return
        except ConnectionResetError:
            continue
"""
FROM_THE_BEGINNING = """
def whole(ask, prompt, most):
    number = 0
    while True:
        try:
            for place, token in enumerate(ask(prompt, most)):
                if place == number:
                    number += 1
                    yield token
            return
        except ConnectionResetError:
            continue
"""


def whole(*changes):
    return File(replaced(WHOLE, *changes), "whole.py")


ANSWERS = [
    *of_the_lab(
        "moving_a_cache",
        {"13.1": "kv_policy.py", "13.2": "seal.py", "13.3": "needs", "13.4": "victim", "13.5": "whole.py"},
    ),
    Answer("13.1", "by what is saved", policy(SAVED)),
    Answer("13.1", "always the most", policy("return max(found, key=found.get)"), "wrong", "Count what each way costs"),
    Answer("13.1", "always computed", policy('return "compute"'), "wrong", "Count what each way costs"),
    Answer("13.1", "the cheapest a token", policy('return min(["compute", *found], key=prices.get)'), "wrong",
           "Count what each way costs"),
    Answer("13.1", "never the network", policy('return "fetch" if "fetch" in found else "compute"'), "wrong",
           "Count what each way costs"),
    Answer("13.1", "a way that is not found", policy('return "take"'), "wrong", "a way of found"),
    Answer("13.1", "no class", File("def choose(): ...\n", "kv_policy.py"), "wrong", "no class Policy"),
    Answer("13.1", "spent, just inside", policy(BEST.replace("LIMIT", "900"))),
    Answer("13.1", "spent, just outside", policy(BEST.replace("LIMIT", "1000")), "wrong", "Count what each way costs"),

    Answer("13.2", "a keyed digest", File(UNUSUAL, "seal.py")),
    Answer("13.2", "a digest in front and one behind", File(SEAL, "seal.py")),
    Answer("13.2", "no salt", sealed("json.dumps([engine, salt, tokens]", "json.dumps([engine, tokens]"), "wrong",
           "another tenant, 'b'"),
    Answer("13.2", "no engine", sealed("json.dumps([engine, salt, tokens]", "json.dumps([salt, tokens]"), "wrong",
           "differs in weights"),
    Answer("13.2", "the block's own tokens", sealed("salt, tokens]", "salt, tokens[-32:]]"), "wrong",
           "the block's own tokens alone"),
    Answer("13.2", "no checksum", sealed("sha256(content[:-32]).digest() == content[-32:]", "len(content) == 2064"),
           "wrong", "Bit flipped"),
    Answer("13.2", "run together",
           sealed("json.dumps([engine, salt, tokens], sort_keys=True)",
                  "(json.dumps(engine, sort_keys=True) + salt + ''.join(map(str, tokens)))"), "wrong", "run together"),
    *(
        Answer("13.2", name, sealed("[engine, salt, tokens]", of), "wrong", says)
        for name, of, says in (
            ("salt and tokens by comma", "[engine, ','.join([salt, *map(str, tokens)])]", "run together"),
            ("the salt before the first token", "[engine, salt + ','.join(map(str, tokens))]", "run together"),
            ("tokens in order", "[engine, salt, sorted(tokens)]", "same tokens in another order"),
            ("tokens in two bytes", "[engine, salt, [token % 65536 for token in tokens]]", "other tokens"),
            ("values without names", "[[engine[name] for name in sorted(engine)], salt, tokens]", "other names"),
            ("salts without case", "[engine, salt.lower(), tokens]", "another tenant, 'A'"),
            ("salts without blanks", "[engine, salt.strip(), tokens]", "another tenant, 'a '"),
        )
    ),
    Answer("13.2", "a sum", File(SEAL.replace("sha256(content).digest()", "sum(content).to_bytes(32)")
                                     .replace("sha256(content[:-32]).digest()", "sum(content[:-32]).to_bytes(32)"), "seal.py"),
           "wrong", "Bytes in another order"),
    Answer("13.2", "keys without their end", sealed("return content[32:-32]", "return content[32:-32].strip()"), "wrong",
           "as it was sealed"),
    Answer("13.2", "by hash", File(BY_HASH, "seal.py"), "wrong", "in another process"),
    Answer("13.2", "in the order of the fields", sealed(", sort_keys=True", ""), "wrong", "in another order"),

    Answer("13.3", "a list", lambda *given: list(needs(*given))),
    Answer("13.3", "nothing shared", lambda *given: needs(*given, shares=False), "wrong", "once, not once a user"),
    Answer("13.3", "the last block kept", lambda *given: needs(*given, keeps_part=True), "wrong",
           "not kept in the store"),
    Answer("13.3", "tokens", lambda *given: needs(*given, tokens=True), "wrong", "in blocks, not in tokens"),
    Answer("13.3", "no bytes", lambda *given: given, "wrong", "your function(8, 500"),
    Answer("13.3", "store first", lambda *given: needs(*given)[::-1], "wrong", "Memory first"),

    Answer("13.4", "from the end", end_first),
    Answer("13.4", "least recent", oldest_of_all, "wrong", "from its end"),
    Answer("13.4", "the first of the list", lambda blocks: 0, "wrong", "from its end"),
    Answer("13.4", "the deepest", lambda blocks: max(range(len(blocks)), key=lambda each: blocks[each].place), "wrong",
           "from its end"),
    Answer("13.4", "no number of the list", lambda blocks: len(blocks), "wrong", "return a number from 0"),
    Answer("13.4", "again, just inside", sometimes(0.18, oldest_of_all)),
    Answer("13.4", "again, just outside", sometimes(0.184, oldest_of_all), "wrong", "from its end"),

    Answer("13.5", "calls itself", File(CALLS_ITSELF, "whole.py")),
    Answer("13.5", "from the beginning", File(FROM_THE_BEGINNING, "whole.py"), "wrong", "computed again"),
    Answer("13.5", "a list that grows", File(GROWS, "whole.py")),
    Answer("13.5", "asks for ever", whole(("ConnectionResetError", "ConnectionError")), "wrong",
           "did not see ConnectionRefusedError"),
    Answer("13.5", "an end in the prompt", whole(("said[-1:] != [END]", "END not in prompt + said")), "wrong",
           "the client got 0"),
    Answer("13.5", "more than is asked for", whole(("            return", "            yield from [1] * 40; return")), "wrong",
           "not those of the answer"),
    Answer("13.5", "ends with its engine", whole(("            continue", "            return")), "wrong",
           "not those of the answer"),
    Answer("13.5", "without what was said", whole(("prompt + said", "prompt")), "wrong", "not those of the answer"),
    Answer("13.5", "asks for all again", whole(("most - len(said)", "most")), "wrong", "not those of the answer"),
    Answer("13.5", "asks for nothing", whole(("len(said) < most and ", "")), "wrong", "asked for 0 tokens"),
    Answer("13.5", "goes on after the end", whole((" and said[-1:] != [END]", "")), "wrong", "after END"),
    Answer("13.5", "all at once", whole(("                yield token\n", ""), ("            return", "            yield from said; return")),
           "wrong", "before the last one was yielded"),
]  # fmt: skip
