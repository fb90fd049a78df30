# %% [markdown]
# # {heading}
#
# Four exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You write a mask that goes by
# text and runs in the engine, a schema whose answers a program reads without a `try`, the rule that keeps a valid but
# false order from being charged, and a loop of tool calls that may fail.
#
# You need the lecture. A check never stops you: it says *done*, *not done yet*, or what to look at.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it
# has not been run.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# The lecture's server, with OpenAI's protocol in front of it.

# %%
import json
import re
import tempfile
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import openai
import pandas as pd

from inflight import CourseError, engine
from inflight.checkpoint import fetch, load_tokenizer
from inflight.notebook import check, parts
from inflight.openai import OpenAIServer
from inflight.triton import Server, repository

workdir = tempfile.TemporaryDirectory()
engine_dir = engine.cached(fetch())
repo = repository.assemble(Path(workdir.name) / "repo", engine_dir, decoupled_mode=True)
server, stack = Server(repo).start(), ExitStack()
in_front = stack.enter_context(OpenAIServer(server.grpc_url, engine_dir))
client = openai.OpenAI(base_url=in_front.url, api_key="none", max_retries=0)
complete = partial(client.chat.completions.create, model="tensorrt_llm", temperature=0)

# %% [markdown]
# ## Exercise 10.1: a mask that goes by text
#
# *Core · importance 5/5 · difficulty 3/5 · 16 minutes*
#
# The lecture's class knows one way to write each text in tokens, the tokenizer's. There are others:

# %%
tokenizer = load_tokenizer(engine_dir)
known = {tokenizer.decode([token]) for token in range(tokenizer.vocab_size)}
for word in ("repair", "refund", " refund"):
    begins = [word[:end] for end in range(1, len(word) + 1) if word[:end] in known]
    first = tokenizer.decode(tokenizer.encode(word)[:1])
    print(f"{word!r} may begin with {begins}; the tokenizer takes {first!r}")

# %% [markdown]
# What the class forbids, the model may have wanted. Write the mask anew, so that it goes by text: a token may come if
# some choice begins with the answer so far *and the token's text*; the end may come when the answer is one of the
# choices. All other logits become minus infinity; those of tokens that may come stay as they are.
#
# `guide` is a JSON list of texts. `tokenizer.decode(token_ids)` gives the text of tokens, and `tokenizer.end_id` is
# the end. The check plays choices that you have not seen. (They are ASCII: elsewhere a token may hold a part of a
# character, which is why libraries work with bytes.)

# %% tags=["part:logits_processor.py"]
# %%writefile {workdir.name}/logits_processor.py
"""A mask for answers that must be one of several texts, in whatever tokens."""

import functools
import json

import numpy as np


@functools.cache
def tokens_of(tokenizer):
    """Each text that is a token -> the ids of the tokens that have it."""
    tokens = {}
    for token in range(tokenizer.vocab_size):
        tokens.setdefault(tokenizer.decode([token]), []).append(token)
    return tokens


class LogitsProcessor:
    def __init__(self, guide, tokenizer):
        self.choices, self.tokenizer = json.loads(guide), tokenizer
        self.tokens = tokens_of(tokenizer)

    def __call__(self, token_ids, logits):
        so_far, allowed = self.tokenizer.decode(token_ids), []
        # BEGIN SOLUTION
        # LAB: # Append to `allowed` the ids of the tokens that may come.
        # LAB: raise NotImplementedError
        for choice in self.choices:
            if choice == so_far:
                allowed.append(self.tokenizer.end_id)
            elif choice.startswith(so_far):
                rest = choice[len(so_far) :]
                for length in range(1, len(rest) + 1):
                    allowed += self.tokens.get(rest[:length], [])
        # END SOLUTION
        masked = np.full_like(logits, -np.inf)
        masked[allowed] = logits[allowed]
        return masked


# %%
check("10.1", Path(workdir.name) / "logits_processor.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The cell above the exercise: <code>begins</code> are the texts of tokens with which a word may begin.
# <code>self.tokens</code> has the ids of each such text.
# </details>
#
# <details><summary>How to begin</summary>
#
# Of “blue” and “blueish”, what may come after “bl”, and what after “blue”? Write both down by hand. What of each choice
# did you look at?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>forbids the end</em>: of “blue” and “blueish”, the first may end where the second goes on. <em>the space belongs
# to the text</em>: do not strip. <em>the same text in other tokens</em>: <code>encode</code> gives one way of
# several.
# </details>

# %% [markdown]
# In the real server:

# %% tags=["nbval-ignore-output"]
processor = parts.part("logits_processor")
print(repr(processor))
try:
    server.load("tensorrt_llm", logits_processor_path=str(processor))
    choice = {"structured_outputs": {"choice": ["blue", "blueish", "no colour"]}}
    asked = [{"role": "user", "content": "What colour is the sky?"}]
    answer = complete(messages=asked, max_tokens=8, extra_body=choice).choices[0]
    print(repr(answer.message.content), answer.finish_reason)
except CourseError as error:
    print(error)
server.load("tensorrt_llm", logits_processor_path="")

# %% [markdown]
# Where only one text can follow, llguidance forces the tokenizer's own tokens, which the model has learned to read. Your
# mask leaves all ways to write it open.

# %% [markdown]
# ## Exercise 10.2: a program without a try
#
# *Core · importance 5/5 · difficulty 3/5 · 12 minutes*
#
# A café takes orders: `{"items": [{"name": "tea", "number": 2}], "to_go": true}`. Each has 1 to 5 items, 1 to 9 of
# each. Write the JSON schema, and a program that reads an answer and returns its price in cents; a paper bag, for an
# order to go, is 20. There is no `try` in it, and no `if` for what cannot be: that is the schema's.
#
# The check lets the engine's library write answers to your schema, as wild as it allows, and gives them to your
# program. And the schema must allow every order that a customer may make.

# %%
PRICES = {"coffee": 300, "tea": 250, "cake": 420}

# BEGIN SOLUTION
# LAB: order = {"type": "object"}
order = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": 5,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"enum": list(PRICES)},
                    "number": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["name", "number"],
                "additionalProperties": False,
            },
        },
        "to_go": {"type": "boolean"},
    },
    "required": ["items", "to_go"],
    "additionalProperties": False,
}
# END SOLUTION


def price(text: str) -> int | None:
    """Cents of an order, which follows the schema."""
    # BEGIN SOLUTION
    # LAB: return None
    asked = json.loads(text)
    of_items = sum(PRICES[one["name"]] * one["number"] for one in asked["items"])
    return of_items + 20 * asked["to_go"]
    # END SOLUTION


# %%
check("10.2", (order, price))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <code>schema</code>, which pydantic made: print it whole.
# </details>
#
# <details><summary>How to begin</summary>
#
# Write the program first. Then ask of each of its lines what it takes for granted: that a key is there, that a name has
# a price, that a number is whole and not negative. JSON schema has a word for each.
# </details>
#
# <details><summary>The error you see</summary>
#
# The check shows an answer that your schema allows. Which word of JSON schema forbids it, and nothing that a customer
# may want?
# </details>

# %% [markdown]
# In the real server, a customer orders for 9.40, bag included:

# %% tags=["nbval-ignore-output"]
said = "Two teas and a cake to take away, please."
wanted = {"type": "json_schema", "json_schema": {"name": "Order", "schema": order}}
asked = [{"role": "user", "content": f"{said} As JSON:"}]
answer = complete(messages=asked, max_tokens=99, response_format=wanted).choices[0]
print(answer.message.content, answer.finish_reason)
if answer.finish_reason == "stop":
    print(f"That would cost {(price(answer.message.content) or 0) / 100:.2f}.")

# %% [markdown]
# ## Exercise 10.3: valid is not true
#
# *Core · importance 5/5 · difficulty 3/5 · 20 minutes*
#
# The order above was valid, and its price wrong. So the program decides before it charges:
#
# - `"ask again"`, with more tokens, if the answer was cut (`finish_reason` is `"length"`);
# - `"charge"`, if order and message say the same: the same number of each thing, and `to_go` if and only if the
#   message says *to go* or *to take away*;
# - `"ask the customer"` about every other order.
#
# In a message the number stands right before its thing, as a word or a digit of `NUMBERS`; several things have an s.
# A thing without a number ("some tea") is a question for the customer. Items of one name add up: 1 tea and 2 teas are
# 3. The text follows the schema of 10.2, or is the beginning of one that does.

# %%
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
NUMBERS = {"a": 1, **{w: n for n, word in enumerate(WORDS, 1) for w in (word, str(n))}}


def decide(finish_reason: str, text: str, message: str) -> str | None:
    # BEGIN SOLUTION
    # LAB: return None
    if finish_reason == "length":
        return "ask again"
    asked, message = json.loads(text), message.lower()
    ordered, said = Counter(), Counter()
    for item in asked["items"]:
        ordered[item["name"]] += item["number"]
    words = re.findall(r"\w+", message)
    for before, word in zip(["", *words], words):
        thing = word.removesuffix("s")
        if thing in PRICES:
            if before not in NUMBERS:
                return "ask the customer"
            said[thing] += NUMBERS[before]
    to_go = "to go" in message or "to take away" in message
    is_true = ordered == said and asked["to_go"] == to_go
    return "charge" if is_true else "ask the customer"
    # END SOLUTION


# %%
check("10.3", decide)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <em>Valid is not true</em>. What of an order can be held against the words of its message?
# </details>
#
# <details><summary>How to begin</summary>
#
# Count twice what is wanted of each name, once by the order and once by the message, and compare. In which order do
# you look? What is cut must not be read: <code>json.loads</code> would raise.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>may look complete</em>: an answer whose last token is missing can be the beginning of a longer one. <em>add
# up</em>: a dict keeps the last of two items with one name. <em>no number</em>: what stands before “tea” in “some
# tea”?
# </details>

# %% [markdown]
# In the real server, after one example. What would have been charged without your rule?

# %% tags=["nbval-ignore-output"]
worth = {  # what the customer owes, in cents
    "Two teas and a cake to take away, please.": 940,
    "A coffee, please.": 300,
    "Three coffees and two cakes, to go.": 1760,
    "One tea and one cake for here.": 670,
    "Four teas, please.": 1000,
    "2 coffees to go!": 620,
    "Two coffees, a tea and three cakes.": 2110,
}
five = {"items": [{"name": "cake", "number": 5}, {"name": "tea", "number": 1}]}
example = [
    {"role": "user", "content": "Five cakes and a tea to go."},
    {"role": "assistant", "content": json.dumps(five | {"to_go": True})},
]
rows = []
for said, cents in worth.items():
    asked = [*example, {"role": "user", "content": said}]
    answer = complete(messages=asked, max_tokens=99, response_format=wanted).choices[0]
    text, reason = answer.message.content, answer.finish_reason
    asks = price(text) if reason == "stop" else None
    rows.append([said, cents, asks, decide(reason, text, said)])
pd.DataFrame(rows, columns=["message", "cents owed", "cents by the answer", "decided"])

# %% [markdown]
# ## Exercise 10.4: calls that fail
#
# *Further · importance 4/5 · difficulty 4/5 · 25 minutes*
#
# The lecture's loop knows one tool and one way to fail. Write one for a till. `ask(messages)` gives the model's next
# answer, as a dict of OpenAI's protocol: `{"finish_reason": …, "message": {…}}`. `functions` has a Python function
# for each name.
#
# - An answer without `tool_calls` is the last one: return its `content`.
# - Otherwise the model's turn goes to the messages, then a turn for each of its calls, in their order: `role` is
#   `"tool"`, `tool_call_id` the call's `id`, `content` a JSON text of what the function returned.
# - Whatever goes wrong with a call is told to the model as `{"error": "…"}`, also as JSON: a function that does not
#   exist, arguments that are not JSON (they were cut) or do not fit, an exception in the function.
# - What has worked is never done twice: for a call with the same function and the same arguments, however they are
#   spaced or ordered, the model is told the earlier result again.
# - After `most` answers that all call tools, return `None`.
#
# After a call that fails, the messages may end with
#
# ```python
# {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "refund", …}}]},
# {"role": "tool", "tool_call_id": "a", "content": '{"error": "No function refund."}'},
# ```


# %%
def run(ask, messages: list, functions: dict, most: int) -> str | None:
    """The model's last answer, or None after `most` answers that call tools."""
    # BEGIN SOLUTION
    # LAB: raise NotImplementedError
    talk, done = list(messages), {}
    for _ in range(most):
        said = ask(talk)["message"]
        if not said.get("tool_calls"):
            return said.get("content")
        talk.append(said)
        for call in said["tool_calls"]:
            name = call["function"]["name"]
            try:
                arguments = json.loads(call["function"]["arguments"])
                same = name, json.dumps(arguments, sort_keys=True)
                if same not in done:
                    done[same] = json.dumps(functions[name](**arguments), default=str)
                content = done[same]
            except Exception as error:
                content = json.dumps({"error": f"{type(error).__name__}: {error}"})
            turn = {"role": "tool", "tool_call_id": call["id"], "content": content}
            talk.append(turn)
    return None
    # END SOLUTION


# %%
check("10.4", run)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <em>Call a tool</em>: <code>told_of</code> and <code>converse</code> are the frame.
# </details>
#
# <details><summary>How to begin</summary>
#
# Write what becomes of a call that works. Then ask of each of its lines what may raise there, and let one
# <code>except</code> tell it. What do you have to remember so that nothing is done twice, and when do you write it
# down?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>was done twice</em>: compare arguments as values, not as text. <em>may work the next time</em>: remember
# results, not errors. <em>a turn for each call</em>: also for one that failed, with its own id. (A result that JSON
# cannot write, such as a date, is no failure: <code>default=str</code>.)
# </details>

# %% [markdown]
# In the real server: a till that does not sell everything.


# %% tags=["nbval-ignore-output"]
def charge(name, number):
    print(f"charge({name!r}, {number})")
    return f"{PRICES[name] * number / 100:.2f} are charged."


fields = {"name": {"type": "string"}, "number": {"type": "integer", "minimum": 1}}
form = {"properties": fields, "required": [*fields], "type": "object"}
tools = [{"type": "function", "function": {"name": "charge", "parameters": form}}]
call = {"name": "charge", "arguments": '{"name": "tea", "number": 2}'}
shown = [
    {"role": "user", "content": "Two teas, please."},
    {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": call}],
    },
    {"role": "tool", "tool_call_id": "a", "content": '"5.00 are charged."'},
    {"role": "assistant", "content": "That is 5.00, please."},
]


def ask(messages):
    if messages[-1]["role"] == "tool":
        print(f"    the model hears {messages[-1]['content']}")
    answer = complete(messages=messages, max_tokens=48, tools=tools).choices[0]
    return answer.model_dump(exclude_none=True)


for said in ("Three cakes, please.", "Two beers, please."):
    asked = [*shown, {"role": "user", "content": said}]
    try:
        print(run(ask, asked, {"charge": charge}, most=3))
    except NotImplementedError:
        print("Nothing is sold yet.")

# %% [markdown]
# Compare what each customer hears with what was charged. The model's last text need not be true, even if it was told of
# the error: a receipt comes from your program.

# %% [markdown]
# ## Bonus
#
# If you are early: no check, but something to see.
#
# 1. **The space before a word.** In the middle of a text a word begins with its space: `phone` and ` phone` are two
#    tokens, and a model has learned to write the second. Without chat turns (`client.completions`), let the lecture's
#    messages go on with "The device that is broken is the", and guide the answer by the four devices, once without
#    and once with a space before each. Which is right more often? A [paper](https://arxiv.org/abs/2502.14969)
#    found 5 to 10 % in favour of the space.
# 2. **Read back.** "A cake instead of a tea, please." The rule of 10.3 charges for both, if the answer has both. Let
#    the program read every order back to the customer instead. What may that sentence be made of: the message, the
#    answer, or the price?
# 3. A schema with a `"why"` string *before* the value that matters lets the model think first. Does your café's
#    schema get better answers that way, and what does it cost?
#
# ## Elsewhere
#
# The service moves. Which of these still holds?
#
# **1.** *To a model ten times as large.* "Its orders are true, so the rule of 10.3 can go."
#
# <details><summary>Answer</summary>
#
# No: a guide of any model promises the form alone. Count what the rule still catches, on your own messages.
# </details>
#
# **2.** *To a model that thinks before it answers.* "Its first token is a brace."
#
# <details><summary>Answer</summary>
#
# Then it cannot think. The guide has to begin after the reasoning, and <code>max_tokens</code> has to leave room for both.
# </details>
#
# **3.** *To clients that send a schema for each of their customers.* "A guide that cannot be followed is the client's
# problem."
#
# <details><summary>Answer</summary>
#
# Only if it is refused with a reason, and bounded: a schema or an expression that explodes must not take the others'
# time.
# </details>

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}. The server ends with this notebook's kernel.
