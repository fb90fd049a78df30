"""Lab 10: a mask by text, a schema and its program, cut and false answers, the price of masks, calls of tools."""

import functools
import json
import random
from collections.abc import Callable

import jsonschema
import numpy as np

from inflight import engine
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine.grammar import Guides
from inflight.engine.messages import Guide
from inflight.errors import CourseError
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import brief, load
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Finding, Wrong, asked, because, told

WORDS = ["red", "green", "dark blue", "New York", "repair", "nobody", "seventeen", "telephone"]
PRICES, BAG = {"coffee": 300, "tea": 250, "cake": 420}, 20
NUM_ANSWERS, LONGEST_ANSWER = 60, 300


@functools.cache
def _tokens():
    """The model's tokenizer, the text of each token, and whether it closes a string, a list or an object."""
    tokenizer = load_tokenizer(engine.cached(fetch()))
    texts = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
    return tokenizer, texts, np.array([text[:1] in tuple('"}],') for text in texts])


@grades(
    "10.1",
    "A mask knows nothing of the model: it only sees to it that what comes can still become one of the texts.",
    keeps="logits_processor",
    within_s=60,
)
def _mask(path: str, choose: random.Random) -> Finding:
    made, (tokenizer, texts, _) = load(path, "LogitsProcessor").LogitsProcessor, _tokens()
    for space in ("", " ", ""):
        words = [space + word for word in choose.sample(WORDS, 3)]
        choices = [*words, words[0] + choose.choice(["er", "ish"])]  # of which one begins another
        processor = made(json.dumps(choices), tokenizer)
        near = {t: text for t, text in enumerate(texts) if text and any(text in choice for choice in choices)}
        for so_far in ("", *(choice[: choose.randrange(1, len(choice))] for choice in choices), *choices):
            if problem := _of_mask(processor, choices, near, so_far, choose):
                return Wrong(problem)
    return RIGHT


def _of_mask(processor, choices: list[str], near: dict[int, str], so_far: str, choose: random.Random) -> str | None:
    """Say what is wrong with a mask after `so_far`, cut into tokens at random; `near`: those that stand in choices."""
    tokenizer, texts, _ = _tokens()
    begun, left = [], so_far
    while left:
        begun.append(choose.choice([token for token, text in near.items() if left.startswith(text)]))
        left = left[len(texts[begun[-1]]) :]
    right = {t for t, text in near.items() if any(choice.startswith(so_far + text) for choice in choices)}
    right |= {tokenizer.end_id} if so_far in choices else set()
    logits = np.random.default_rng(choose.randrange(99)).normal(size=len(texts))
    masked = processor(list(begun), logits.copy())
    if not isinstance(masked, np.ndarray) or masked.shape != logits.shape:
        return f"It returns {brief(masked)}: return the logits, an array of {len(texts):,} numbers."
    got = set(np.flatnonzero(masked > -np.inf).tolist())
    where = f"After {so_far!r} of {choices}"
    extra, missing = got - right, right - got
    if len(extra) > 1000:
        return (
            f"{where} it lets {len(got):,} tokens through, such as {texts[min(extra)]!r}: all but a few must be -inf."
        )
    if any(texts[t].strip() in {texts[r].strip() for r in right} for t in extra if texts[t].strip()):
        return f"{where} it lets {texts[min(extra)]!r} through: the space belongs to the text."
    if tokenizer.end_id in missing:
        return f"{where} it forbids the end, though that is one of the texts."
    if extra:
        return f"{where} it lets {texts[min(extra)] or 'the end'!r} through, from where no text can be completed."
    if missing:
        said = ", ".join(repr(texts[token]) for token in sorted(missing)[:4])
        return f"{where} it forbids {said}: they lead to the same text in other tokens."
    if not np.array_equal(masked[list(right)], logits[list(right)]):
        return f"{where} it changes logits of tokens that may come."
    if not (masked[list(set(range(len(texts))) - right)] == -np.inf).all():
        return f"{where} a token that may not come has a logit that is no number: give it -inf."
    return None


@grades("10.2", "What the schema guarantees, no line of the program has to ask.")
def _program(answer: list, choose: random.Random) -> Finding:
    schema, price = answer
    if schema == {"type": "object"}:
        return NOT_YET
    for _ in range(30):
        items = [{"name": choose.choice(list(PRICES)), "number": choose.randint(1, 9)}
                 for _ in range(choose.randint(1, 5))]  # fmt: skip
        order = {"items": items, "to_go": choose.random() < 0.5}
        if problem := next(jsonschema.Draft202012Validator(schema).iter_errors(order), None):
            return Wrong(f"A customer may order {json.dumps(order)}, which your schema forbids: {problem.message}.")
        if (found := _of_price(price, json.dumps(order))) != RIGHT:
            return found
    guides, guide = Guides(engine.read(engine.cached(fetch()))), Guide("json_schema", json.dumps(schema))
    texts = [answer_at_random(guides.matcher(guide), choose) for _ in range(NUM_ANSWERS)]
    found_of = (_of_price(price, text) for text in texts if text is not None)
    return next((found for found in found_of if found != RIGHT), RIGHT)


def _of_price(price: Callable, text: str) -> Finding:
    try:
        right = _price(**json.loads(text))
    except (KeyError, TypeError, AttributeError, CourseError):
        return Wrong(f"Your schema allows {text}, which is no order that a customer may make.")
    got = price(text)
    return (
        NOT_YET if got is None else because(None if got == right else f"The price of {text} is {right}, not {got!r}.")
    )


def _price(items: list, to_go: bool) -> int:
    whole = all(type(one["number"]) is int and 1 <= one["number"] <= 9 for one in items)
    if not (whole and 1 <= len(items) <= 5 and isinstance(to_go, bool)):
        raise CourseError("no order")
    return sum(PRICES[one["name"]] * one["number"] for one in items) + BAG * to_go


def answer_at_random(matcher, choose: random.Random) -> str | None:
    """An answer that a matcher allows, of any of its tokens; None where it does not come to an end."""
    tokenizer, texts, closes = _tokens()
    answer: list[int] = []
    while len(answer) < LONGEST_ANSWER:
        logits = np.zeros(len(texts))
        matcher.mask(answer, logits)
        allowed = np.flatnonzero(logits == 0)
        closing = allowed[closes[allowed]] if len(allowed) > 4 else allowed  # else it would hardly end
        answer.append(choose.choice(closing if len(closing) and choose.random() < 0.6 else allowed).item())
        if matcher.take(answer[-1]) or answer[-1] == tokenizer.end_id:
            return tokenizer.decode([token for token in answer if token != tokenizer.end_id])
    return None


@grades("10.3", "A guide takes one kind of failure away. The two that are left have a line each.")
def _decide(decide: Callable, choose: random.Random) -> Finding:
    def text(*names: str) -> str:
        return json.dumps({"items": [{"name": name, "number": choose.randint(1, 9)} for name in names], "to_go": False})

    ordered, other, _ = names = choose.sample(list(PRICES), 3)
    cut = "What was cut may look complete, or not be JSON at all: look at finish_reason first."
    false = f"The message says nothing of {other}: that is valid, and false."
    return asked(decide, [
        Case(("stop", text(ordered), f"One {ordered}, please."), "charge"),
        Case(("length", text(ordered)[: choose.randrange(3, 30)], f"One {ordered}, please."), "ask again", cut),
        Case(("length", text(ordered), f"One {ordered}, please."), "ask again", cut),
        Case(("stop", text(other), f"One {ordered}, please."), "ask the customer", false),
        Case(("stop", text(ordered, other), f"One {ordered}, please."), "ask the customer", false),
        Case(("stop", text(*names), f"{', '.join(names).capitalize()}."), "charge",
             "The message begins with a capital: compare in small letters."),
    ])  # fmt: skip


@grades("10.4", "The mask's time is the machine's, not the model's: the faster an iteration, the larger its share.")
def _with_masks(with_masks: Callable, choose: random.Random) -> Finding:
    def case(guided: int, iteration_ms: float, mask_us: float) -> Case:
        mask_ms = mask_us / 1000
        return Case((guided, iteration_ms, mask_us), iteration_ms / (iteration_ms + guided * mask_ms), told(
            "How long is the iteration with its masks?",
            (iteration_ms / (iteration_ms + mask_ms), "There is a mask for each guided answer, one after the other."),
            (1 - guided * mask_ms / iteration_ms, "A loss is not a share: divide by the longer iteration."),
            (iteration_ms / (iteration_ms + guided * mask_us), "A µs is a thousandth of a ms."),
        ))  # fmt: skip

    return asked(with_masks, [case(8, 20, 500), case(0, 20, 500), case(choose.randint(60, 99), 12, 50)])


@grades("10.5", "A tool's call is an answer with a schema; what is called, and whether, your program decides.")
def _tool(function: Callable, choose: random.Random) -> Finding:
    functions = {"twice": lambda n: 2 * n, "greet": lambda name, loud=False: name.upper() if loud else name}
    cases = []
    for name, arguments in (("twice", {"n": choose.randint(1, 99)}), ("greet", {"name": "Ana", "loud": True})):
        call = {"id": f"call_{choose.randrange(9999)}", "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)}}  # fmt: skip
        content = json.dumps(functions[name](**arguments))
        right = {"role": "tool", "tool_call_id": call["id"], "content": content}
        cases.append(Case((call, functions), right, f"The result is a JSON text: {content!r}.", f"A call of {name}"))
    return asked(function, cases)
