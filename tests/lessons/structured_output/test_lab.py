"""Lab 10's answers."""

import copy
import json

from tests.lessons.answers import Answer, File, defined, of_the_lab, replaced, written
from tests.lessons.table import *  # noqa: F403

MASK = written("structured_output", "solutions", "logits_processor.py")
ORDER, PRICE, PRICES = defined("structured_output", "solutions", "(order, price, PRICES)")
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


def decided(by_length=True, reads=lambda text: json.loads(text)["items"], some=all, lower=str.lower):
    def decide(finish_reason, text, message):
        if by_length and finish_reason == "length":
            return "ask again"
        is_said = some(one["name"] in lower(message) for one in reads(text))
        return "charge" if is_said else "ask the customer"

    return decide


def tool(arguments=json.loads, content=json.dumps):
    def told(call, functions):
        result = functions[call["function"]["name"]](**arguments(call["function"]["arguments"]))
        return {"role": "tool", "content": content(result), "tool_call_id": call["id"]}

    return told


ANSWERS = [
    *of_the_lab("structured_output", {"10.1": "logits_processor.py", "10.2": "(order, price, PRICES)[:2]", "10.3": "decide",
                                         "10.4": "with_masks", "10.5": "told"}),
    Answer("10.1", "text by text", File(BY_ALL_TEXTS)),
    Answer("10.1", "lets everything pass", mask(("return masked", "return logits")), "wrong", "lets 49,152 tokens through"),
    Answer("10.1", "forgets the space", mask(("json.loads(guide)", "[each.strip() for each in json.loads(guide)]")),
           "wrong", "the space belongs to the text"),
    Answer("10.1", "forbids the end", mask(("allowed.append(self.tokenizer.end_id)", "pass")), "wrong", "forbids the end"),
    Answer("10.1", "the first choice alone", mask(("            elif choice", "                break\n            elif choice")),
           "wrong", "the same text in other tokens"),
    Answer("10.1", "one tokenization", File(ONE_WAY), "wrong", "the same text in other tokens"),
    Answer("10.1", "beyond the choice", mask(("rest[:length]", "rest[:length] + 's'")), "wrong", "no text can be completed"),
    Answer("10.1", "logits of its own", mask(("= logits[allowed]", "= 1.0")), "wrong", "changes logits"),

    Answer("10.2", "as pydantic writes it", (PYDANTICS, by_pieces)),
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
    Answer("10.2", "without the bag", (ORDER, lambda text: PRICE(text) // 50 * 50), "wrong", "The price of"),
    Answer("10.2", "what the library cannot hold to", schema(lambda order, items, item: items.update(uniqueItems=True)),
           "wrong"),

    Answer("10.3", "names found in one set", decided(some=lambda found: set(found) <= {True})),
    Answer("10.3", "reads what was cut", decided(by_length=False), "wrong", "JSON"),
    Answer("10.3", "one item is enough", decided(some=any), "wrong", "valid, and false"),
    Answer("10.3", "no small letters", decided(lower=str), "wrong", "in small letters"),
    Answer("10.3", "believes it", lambda reason, *_: "charge" if reason == "stop" else "ask again", "wrong", "valid, and false"),
    Answer("10.4", "by a rate", lambda guided, iteration_ms, mask_us: 1 / (1 + guided * mask_us / 1e3 / iteration_ms)),
    Answer("10.4", "one mask", lambda guided, ms, us: ms / (ms + us / 1000), "wrong", "for each guided answer"),
    Answer("10.4", "a share", lambda guided, ms, us: 1 - guided * us / 1000 / ms, "wrong", "divide by the longer"),
    Answer("10.4", "in µs", lambda guided, ms, us: ms / (ms + guided * us), "wrong", "a thousandth"),
    Answer("10.5", "in another order", tool()),
    Answer("10.5", "no JSON", tool(content=str), "wrong", "a JSON text"),
    Answer("10.5", "a number", tool(content=lambda result: result), "wrong", "a JSON text"),
    Answer("10.5", "arguments not read", tool(arguments=dict), "wrong"),
]  # fmt: skip
