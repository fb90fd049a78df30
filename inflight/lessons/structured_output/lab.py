# %% [markdown]
# # {heading}
#
# Five exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You write a mask that goes by text
# and runs in the engine, a schema whose answers a program reads without a `try`, and what that program does with an
# answer that is cut, or false.
#
# You need the lecture. A check never stops you: it says *done*, *not done yet*, or what to look at.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# The lecture's server, with OpenAI's protocol in front of it.

# %%
import json
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import openai

from inflight import CourseError, engine
from inflight.checkpoint import fetch
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
# Write the mask of a choice anew: a token may come if some choice begins with the answer so far *and the token's text*;
# the end may come when the answer is one of the choices. It does not matter into which tokens the answer was cut. All
# other logits become minus infinity; those of tokens that may come stay as they are.
#
# `guide` is a JSON list of texts. `tokenizer.decode(token_ids)` gives the text of tokens, `tokenizer.vocab_size` says
# how many there are, `tokenizer.end_id` is the end. The check plays choices that you have not seen. (All choices here
# are ASCII: elsewhere a token may hold a part of a character, which is why libraries work with bytes.)

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
# <details><summary>Where to look</summary>
#
# The lecture's last section, <em>One text, several ways in tokens</em>: <code>pieces</code> are the texts of tokens
# that a word may begin with.
# </details>
#
# <details><summary>How to begin</summary>
#
# For each choice that begins with <code>so_far</code>, take what is left of it. Each beginning of that rest which is a
# token may come: <code>self.tokens.get(rest[:3], [])</code>. What if nothing is left?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>forbids the end</em>: of “blue” and “blueish”, the first may end where the second goes on. <em>the space belongs to
# the text</em>: do not strip. <em>the same text in other tokens</em>: <code>encode</code> gives one way of several.
# </details>

# %% [markdown]
# ## Exercise 10.2: a program without a try
#
# *Core · importance 5/5 · difficulty 3/5 · 12 minutes*
#
# A café takes orders: `{"items": [{"name": "tea", "number": 2}], "to_go": true}`. One has 1 to 5 items, 1 to 9 of each.
# Write the JSON schema, and a program that reads an answer and returns its price in cents; a paper bag, for an order to
# go, is 20. There is no `try` in it, and no `if` for what cannot be: that is the schema's.
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
# In the real server:

# %% tags=["nbval-ignore-output"]
said = [
    {"role": "user", "content": "Two teas and a cake to take away, please. As JSON:"}
]
wanted = {"type": "json_schema", "json_schema": {"name": "Order", "schema": order}}
answer = complete(messages=said, max_tokens=80, response_format=wanted).choices[0]
print(answer.message.content, answer.finish_reason)
if answer.finish_reason == "stop":
    print(price(answer.message.content), "cents")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <code>schema</code>, which pydantic made: print it whole.
# </details>
#
# <details><summary>How to begin</summary>
#
# Write the program first. Then ask of each of its lines what it takes for granted: that a key is there
# (<code>required</code>), that a name has a price (<code>enum</code>), that a number is whole and not negative
# (<code>integer</code>, <code>minimum</code>).
# </details>
#
# <details><summary>The error you see</summary>
#
# The check shows an answer that your schema allows. Which word of JSON schema forbids it, and nothing that a customer
# may want?
# </details>

# %% [markdown]
# ## Exercise 10.3: cut, or false
#
# *Core · importance 5/5 · difficulty 2/5 · 7 minutes*
#
# Before the program charges a price, it decides: `"charge"`; `"ask again"`, with more tokens, if the answer was cut; or
# `"ask the customer"`, if it is false, as far as a program can see: it has an item whose name the message does not
# contain. `finish_reason` is `"stop"` or `"length"`; the answer follows the schema of 10.2, or is the beginning of one
# that does.


# %%
def decide(finish_reason: str, text: str, message: str) -> str | None:
    # BEGIN SOLUTION
    # LAB: return None
    if finish_reason == "length":
        return "ask again"
    names = [one["name"] for one in json.loads(text)["items"]]
    is_said = all(name in message.lower() for name in names)
    return "charge" if is_said else "ask the customer"
    # END SOLUTION


# %%
check("10.3", decide)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <em>Valid is not true</em>, and <em>A cut answer</em> in it.
# </details>
#
# <details><summary>How to begin</summary>
#
# In which order do you look? What is cut must not be read: <code>json.loads</code> would raise.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>may look complete</em>: an answer of which the last token is missing can be the beginning of another, longer one.
# <em>begins with a capital</em>: compare in small letters.
# </details>

# %% [markdown]
# ## Exercise 10.4: the price of masks
#
# *Further · importance 3/5 · difficulty 2/5 · 6 minutes*
#
# The engine makes one mask after the other, when an iteration's logits are there. Of the answers in an iteration,
# `guided` have a guide. An iteration without masks takes `iteration_ms`, a mask `mask_us`. How many times as many
# tokens a second does the engine give with the masks, as without? (A number up to 1.)


# %%
def with_masks(guided: int, iteration_ms: float, mask_us: float) -> float | None:
    # BEGIN SOLUTION
    # LAB: return None
    return iteration_ms / (iteration_ms + guided * mask_us / 1000)
    # END SOLUTION


# %%
check("10.4", with_masks)

# %% [markdown]
# Put in your own figures from the lecture; these are examples, the second of a GPU with 256 answers:

# %%
for guided, iteration_ms, mask_us in [(8, 25, 150), (256, 12, 50)]:
    print(guided, "guided:", with_masks(guided, iteration_ms, mask_us))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <em>What it costs</em>.
# </details>
#
# <details><summary>How to begin</summary>
#
# The same tokens in a longer iteration: how long is it? A µs is a thousandth of a ms.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>one for each guided answer</em>: the masks of an iteration add up. <em>a loss is not a share</em>: 1 − 0.2 and 1 / 1.2 differ.
# </details>

# %% [markdown]
# ## Exercise 10.5: call the tool
#
# *Further · importance 4/5 · difficulty 2/5 · 7 minutes*
#
# The model does not call anything: it writes which function it wants, and with what. Your program calls it, and tells
# the model what came of it. `call` is one of a message's `tool_calls`, as a dict; `functions` has a Python function for
# each name. Return the turn that tells the result, as JSON: `role` is `"tool"`, `tool_call_id` that of the call,
# `content` the JSON text.


# %%
def told(call: dict, functions: dict) -> dict | None:
    # BEGIN SOLUTION
    # LAB: return None
    wanted = call["function"]
    result = functions[wanted["name"]](**json.loads(wanted["arguments"]))
    content = json.dumps(result)
    return {"role": "tool", "tool_call_id": call["id"], "content": content}
    # END SOLUTION


# %%
check("10.5", told)

# %% [markdown]
# In the real server, which must call the tool here:

# %% tags=["nbval-ignore-output"]
number = {"type": "integer", "minimum": 0, "maximum": 99}
twice = {"properties": {"n": number}, "required": ["n"], "type": "object"}
twice["additionalProperties"] = False  # or the model may hand over others
tools = [{"type": "function", "function": {"name": "twice", "parameters": twice}}]
said = [{"role": "user", "content": "What is twice 21?"}]
first = complete(messages=said, max_tokens=99, tools=tools, tool_choice="required")
call = first.choices[0].message.tool_calls[0]
print(call.function.name, call.function.arguments)
print(told(call.model_dump(), {"twice": lambda n: 2 * n}))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <em>Other doors</em>: what <code>tool_calls</code> has.
# </details>
#
# <details><summary>How to begin</summary>
#
# <code>call["function"]["arguments"]</code> is a JSON text. A function takes the names of a dict by
# <code>function(**arguments)</code>.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>a JSON text</em>: <code>json.dumps</code> what the function returns, also if that is a string.
# </details>

# %% [markdown]
# ## Bonus
#
# If you are early: no check, but something to see.
#
# 1. Let your mask write down how much probability it throws away, and compare it with the lecture's tree of one
#    tokenization. For which words does it matter?
# 2. A schema with a `"why"` string *before* the value that matters lets the model think first. Does your café's schema
#    get better answers that way, and what does it cost?
#
# ## Elsewhere
#
# The service moves. Which of these still holds?
#
# **1.** *To a model that is right far more often.* "We can take the guide out: all of yesterday's answers were valid."
#
# <details><summary>Answer</summary>
#
# No. How rare a failure is changes how late it is found, not what it does. Keep the guide: it costs a few per cent.
# </details>
#
# **2.** *To a server that compiles guides in the thread that runs the model.* "A schema costs its users nothing but
# a few per cent."
#
# <details><summary>Answer</summary>
#
# Not there: while a large schema is compiled, everybody waits. Watch the longest gap between tokens when a new schema
# comes.
# </details>
#
# **3.** *To clients that send the schema of each of their customers.* "A guide that cannot be followed is the client's
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
