"""Lab 13: a policy over a hidden day, a seal, bytes on paper, what a full store forgets, an answer that goes on."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from math import ceil

from inflight.engine.own.part import OwnPart
from inflight.errors import CourseError
from inflight.lessons.moving_a_cache.simulate import (
    END,
    Dying,
    Prompt,
    computed_again,
    day,
    least_recent,
    next_token,
    spent,
)
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import load
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Finding, Measured, Wrong, asked, told
from inflight.notebook.checks.parts import COURSES_OWN

TRIAL_S = 30
MOST_SPENT = 1.02  # of the least that can be spent
MOST_AGAIN = 0.9  # of the blocks that are computed again where a conversation's beginning goes first
BLOCK, ROOM = 32, 100

POLICY = "Count what each way costs to the end: what is found, at its price, and what is left, computed."


@grades(
    "13.1",
    "Bytes are worth moving where moving and computing what is left costs less than computing all: a sum, not a rule.",
    keeps="kv_policy",
    within_s=TRIAL_S,
)
def _policy(path: str, choose: random.Random) -> Finding:
    part = OwnPart(path, "Policy", "choose", "self, tokens, found, prices")
    own = part.call(part.made)
    given = Prompt(64, {"fetch": 32}, {"compute": 8.0, "fetch": 0.4, "take": 0.8})
    if part.call(own.choose, given.tokens, dict(given.found), dict(given.prices)) is None:
        return NOT_YET

    def chosen(prompt: Prompt) -> str:
        way = part.call(own.choose, prompt.tokens, dict(prompt.found), dict(prompt.prices))
        if way != "compute" and way not in prompt.found:
            raise CourseError(f"choose() returned {way!r}; return 'compute' or a way of found, {[*prompt.found]}.")
        return way

    prompts = day(choose)
    least = spent(lambda prompt: min(["compute", *prompt.found], key=prompt.cost), prompts)
    courses = load(COURSES_OWN["kv_policy"]).Policy()
    course = spent(lambda prompt: courses.choose(prompt.tokens, prompt.found, prompt.prices), prompts)
    nothing = spent(lambda prompt: "compute", prompts)
    ratio = spent(chosen, prompts) / least
    return Measured(
        "milliseconds of the day, over the fewest that would do",
        ratio,
        at_most=MOST_SPENT,
        course=course / least,
        nothing=nothing / least,
        advice=POLICY,
    )


ENGINE = {"weights": "a1b2", "build": "W4A8", "tokens_per_block": 32, "kv_cache": "float32"}


@grades(
    "13.2",
    "Use only what says which engine made it, of which text, for whom, and is whole. Against forgery it takes a key.",
    within_s=TRIAL_S,
)
def _seal(path: str, choose: random.Random) -> Finding:
    answer = load(path)
    seal, opened = answer.seal, answer.opened
    tokens, keys = [choose.randrange(1000) for _ in range(64)], choose.randbytes(1999) + b"\n"
    sealed = seal(dict(ENGINE), "a", list(tokens), keys)
    if sealed is None:
        return NOT_YET
    if not isinstance(sealed, bytes):
        return Wrong(f"seal() returned a {type(sealed).__name__}; return bytes.")

    def reads(engine: dict = ENGINE, salt: str = "a", text: list[int] = tokens, data: bytes = sealed) -> object:
        return opened(dict(engine), salt, list(text), data)

    if reads() != keys:
        return Wrong("opened() must give back the keys and values where everything is as it was sealed.")
    if reads(dict(reversed(ENGINE.items()))) != keys:
        return Wrong("The same engine, its fields in another order: opened() must give the keys and values back.")
    if _sealed_apart(path, [ENGINE, "a", tokens], keys, opened) != keys:
        return Wrong("Sealed by an engine in another process: opened() must give the keys and values back.")
    place, middle = choose.randrange(len(sealed)), len(sealed) // 2
    changed = bytearray(sealed)
    changed[place] ^= 1 << choose.randrange(8)
    turned = sealed[:middle] + sealed[middle : middle + 9][::-1] + sealed[middle + 9 :]
    another = ENGINE | {"weights": "ffff"}
    renamed = {"cache" if name == "kv_cache" else name: value for name, value in ENGINE.items()}
    refusals = [
        *(
            (f"It lets in a block of an engine that differs in {name}.", reads({**ENGINE, name: other}))
            for name, other in (("weights", "c3d4"), ("build", "W4A16"), ("tokens_per_block", 64), ("kv_cache", "INT8"))
        ),
        ("It lets in a block of an engine whose fields have other names.", reads(renamed)),
        *(
            (f"It lets in the block of another tenant, {salt!r}: the salt belongs in the seal.", reads(salt=salt))
            for salt in ("b", "A", "a ", "aä", "")
        ),
        *(
            ("It lets in a block of other tokens.", reads(text=[*tokens[:-1], tokens[-1] + more]))
            for more in (1, 1 << 16)
        ),
        ("It lets in a block of the same tokens in another order.", reads(text=tokens[::-1])),
        (
            "It looks at the block's own tokens alone: keys depend on all before.",
            reads(text=[tokens[0] + 1, *tokens[1:]]),
        ),
        ("It lets in a block of half its bytes.", reads(data=sealed[: len(sealed) // 2])),
        ("It lets in an empty file.", reads(data=b"")),
        ("It lets in a block with bytes behind its end.", reads(data=sealed + b"x")),
        (f"Bit flipped in byte {place} of {len(sealed)}: it lets that in.", reads(data=bytes(changed))),
        ("Bytes in another order: it lets that in.", reads(data=turned)),
        *(
            ("It takes one seal for another: salt and tokens run together.", found)
            for found in _run_together(seal, opened, keys)
        ),
        ("It lets in another engine's block.", reads(another, data=seal(dict(ENGINE), "a", list(tokens), keys))),
    ]
    for words, found in refusals:
        if found is not None:
            return Wrong(f"{words} opened() must return None.")
    return RIGHT


def _sealed_apart(path: str, of: list, keys: bytes, opened: Callable) -> object:
    """What is read of a file that another process has made, in which `hash` gives other numbers."""
    code = f"""import runpy, sys
out, sys.stdout = sys.stdout.buffer, sys.stderr
out.write(runpy.run_path({path!r})["seal"](*{of!r}, {keys!r}))"""
    made = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE)
    return opened(*of, made.stdout)


def _run_together(seal: Callable, opened: Callable, keys: bytes) -> Iterator[object]:
    """Salts and tokens whose letters are the same where nothing, a comma or a blank stands between them."""
    for salt, tokens in (("a", [12, 3]), ("a1", [23]), ("a1", [2, 3]), ("a,1", [23]), ("a 1", [23])):
        for between in ([1, 23], [12, 3]):
            if (salt, tokens) != ("a", between):
                yield opened(dict(ENGINE), salt, tokens, seal(dict(ENGINE), "a", between, keys))


@grades("13.3", "Memory holds who is answered now; the store holds whoever may come back, and a common beginning once.")
def _needs(needs: Callable, choose: random.Random) -> Finding:
    def case(active: int, users: int, common: int, own: int, token_bytes: int) -> Case:
        size = BLOCK * token_bytes
        blocks = ceil((common + own) / BLOCK)
        full, shared = (common + own) // BLOCK, common // BLOCK
        memory = (shared + active * (blocks - shared)) * size
        store = (shared + users * (full - shared)) * size
        hint = told(
            "In memory: the full blocks of the common beginning once, and all others of each active user. In the "
            "store: the same with all users, and full blocks only.",
            ([active * blocks * size, users * full * size], "The common beginning is there once, not once a user."),
            (
                [memory, (shared + users * (blocks - shared)) * size],
                "A block that is not full is not kept in the store.",
            ),
            (
                [(common + active * own) * token_bytes, (common + users * own) * token_bytes],
                "Memory is given in blocks, not in tokens.",
            ),
            ([store, memory], "Memory first, then the store."),
        )
        return Case((active, users, common, own, token_bytes), [memory, store], hint)

    fixed = case(8, 500, 400, 1200, 46_080)
    hidden = [
        case(*(choose.randrange(*each) for each in ((2, 64), (100, 5000), (33, 900), (40, 3000))), token_bytes)
        for token_bytes in (11_520, 46_080, 131_072) * 3
    ]
    return asked(needs, [fixed, *hidden])


@grades(
    "13.4",
    "A prompt finds blocks up to the first that is missing: without its beginning, the rest of a conversation is bytes "
    "that nobody can use.",
)
def _victim(victim: Callable, choose: random.Random) -> Finding:
    seeds = [choose.randrange(10**9) for _ in range(3)]

    def again(which: Callable) -> int:
        return sum(computed_again(which, ROOM, seed) for seed in seeds)

    def number(blocks: list) -> int:
        found = victim(blocks)
        if found is None:
            raise NotImplementedError
        if not isinstance(found, int) or not 0 <= found < len(blocks):
            raise CourseError(f"victim() returned {found!r}; return a number from 0 to {len(blocks) - 1}.")
        return found

    course = again(lambda blocks: min(range(len(blocks)), key=lambda each: (blocks[each].used, -blocks[each].place)))
    nothing = again(least_recent)
    return Measured(
        "blocks computed again, over those of least recent",
        again(number) / nothing,
        at_most=MOST_AGAIN,
        course=course / nothing,
        nothing=1,
        advice="Whose blocks are useless without which? Forget a conversation from its end.",
    )


@grades(
    "13.5",
    "A prompt and what has been said of its answer are a prompt: any engine goes on from there, and a store spares it "
    "the computing.",
    within_s=TRIAL_S,
)
def _whole(path: str, choose: random.Random) -> Finding:
    whole = load(path).whole
    if whole(Dying([9], 9).ask, [1], 2) is None:
        return NOT_YET
    for _ in range(100):
        prompt, most = [choose.randrange(1, 999) for _ in range(choose.randrange(1, 40))], choose.randrange(1, 30)
        prompt = [END, *prompt]  # the end of what was said before
        end = len(prompt) + choose.randrange(0, 40)
        lives = [choose.randrange(0, 1 + min(most, 12)) for _ in range(choose.randrange(0, 4))]
        if choose.random() < 0.2:  # it dies when all has been said
            lives = [min(most, end - len(prompt) + 1)]
        if choose.random() < 0.7:
            lives.append(1000)
        if finding := _played(whole, prompt, most, end, lives):
            return finding
    return RIGHT


def _played(whole: Callable, prompt: list[int], most: int, end: int, lives: list[int]) -> Wrong | None:
    """Say what is wrong with the answer that a client gets of these engines."""
    expected: list[int] = []
    while len(expected) < most and expected[-1:] != [END]:
        expected.append(next_token([*prompt, *expected], end))
    is_refused = sum(lives) < len(expected)
    expected = expected[: sum(lives)]
    engines, said, refused = Dying(lives, end), [], False
    try:
        for token in whole(engines.ask, [*prompt], most):
            said.append(token)
            engines.received += 1
            if len(said) > most:
                break
    except ConnectionRefusedError:
        refused = True
    except GeneratorExit:
        pass
    except ConnectionResetError:
        return Wrong("An engine died, others were left, and the client saw ConnectionResetError.")
    if engines.held_back:
        return Wrong("A token was asked for before the last one was yielded: pass each on when it comes.")
    case = f"Of {len(expected)} tokens, engines that die after {lives}"
    if (again := engines.computed - engines.received) > 0:
        return Wrong(f"{case}: {again} tokens were computed again.")
    if said != expected:
        return Wrong(f"{case}: the client got {len(said)}, and not those of the answer.")
    if refused != is_refused:
        return Wrong(f"{case}: the client {'saw' if refused else 'did not see'} ConnectionRefusedError.")
    return None
