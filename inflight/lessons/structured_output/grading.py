"""Lab 10: a mask by text, a schema and its program, orders that are cut or false, calls of tools that fail."""

import copy
import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator

import jsonschema
import numpy as np

from inflight import engine
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine.grammar import Guides
from inflight.engine.messages import Guide
from inflight.errors import CourseError
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import brief, load
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Finding, Wrong, asked

WORDS = ["red", "green", "dark blue", "New York", "repair", "nobody", "seventeen", "telephone"]
PRICES, BAG = {"coffee": 300, "tea": 250, "cake": 420}, 20
NUM_ANSWERS, LONGEST_ANSWER = 60, 300
AN_ERROR = "an error"
NO_ORDER = "Your schema allows {}, which is no order that a customer may make."
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


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
        near = {t: text for t, text in enumerate(texts) if text and any(text in choice for choice in choices)}
        for choice in choices:
            processor, begun, left = made(json.dumps(choices), tokenizer), list[int](), choice  # as for one request
            while not (problem := _of_mask(processor, choices, near, begun, choose)) and left:
                begun.append(choose.choice([token for token, text in near.items() if left.startswith(text)]))
                left = left[len(texts[begun[-1]]) :]
            if problem:
                return Wrong(problem)
    return RIGHT


def _of_mask(
    processor, choices: list[str], near: dict[int, str], begun: list[int], choose: random.Random
) -> str | None:
    """Say what is wrong with a mask after the tokens `begun`; `near`: those that stand in choices."""
    tokenizer, texts, _ = _tokens()
    so_far = "".join(texts[token] for token in begun)
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
        said = repr(texts[min(extra)]) if texts[min(extra)] else "a token without text"
        said = "the end" if extra == {tokenizer.end_id} else said
        return f"{where} it lets {said} through, from where no text can be completed."
    if missing:
        said = ", ".join(repr(texts[token]) for token in sorted(missing)[:4])
        return f"{where} it forbids {said}: they lead to the same text in other tokens."
    if not np.allclose(masked[list(right)], logits[list(right)]):
        return f"{where} it changes logits of tokens that may come."
    if not (masked[list(set(range(len(texts))) - right)] == -np.inf).all():
        return f"{where} a token that may not come has a logit that is no number: give it -inf."
    return None


@grades("10.2", "What the schema guarantees, no line of the program has to ask.")
def _program(answer: list, choose: random.Random) -> Finding:
    schema, price = answer
    if schema == {"type": "object"}:
        return NOT_YET
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return Wrong(f"Your schema is no JSON schema: {error.message}.")
    follows = jsonschema.Draft202012Validator(schema)
    orders = [_an_order(choose) for _ in range(30)]
    for order in orders:
        if problem := next(follows.iter_errors(order), None):
            return Wrong(f"A customer may order {json.dumps(order)}, which your schema forbids: {problem.message}.")
    if (found := asked(price, [_priced(json.dumps(order)) for order in orders])) != RIGHT:
        return found
    if wrong := next(filter(follows.is_valid, _no_orders(_an_order(choose))), None):
        return Wrong(NO_ORDER.format(json.dumps(wrong)))
    guides, guide = Guides(engine.read(engine.cached(fetch()))), Guide("json_schema", json.dumps(schema))
    texts = [answer_at_random(guides.matcher(guide), choose) for _ in range(NUM_ANSWERS)]
    return asked(price, [_priced(text) for text in texts if text is not None])


def _an_order(choose: random.Random) -> dict:
    items = [{"name": choose.choice(list(PRICES)), "number": choose.randint(1, 9)} for _ in range(choose.randint(1, 5))]
    return {"items": items, "to_go": choose.random() < 0.5}


def _no_orders(order: dict) -> Iterator[dict]:
    """Yield what is no order by one thing each."""
    first, *others = order["items"]
    for items in ([], [first] * 6, {"0": first}):
        yield {**order, "items": items}
    for change in ({"number": 0}, {"number": 10}, {"number": 1.5}, {"number": "2"}, {"name": "beer"}):
        yield {**order, "items": [{**first, **change}, *others]}
    for name in first:
        yield {**order, "items": [*others, {key: value for key, value in first.items() if key != name}]}
    for name in order:
        yield {key: value for key, value in order.items() if key != name}
    yield {**order, "to_go": "yes"}


def _priced(text: str) -> Case:
    """The price of a text. Raises CourseError where that is no order."""
    try:
        right = _price(json.loads(text))
    except (KeyError, TypeError, AttributeError, CourseError):
        raise CourseError(NO_ORDER.format(text)) from None
    return Case((text,), right, about=f"The price of {text}")


def _price(order: dict) -> int:
    items, to_go = order["items"], order["to_go"]
    whole = all(type(one["number"]) in (int, float) and one["number"] in range(1, 10) for one in items)
    if not (whole and 1 <= len(items) <= 5 and isinstance(to_go, bool)):
        raise CourseError("no order")
    return sum(PRICES[one["name"]] * int(one["number"]) for one in items) + BAG * to_go


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


# 10.3 -----------------------------------------------------------------------------------------------------------------

CUT = "What was cut may look complete, or not be JSON at all: look at finish_reason first."


@grades("10.3", "A guide takes one kind of failure away. What is valid may be false, and your program has to ask.")
def _decide(decide: Callable, choose: random.Random) -> Finding:
    return asked(decide, itertools.chain.from_iterable(_decisions(choose) for _ in range(12)))


def _decisions(choose: random.Random) -> Iterator[Case]:
    """Yield an order of two things with its message, as it was meant and as a model may get it wrong."""
    (one, other, third), numbers = choose.sample(list(PRICES), 3), choose.sample(range(1, 9), 2)
    to_go = choose.random() < 0.5
    things = " and ".join(_said(number, name, choose) for name, number in zip((one, other), numbers))
    end = choose.choice([", to go", " to take away"]) if to_go else choose.choice(["", " for here"])
    message = f"{things}{end}, please.".capitalize()

    def case(right: str, hint: str, *items: tuple[str, int], said: str = message, is_to_go: bool = to_go) -> Case:
        order = {"items": [{"name": name, "number": number} for name, number in items], "to_go": is_to_go}
        ordered = ", ".join(f"{number} {name}" for name, number in items)
        about = f"{said!r}, answered with {ordered}, {'to go' if is_to_go else 'not to go'}"
        return Case(("stop", json.dumps(order), said), right, hint, about)

    meant = list(zip((one, other), numbers))
    more = [(one, numbers[0] + 1), meant[1]]
    yield case("charge", "The message says just that: as a word or a digit, in capitals or not.", *meant)
    yield case("charge", "The order does not matter.", *meant[::-1])
    yield case("charge", "Items of one name add up.", (one, 1), meant[1], *[(one, numbers[0] - 1)] * (numbers[0] > 1))
    text = case("", "", *meant).given[1]
    yield Case(("length", text[: choose.randrange(3, len(text))], message), "ask again", CUT)
    yield Case(("length", text, message), "ask again", CUT)
    for hint, items in (
        ("The number is another: that is valid, and false.", more),
        ("Each thing has the other's number: that is valid, and false.", zip((one, other), numbers[::-1])),
        (f"The message says nothing of {third}: that is valid, and false.", [(third, 1), *meant]),
        (f"The message wants {other}, too: that is valid, and false.", meant[:1]),
        ("The message says it once: items of one name add up.", [meant[1], *[meant[0]] * 2]),
    ):
        yield case("ask the customer", hint, *items)
    same = "The price is the same, but not the things: that is valid, and false."
    yield case("ask the customer", same, ("tea", 6), said="Five coffees, please.", is_to_go=False)
    yield case(
        "ask the customer", "A paper bag has its price: does the message ask for one?", *meant, is_to_go=not to_go
    )
    some = "The message gives no number, so nobody knows what is true."
    yield case("ask the customer", some, (one, 1), said=f"Some {one}, please.")
    yield case("ask the customer", some, (other, 2), said=f"Some {one} and two {other}s, please.", is_to_go=False)


def _said(number: int, name: str, choose: random.Random) -> str:
    if number == 1:
        return f"{choose.choice(['a', 'one', '1'])} {name}"
    return f"{choose.choice([NUMBERS[number], str(number)])} {name}s"


# 10.4 -----------------------------------------------------------------------------------------------------------------


@grades("10.4", "A model's call is a request from a stranger: it may be wrong, cut, or come twice.")
def _run(run: Callable, choose: random.Random) -> Finding:
    for what, *script in itertools.chain.from_iterable(_scripts(choose) for _ in range(4)):
        if problem := _of_conversation(run, *script):
            return Wrong(f"A conversation with {what}: {problem}")
    return RIGHT


def _scripts(choose: random.Random) -> Iterator[tuple[str, list[list[tuple[str, str]]], str | None]]:
    """Yield conversations: what is tried, for each answer of the model its calls, and the last text."""
    first, second = choose.sample(range(1, 99), 2)

    def buy(n: int, form: str = '{{"number": {}, "name": "tea"}}') -> tuple[str, str]:
        return "charge", form.format(n)

    told = choose.choice(["That is all.", "Done.", "12 are ready."])
    yield "an answer without calls", [], told
    yield "a call", [[buy(first)]], told
    yield "two calls in one answer", [[buy(first), ("stock", "{}")]], told
    yield "calls one after the other", [[buy(first)], [buy(second)], [("stock", "{}")]], told
    yield "a function that does not exist", [[("refund", "{}"), buy(first)]], told
    yield "arguments that were cut", [[buy(first, '{{"number": {}, "na')]], told
    yield "arguments that are Python, and no JSON", [[buy(first, "{{'number': {}, 'name': 'tea'}}")]], told
    yield "arguments that do not fit", [[("charge", '{"count": 1}')], [("stock", "[1]")]], told
    yield "a function that raises", [[("charge", '{"number": 1, "name": "beer"}')], [("stock", "{}")]], told
    yield "a division by zero", [[buy(0)], [buy(first)]], told
    yield "a call that comes twice", [[buy(first)], [buy(first, '{{"name":"tea",  "number":{}}}')]], told
    yield "a call that comes twice in one answer", [[buy(first), buy(first)]], told
    yield "a call without results that comes twice", [[("stock", "{}")], [("stock", "{}")]], told
    yield "a call that fails at first", [[("flaky", "{}")], [("flaky", "{}")]], told
    yield "a model that never stops calling", [[buy(n)] for n in range(1, 6)], None


class _AskedTooOftenError(BaseException):
    """No Exception: a loop that tells the model of each would go on."""


class _Till:
    """Plays the model and the functions of one conversation, and notes what it hears and what is done."""

    def __init__(self, calls: list[list[tuple[str, str]]], last: str | None):
        self.done, self.heard = list[tuple](), list[list[dict]]()
        self.most = len(calls) + (last is not None)
        numbers = itertools.count(1)
        self.answers: list[dict] = [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": f"call_{next(numbers)}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for name, arguments in of_one]}
            for of_one in calls
        ]  # fmt: skip
        self.answers += [{"role": "assistant", "content": last}] * (last is not None)

    def led_by(self, loop: Callable) -> object:
        """Let a loop lead the conversation; return what it returns."""
        functions = {"charge": self._charge, "stock": self._stock, "flaky": self._flaky}
        return loop(self._ask, [{"role": "user", "content": "Hello"}], functions, self.most)

    def _ask(self, messages: list[dict]) -> dict:
        self.heard.append(copy.deepcopy(messages))
        if len(self.heard) > self.most:
            raise _AskedTooOftenError(f"The model was asked {len(self.heard)} times, where most is {self.most}.")
        said = copy.deepcopy(self.answers[len(self.heard) - 1])
        return {"finish_reason": "tool_calls" if "tool_calls" in said else "stop", "message": said}

    def _charge(self, number: int, name: str) -> dict:
        self.done.append(("charge", number, name))
        return {"cents": PRICES[name] * number, "each": PRICES[name] * number // number}

    def _stock(self) -> list:
        self.done.append(("stock",))
        return []

    def _flaky(self) -> str:
        self.done.append(("flaky",))
        if self.done.count(("flaky",)) == 1:
            raise ConnectionError("no connection")
        return "connected"


def _loop(ask: Callable, messages: list[dict], functions: dict, most: int) -> str | None:
    """Lead a conversation as the exercise asks for."""
    talk, done = [*messages], dict[str, str]()
    for _ in range(most):
        said = ask(talk)["message"]
        talk.append(said)
        if "tool_calls" not in said:
            return said["content"]
        for call in said["tool_calls"]:
            name = call["function"]["name"]
            try:
                arguments = json.loads(call["function"]["arguments"])
                same = json.dumps([name, arguments], sort_keys=True)
                content = done[same] = done.get(same) or json.dumps(functions[name](**arguments))
            except Exception as error:
                content = json.dumps({"error": str(error)})
            talk.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return None


def _of_conversation(run: Callable, *script) -> str | None:
    """Say in what a learner's loop differs from the one that is asked for."""
    own, right = _Till(*script), _Till(*script)
    wanted = right.led_by(_loop)
    try:
        got = own.led_by(run)
    except NotImplementedError:
        raise
    except (CourseError, _AskedTooOftenError) as error:
        return str(error)
    except Exception as error:
        failed = f"{type(error).__name__} ({error})"
        return f"{failed} comes out of your loop: whatever goes wrong with a call is told to the model."
    for heard, turns in zip(own.heard, right.heard):
        if problem := _of_turns(heard, turns):
            return problem
    for one in own.done:
        if own.done.count(one) > right.done.count(one):
            return f"{one} was done twice: tell the model the earlier result again."
    if own.done != right.done:
        return f"{own.done} was done, where {right.done} is wanted."
    if len(own.heard) != len(right.heard):
        return f"The model was asked {len(own.heard)} times, where {len(right.heard)} are wanted."
    return None if got == wanted else f"{brief(got)} is returned, where {brief(wanted)} is wanted."


def _of_turns(heard: list[dict], wanted: list[dict]) -> str | None:
    """Say in what the messages that the model hears differ from those that it should hear."""
    for got, right in itertools.zip_longest(map(_said_in, heard), map(_said_in, wanted)):
        if got != right:
            hint = "a turn for each call, behind the model's own" if None in (got, right) or got[0] != right[0] else (
                "what has failed may work the next time" if got[2] == AN_ERROR else "its id, and a JSON text"
            )  # fmt: skip
            return f"The model hears {brief(got)}, where {brief(right)} is wanted: {hint}."
    return None


def _said_in(turn: dict) -> tuple:
    """Return who says a turn, of which calls, and what: of a tool's, the result that its JSON text has."""
    if turn.get("role") != "tool":
        return turn.get("role"), [call["id"] for call in turn.get("tool_calls") or []], ""
    try:
        said = json.loads(turn.get("content"))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        said = f"no JSON text: {brief(turn.get('content'))}"
    if isinstance(said, dict) and isinstance(said.get("error"), str):
        said = AN_ERROR
    return "tool", turn.get("tool_call_id"), said
