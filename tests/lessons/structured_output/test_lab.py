"""Lab 10's answers."""

import copy
import json
import re
from collections import Counter

from tests.lessons.answers import Answer, File, defined, of_the_lab, replaced, text_of, written
from tests.lessons.table import *  # noqa: F403

MASK = written("structured_output", "solutions", "logits_processor.py")
ORDER, PRICE, PRICES, NUMBERS = defined("structured_output", "solutions", "(order, price, PRICES, NUMBERS, WORDS)[:4]")
DECIDE, RUN = (text_of("structured_output", "solutions", name) for name in ("decide", "run"))
ONE_WAY = written("structured_output", "notebooks", "choice.py")
BEGIN, END = MASK.index("        for choice"), MASK.index("        masked =")
BY_ALL_TEXTS = f"""{MASK[:BEGIN]}
        def may_come(text):
            return text and any(choice.startswith(so_far + text) for choice in self.choices)

        allowed = [token for text, ids in self.tokens.items() if may_come(text) for token in ids]
        allowed += [self.tokenizer.end_id] * (so_far in self.choices)
{MASK[END:]}"""


def mask(*changes):
    return File(replaced(MASK, *changes))


def schema(change):
    changed = copy.deepcopy(ORDER)
    change(changed, changed["properties"]["items"], changed["properties"]["items"]["items"])
    return changed, PRICE


def by_pieces(text):
    asked = json.loads(text)
    return sum([20] * asked["to_go"] + [PRICES[one["name"]] for one in asked["items"] for _ in range(one["number"])])


PYDANTICS = {
    "$defs": {"Item": ORDER["properties"]["items"]["items"]},
    **ORDER, "properties": {**ORDER["properties"], "items": {
        "type": "array", "items": {"$ref": "#/$defs/Item"}, "minItems": 1, "maxItems": 5}},
}  # fmt: skip


WITHOUT_EXTRA = json.loads(json.dumps(PYDANTICS).replace(', "additionalProperties": false', ""))


def by_pairs(reason, text, message):
    """Each number with its thing, by a regular expression; what is left over is no order."""
    if reason != "stop":
        return "ask again"
    answer, message = json.loads(text), message.lower()
    things = "|".join(PRICES)
    pairs = re.findall(rf"\b(\w+) ({things})s?\b", message)
    if len(pairs) != len(re.findall(rf"\b(?:{things})s?\b", message)) or any(n not in NUMBERS for n, _ in pairs):
        return "ask the customer"
    said = sorted(name for number, name in pairs for _ in range(NUMBERS[number]))
    ordered = sorted(one["name"] for one in answer["items"] for _ in range(one["number"]))
    goes = bool(re.search("to (go|take away)", message))
    return "charge" if (ordered, answer["to_go"]) == (said, goes) else "ask the customer"


def decided(*changes):
    """The solution with changes."""
    space = {"json": json, "re": re, "Counter": Counter, "PRICES": PRICES, "NUMBERS": NUMBERS}
    exec(replaced(DECIDE, *changes), space)
    return space["decide"]


def believes(reason, text, message):
    return "charge" if reason == "stop" else "ask again"


def by_price(reason, text, message):
    """An order that costs what the message would cost."""
    if reason == "length":
        return "ask again"
    pairs = re.findall(rf"(\w+) ({'|'.join(PRICES)})", message.lower())
    owed = sum(PRICES[thing] * NUMBERS.get(number, 0.1) for number, thing in pairs)
    goes = bool(re.search("to go|take away", message))
    return "charge" if PRICE(text) == owed + 20 * goes else "ask the customer"


def by_names(reason, text, message):
    if reason == "length":
        return "ask again"
    names = [one["name"] for one in json.loads(text)["items"]]
    return "charge" if all(name in message.lower() for name in names) else "ask the customer"


def leads(*changes):
    space = {"json": json}
    exec(replaced(RUN, *changes), space)
    return space["run"]


def asks_in_its_try(ask, messages, functions, most):
    while True:
        try:
            messages.append(ask(messages)["message"])
            messages += [{"role": "tool"} for _ in messages[-1]["tool_calls"]]
        except Exception as error:
            messages.append({"role": "tool", "content": json.dumps({"error": str(error)})})


def recursive(ask, messages, functions, most):
    done = []

    def tell(call):
        name = call["function"]["name"]
        try:
            arguments = json.loads(call["function"]["arguments"])
            for earlier in done:
                if earlier[:2] == (name, arguments):
                    return earlier[2]
            result = functions[name](**arguments)
        except Exception as error:
            return {"error": repr(error)}
        done.append((name, arguments, result))
        return result

    def go_on(talk, left):
        if not left:
            return None
        said = ask(talk)["message"]
        calls = said.get("tool_calls") or []
        told = [
            {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"],
             "content": json.dumps(tell(call), indent=1)}
            for call in calls
        ]  # fmt: skip
        return go_on([*talk, said, *told], left - 1) if calls else said["content"]

    return go_on(messages, most)


ANSWERS = [
    *of_the_lab("structured_output", {"10.1": "logits_processor.py", "10.2": "(order, price, PRICES)[:2]", "10.3": "(decide, PRICES, NUMBERS, WORDS)[0]", "10.4": "run"}),
    Answer("10.1", "text by text", File(BY_ALL_TEXTS)),
    Answer("10.1", "forgets choices that are out", mask(("token_ids), []\n",
           "token_ids), []\n        self.choices = [one for one in self.choices if one.startswith(so_far)]\n"))),
    Answer("10.1", "in 32 bits", mask(("np.full_like(logits, -np.inf)", "np.full(len(logits), -np.inf, np.float32)"))),
    Answer("10.1", "tokens without text", File(replaced(BY_ALL_TEXTS, ("return text and any", "return any"))), "wrong",
           "a token without text"),
    Answer("10.1", "lets everything pass", mask(("return masked", "return logits")), "wrong", "lets 49,152 tokens through"),
    Answer("10.1", "forgets the space", mask(("json.loads(guide)", "[each.strip() for each in json.loads(guide)]")),
           "wrong", "the space belongs to the text"),
    Answer("10.1", "forbids the end", mask(("allowed.append(self.tokenizer.end_id)", "pass")), "wrong", "forbids the end"),
    Answer("10.1", "the first choice alone", mask(("            elif choice", "                break\n            elif choice")),
           "wrong", "the same text in other tokens"),
    Answer("10.1", "one tokenization", File(ONE_WAY), "wrong", "the same text in other tokens"),
    Answer("10.1", "beyond the choice", mask(("rest[:length]", "rest[:length] + 's'")), "wrong", "no text can be completed"),
    Answer("10.1", "logits of its own", mask(("= logits[allowed]", "= 1.0")), "wrong", "changes logits"),

    Answer("10.1", "NaN for what may not come", mask(("np.full_like(logits, -np.inf)", "np.full_like(logits, np.nan)")),
           "wrong", "give it -inf"),

    Answer("10.2", "as pydantic writes it", (PYDANTICS, by_pieces)),
    Answer("10.2", "as pydantic writes it without extra", (WITHOUT_EXTRA, by_pieces)),
    Answer("10.2", "no maxItems", schema(lambda order, items, item: items.pop("maxItems")), "wrong",
           "which is no order that a customer may make"),
    Answer("10.2", "numbers without an end", schema(lambda order, items, item: item["properties"]["number"].pop("maximum")),
           "wrong", "which is no order that a customer may make"),
    Answer("10.2", "any name", schema(lambda order, items, item: item["properties"].update(name={"type": "string"})),
           "wrong", "which is no order that a customer may make"),
    Answer("10.2", "any number", schema(lambda order, items, item: item["properties"].update(number={"type": "number"})),
           "wrong", "which is no order that a customer may make"),
    Answer("10.2", "nothing required", schema(lambda order, items, item: item.update(required=[])), "wrong",
           "which is no order that a customer may make"),
    Answer("10.2", "no items", schema(lambda order, items, item: items.update(minItems=0)), "wrong",
           "which is no order that a customer may make"),
    Answer("10.2", "one item only", schema(lambda order, items, item: items.update(maxItems=1)), "wrong",
           "which your schema forbids"),
    Answer("10.2", "no return without a bag", (ORDER, lambda text: PRICE(text) if json.loads(text)["to_go"] else None),
           "wrong", "None, where"),
    Answer("10.2", "a text", (json.dumps(ORDER), PRICE), "wrong", "no JSON schema"),
    Answer("10.2", "without the bag", (ORDER, lambda text: PRICE(text) // 50 * 50), "wrong", "The price of"),
    Answer("10.2", "what the library cannot hold to", schema(lambda order, items, item: items.update(uniqueItems=True)),
           "wrong"),

    Answer("10.3", "by pairs", by_pairs),
    Answer("10.3", "reads what was cut", decided(('"length"', '"never"')), "wrong", "JSON"),
    Answer("10.3", "believes it", believes, "wrong", "valid, and false"),
    Answer("10.3", "names alone", by_names, "wrong", "that is valid, and false"),
    Answer("10.3", "by price", by_price, "wrong", "The price is the same"),
    Answer("10.3", "the last of a name", decided(('ordered[item["name"]] +=', 'ordered[item["name"]] =')), "wrong", "add up"),
    Answer("10.3", "the bag forgotten", decided((' and asked["to_go"] == to_go', "")), "wrong", "bag"),
    Answer("10.3", "any number of the message", decided(("ordered == said", "set(ordered.values()) <= set(said.values())")),
           "wrong", "valid, and false"),
    Answer("10.3", "no small letters", decided((", message.lower()", ", message")), "wrong", "in capitals or not"),
    Answer("10.3", "some is one", decided(('return "ask the customer"\n            said[thing] += NUMBERS[before]',
           "said[thing] += 1\n                continue\n            said[thing] += NUMBERS[before]")), "wrong", "no number"),
    Answer("10.3", "always asks", lambda reason, *_: "ask the customer", "wrong", "'charge' is wanted"),

    Answer("10.4", "by recursion", recursive),
    Answer("10.4", "the lecture's exceptions", leads(("except Exception", "except LookupError")), "wrong",
           "comes out of your loop"),
    Answer("10.4", "the usual exceptions", leads(("except Exception",
           "except (LookupError, ValueError, TypeError, ArithmeticError)")), "wrong", "comes out of your loop"),
    Answer("10.4", "asks in its try", asks_in_its_try, "wrong", "where most is 1"),
    Answer("10.4", "any Python", leads(("json.loads(call", "eval(call")), "wrong", "an error"),
    Answer("10.4", "results that are true", leads(
        ("= json.dumps(functions[name](**arguments), default=str)", "= functions[name](**arguments)"),
        ("same not in done", "not done.get(same)"), ("content = done[same]", "content = json.dumps(done[same])")),
        "wrong", "was done twice"),
    Answer("10.4", "no JSON", leads(("json.dumps(functions[name](**arguments), default=str)",
           "str(functions[name](**arguments))")), "wrong", "no JSON text"),
    Answer("10.4", "done twice", leads(("if same not in done:", "if True:")), "wrong", "was done twice"),
    Answer("10.4", "as it is spaced", leads(("json.dumps(arguments, sort_keys=True)", 'call["function"]["arguments"]')),
           "wrong", "was done twice"),
    Answer("10.4", "an error remembered", leads(("            except Exception as error:\n",
           "            except Exception as error:\n                same = name, call['function']['arguments']\n"
           "                done[same] = json.dumps({'error': str(error)})\n")), "wrong", "may work the next time"),
    Answer("10.4", "the first call alone", leads(('in said["tool_calls"]:', 'in said["tool_calls"][:1]:')), "wrong",
           "a turn for each call"),
    Answer("10.4", "the model's turn forgotten", leads(("        talk.append(said)\n", "")), "wrong", "behind the model's own"),
    Answer("10.4", "no end", leads(("range(most)", "range(99)")), "wrong", "where most is 5"),
    Answer("10.4", "once less", leads(("range(most)", "range(most - 1)")), "wrong", "asked 0 times, where 1 are wanted"),
]  # fmt: skip
