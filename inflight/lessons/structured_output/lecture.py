# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **constrain** a model's answers to a schema or a choice, and let it call tools;
# - **write** the mask that does it, and run it in the engine;
# - **say** what it costs, and what a program must still check.
#
# You need lessons 00 to 04. vLLM, SGLang, TensorRT-LLM and llama.cpp all take OpenAI's `response_format`, and all
# mask logits to obey it.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A repair shop gets messages. A model turns each into JSON, and a program reads it with one line, `json.loads`, which
# was tested with a dozen messages. A week later the program stops at night: what the model wrote for the fortieth
# message of that day was not JSON.
#
# You can ask again, repair the text, or pay for a larger model. Or the server never lets a token through after which
# the answer could not become what the program reads.

# %%
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import numpy as np
import openai
import pandas as pd
from llguidance import LLMatcher, LLTokenizer
from pydantic import BaseModel, Field, ValidationError

from inflight import engine
from inflight.checkpoint import fetch, load_tokenizer
from inflight.lessons import structured_output as lesson
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.openai import OpenAIServer
from inflight.triton import Server, repository, telemetry

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
session.others()

# %% [markdown]
# ## What the program reads
#
# A [pydantic](https://docs.pydantic.dev/latest/concepts/json_schema/) class reads answers, and writes the [JSON
# schema](https://json-schema.org) that describes them. `extra="forbid"` allows no other keys.


# %%
class Customer(BaseModel, extra="forbid"):
    name: str = Field(max_length=20)


class Ticket(BaseModel, extra="forbid"):
    customer: Customer
    device: Literal["phone", "laptop", "printer", "camera"]
    problems: list[Annotated[str, Field(max_length=30)]] = Field(
        min_length=1, max_length=2
    )
    days: int = Field(ge=0, le=99)


schema = Ticket.model_json_schema()
print(json.dumps(schema["properties"]["days"]))

# %% [markdown]
# Twenty messages are put together from parts, so that we know what is true of each:

# %%
names = ["Ana", "Ben", "Chloe", "David", "Emma"]
devices = ["phone", "laptop", "printer", "camera"]
faults = ["does not start", "is too hot", "is too loud", "is broken", "is slow"]
messages, truth, problems = [], [], []
for n in range(20):
    name, device, days = names[n % 5], devices[n % 4], 2 + n % 7
    messages.append(f"My {device} {faults[n // 4]}, for {days} days now. {name}")
    truth.append((name, device, days))
    problems.append(faults[n // 4].split()[-1])
print(messages[6])

# %% [markdown]
# The server and protocol of lesson 03:

# %%
engine_dir = engine.cached(fetch())
tokenizer = load_tokenizer(engine_dir)
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    decoupled_mode=True,
    iteration_log_path=log_path,
)
stack = ExitStack()
with progress.wait("The server starts"):
    server = Server(repo).start()
    in_front = stack.enter_context(OpenAIServer(server.grpc_url, engine_dir))
client = openai.OpenAI(base_url=in_front.url, api_key="none", max_retries=0)
complete = partial(client.chat.completions.create, model="tensorrt_llm", temperature=0)

# %% [markdown]
# ## Predict
#
# The prompt describes the form in words. The model has 135 million parameters.

# %%
in_words = (
    "You turn messages into JSON with the keys customer (with a name), device (phone, "
    "laptop, printer or camera), problems (a list) and days (a number). "
    "You answer with nothing but JSON."
)
guess = widgets.predict("Of the 20 answers, how many will the program read?")
guess

# %% [markdown]
# ## Asked in words
#
# Eight users send the twenty messages. An answer may have 64 tokens; a ticket needs some 30.


# %%
def ask_all(turns, **options):
    """The answers to all messages, each with `turns` before it."""

    def ask(message):
        asked = [*turns, {"role": "user", "content": message}]
        return complete(messages=asked, max_tokens=64, **options).choices[0]

    with ThreadPoolExecutor(8) as users, progress.wait("Twenty messages"):
        return list(users.map(ask, messages))


def read(choice):
    """The ticket in an answer, or None where the program cannot read it."""
    try:
        return Ticket.model_validate_json(choice.message.content)
    except ValidationError:
        return None


# %% tags=["nbval-ignore-output"]
def count(way):
    """Say how many answers of one way to ask are read, and how many were cut."""
    number = sum(read(choice) is not None for choice in answers[way])
    cut = sum(choice.finish_reason == "length" for choice in answers[way])
    print(f"{way}: {number} of 20 are read, {cut} were cut by max_tokens.")
    return number


system = {"role": "system", "content": in_words}
answers = {"words": ask_all([system])}
print(answers["words"][0].message.content[:160])
print(guess.score(count("words"), "the tickets read, of 20 answers"))

# %% [markdown]
# Next, show the model one message and its JSON, as earlier turns:

# %% tags=["nbval-ignore-output"]
said = "My printer has printed only black pages for 5 days. Ida"
ida = {"customer": {"name": "Ida"}, "device": "printer"}
ida |= {"problems": ["prints only black pages"], "days": 5}
turn = {"role": "assistant", "content": json.dumps(ida)}
example = [system, {"role": "user", "content": said}, turn]
answers["example"] = ask_all(example)
count("example")
for one in [one for one in answers["example"] if read(one) is None][:1]:
    print("One that is not read ends with", repr(one.message.content[-60:]))

# %% [markdown]
# An example achieves far more than a description. But no prompt is a promise, and neither is a larger model: OpenAI
# [reported](https://openai.com/index/introducing-structured-outputs-in-the-api/) that a model trained for
# it reached 93 % in its benchmark, and 100 % with what comes next.
#
# ## With a guide
#
# `response_format` hands the schema to the engine, as a [guide](glossary.md#Guide). The prompts and the model stay
# the same.

# %% tags=["nbval-ignore-output"]
response_format = {"type": "json_schema"}
response_format["json_schema"] = {"name": "Ticket", "schema": schema, "strict": True}
answers["words, guide"] = ask_all([system], response_format=response_format)
answers["example, guide"] = ask_all(example, response_format=response_format)
for way in answers:
    count(way)

# %% [markdown]
# The answers of *example* that were cut listed one problem over and over: `max_length=2` ends such a list. How does a
# server promise that for a model that it does not understand?
#
# ## By hand: a choice
#
# Begin with the smallest form: an answer is one of four texts. In tokens it is one of four ways, each of which ends
# with the token for the end.

# %%
actions = ["repair", "repair at home", "refund", "refuse"]
ways = [[*tokenizer.encode(text), tokenizer.end_id] for text in actions]


def may_come(ways, answer):
    """The tokens that may come after the tokens of `answer`, as a set.

    >>> may_come([[5, 7, 0], [5, 8, 9, 0], [6, 0]], [5])
    {7, 8}
    """
    n = len(answer)
    # your line: of which ways is it the next token?
    return {way[n] for way in ways if way[:n] == answer}


# %%
for text in ("", "ref", "repair"):
    tokens = may_come(ways, tokenizer.encode(text))
    texts = sorted(tokenizer.decode([token]) or "(the end)" for token in tokens)
    print(f"{text!r:9} may go on with {texts}")

# %% [markdown]
# The model gives a logit to each of 49,152 tokens. The [mask](glossary.md#Mask) sets all but these few to minus
# infinity, before temperature, so that no other token can be drawn. The engine makes one object of the class below for
# each guided request, and calls it at each token. `guide` is the text that came with the request.

# %%
# %%writefile {workdir.name}/choice.py
import json

import numpy as np


class LogitsProcessor:
    def __init__(self, guide, tokenizer):
        texts = json.loads(guide)
        self.ways = [[*tokenizer.encode(text), tokenizer.end_id] for text in texts]

    def __call__(self, token_ids, logits):
        n = len(token_ids)
        allowed = [way[n] for way in self.ways if way[:n] == token_ids]
        masked = np.full_like(logits, -np.inf)
        # your line: copy the logits of the tokens that may come
        masked[allowed] = logits[allowed]
        return masked


# %% [markdown]
# vLLM's name for such a request is `structured_outputs`, with `choice`:

# %% tags=["nbval-ignore-output"]
about = [{"role": "user", "content": f"{messages[0]} What do we do?"}]
choice = {"extra_body": {"structured_outputs": {"choice": actions}}}
server.load("tensorrt_llm", logits_processor_path=f"{workdir.name}/choice.py")
for name, options in (("free", {}), ("guided", choice)):
    one = complete(messages=about, max_tokens=12, **options).choices[0]
    print(f"{name}: {one.message.content!r} ({one.finish_reason})")
server.load("tensorrt_llm", logits_processor_path="")  # the engine's own masks again

# %% [markdown]
# The first request has no guide, so no mask. The second ends by itself, because the end is the last token of each way.
#
# ## The library
#
# A schema has far too many answers to list. A library turns it into a grammar, and follows the answer with a parser.
# The engine uses [llguidance](https://github.com/guidance-ai/llguidance), which keeps the vocabulary as a tree and
# leaves out a branch as soon as its beginning does not fit. Its `LLMatcher` follows one answer: `compute_bitmask`
# gives a bit for each token, and `consume_token` takes the one that came. Let it follow an answer:

# %%
vocabulary = LLTokenizer(
    Path(engine_dir, "tokenizer.json").read_text(encoding="utf-8"),
    eos_token=tokenizer.end_id,
)
form = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def matcher_of(schema):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=form)
    return LLMatcher(vocabulary, grammar)


# %%
def steps_of(answer, schema):
    """A row for each token of an answer: how many might have come, and the mask's µs."""
    matcher, rows = matcher_of(schema), []
    logits = np.zeros(tokenizer.vocab_size)  # for the mask to be laid over
    for token in [*tokenizer.encode(answer), tokenizer.end_id]:
        began = time.perf_counter()
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little")
        np.where(allowed, logits, -np.inf)
        mask_us = 1e6 * (time.perf_counter() - began)
        text = tokenizer.decode([token]) or "end"
        rows.append({"text": text, "allowed": allowed.sum(), "mask_us": mask_us})
        if not matcher.consume_token(token):
            break  # the schema does not allow this token
    return pd.DataFrame(rows)


# %% [markdown]
# `form` fixes the white space: left free, a small model may write blanks up to `max_tokens`.
#
# ## See
#
# Each step of this answer, from left to right, with the share of the vocabulary that might have come:

# %% tags=["nbval-ignore-output"]
text = answers["words, guide"][6].message.content
steps = steps_of(text, schema)
summary = lesson.guided_steps_summary(steps, tokenizer.vocab_size)
charts.show(lesson.guided_steps(steps, tokenizer.vocab_size), summary)
print(summary)

# %% [markdown]
# At the black dashes the schema writes: where only one text can follow, llguidance allows the tokenizer's own token
# alone. The model computes a whole iteration for each of these *forced tokens*, although it is known. SGLang wrote them
# without asking the model until 2025 ([jump-forward](https://lmsys.org/blog/2024-02-05-compressed-fsm/)); [open
# proposals](../assets/elsewhere.md#10-Structured-output) would bring it to vLLM, one of them as drafts (lesson 11).
#
# ## Turn the knob
#
# Change the schema, and see how free the model would have been in the same answer:
#
# 1. `device` is any text of at most 20 characters.
# 2. `problems` is a list of `Literal["too hot", "too loud", "broken", "slow"]`.
#
# <details><summary>What to see</summary>
#
# 1. At <code>printer</code>, a few tokens become nearly the whole vocabulary.
# 2. The high points in the problems come down to a few tokens. The more the schema knows, the less the model decides.
#
# </details>


# %% tags=["nbval-ignore-output"]
class Changed(Ticket):
    device: str = Field(max_length=20)


changed = steps_of(text, Changed.model_json_schema())
summary = lesson.guided_steps_summary(changed, tokenizer.vocab_size)
charts.show(lesson.guided_steps(changed, tokenizer.vocab_size), summary)

# %% [markdown]
# ## What it costs
#
# The schema is compiled once a request, a mask is made at each token. Measure both outside the engine: the compilation
# of this schema and of one with an `enum` of 2,000 product names, then the masks of the twenty tickets.

# %% tags=["nbval-ignore-output"]
catalogue = {"enum": [f"product {number}" for number in range(2000)]}
for name, one in {"the ticket": schema, "2,000 names": catalogue}.items():
    took_ms = []
    for _ in range(25):
        began = time.perf_counter()
        matcher_of(one).compute_bitmask()
        took_ms.append(1000 * (time.perf_counter() - began))
    print(f"{name}: {median(took_ms):.1f} ms to the first mask")
tickets = [choice.message.content for choice in answers["example, guide"]]
masks = pd.concat([steps_of(ticket, schema) for ticket in tickets])
mask_us = masks["mask_us"].mean()
print(
    f"{len(masks)} masks took {mask_us:.0f} µs each. Eight are {8 * mask_us / 1e3:.2f} ms."
)

# %% [markdown]
# The engine compiles one guide after another in a thread of its own, so that only guided requests wait. llguidance
# compiles little and looks at the vocabulary at run time. [XGrammar](https://arxiv.org/abs/2411.15100), vLLM's usual
# choice, checks most of the vocabulary beforehand, which takes longer for a new schema, and keeps the result.
#
# Here masks are made and laid over the logits one after another, while nothing else is computed: eight guided answers
# add eight to an iteration. In the engine, eight users get answers of the same length, guided and free, in turns. The
# guide is a list of tickets, longer than the answer may be; `ignore_eos` keeps the free answers as long.


# %%
class Tickets(BaseModel, extra="forbid"):
    tickets: list[Ticket] = Field(min_length=9)


def iterations_ms(**options):
    """The iterations that give eight answers a token each, from the engine's log."""
    start = log_path.stat().st_size
    with ThreadPoolExecutor(8) as users:
        asked = [[system, {"role": "user", "content": one}] for one in messages[:8]]
        more = partial(complete, max_tokens=32, extra_body=options)
        list(users.map(lambda turns: more(messages=turns), asked))
    log = telemetry.iterations(log_path, start)
    only_answers = (log["generation_tokens"] == 8) & (log["context_tokens"] == 0)
    return log["iteration_ms"][only_answers].tolist()


# %% tags=["nbval-ignore-output"]
guide = {"json": Tickets.model_json_schema()}
ways, rounds = ({"structured_outputs": guide}, {"ignore_eos": True}), []
for number in progress.over(range(17), "Round"):
    turn = -1 if number % 2 else 1
    took = [iterations_ms(**way) for way in ways[::turn]]
    rounds.append(took[::turn])
rounds = rounds[1:]  # an engine's first iterations are its slowest
guided, free = ([median(run) for run in runs] for runs in zip(*rounds))
told = told_apart(guided, free, more="longer", less="shorter")
number, free_ms = sum(len(run) for run, _ in rounds), median(free)
print(f"{number} guided iterations against free ones: {told}.")
print(f"Predicted: {1 + 8 * mask_us / 1000 / free_ms:.3f} times the {free_ms:.1f} ms.")

# %% [markdown]
# The prediction counts masks alone; the engine also fetches and converts each guided row of logits, and parses each
# token. On a GPU an iteration is shorter and has more answers. In [a test of
# vLLM](https://github.com/vllm-project/vllm/pull/26866) with a model of 1.7 billion parameters, guides for all requests
# cost 33 % of the throughput, and 17 to 32 % with masks that the CPU makes while the GPU computes.
#
# ## Valid is not true
#
# We know what is true of each message, so count it:

# %% tags=["nbval-ignore-output"]
rows = {}
for way, choices in answers.items():
    read_as = list(map(read, choices))
    facts = [one and (one.customer.name, one.device, one.days) for one in read_as]
    listed = [" ".join(one.problems) if one else "" for one in read_as]
    rows[way] = {
        "read": 20 - read_as.count(None),
        "name, device, days true": sum(a == b for a, b in zip(facts, truth)),
        "problem of the message": sum(a in b for a, b in zip(problems, listed)),
        "problem of the example": sum("black pages" in text for text in listed),
    }
number, true, named, _ = rows["words, guide"].values()
print(f"Words, guide: {number - true} of {number} err in name, device or days,")
print(f"and {number - named} do not name the problem of their message.")
pd.DataFrame(rows).T

# %% [markdown]
# The guide makes answers readable, not true. And an example leaks: tickets state its problem. You see that because no
# message has it, so choose examples that way, and check what must not be false.
#
# **A missing word, and a cut answer.** The schema knows no toaster, and the last answer may have 16 tokens:

# %% tags=["nbval-ignore-output"]
otto = {"role": "user", "content": "My toaster burns the bread, for 3 days now. Otto"}
guide = {"response_format": response_format}
for name, most, options in ("free", 64, {}), ("guided", 64, guide), ("cut", 16, guide):
    one = complete(messages=[*example, otto], max_tokens=most, **options).choices[0]
    print(f"{name}: {one.message.content} ({one.finish_reason})")

# %% [markdown]
# A mask takes the best of the tokens that are left, not the likeliest of the valid answers ([Park et al.
# 2024](https://arxiv.org/abs/2405.21047)). A schema needs a way out: another value such as `"other"`, and words in
# the prompt that say when. And `max_tokens` ends an answer wherever it is: look at `finish_reason` before you read.
#
# ## Call a tool
#
# A tool is a schema with a name. In a [tool call](glossary.md#Tool-call) the model calls nothing: it writes which
# function it wants, with which arguments, and your program decides. With `tool_choice="auto"`, the default, the
# answer is a text *or* a call. Your program tells the model what came of the call, and asks again. Here a
# customer asks about ticket 17, and means 71.


# %%
class StatusOf(BaseModel, extra="forbid"):
    ticket: int = Field(ge=0, le=999)


def status_of(ticket):
    status = {12: "waits for a part", 71: "is ready"}
    if ticket not in status:
        raise LookupError(f"There is no ticket {ticket}. Open tickets: 12, 71.")
    return f"Ticket {ticket} {status[ticket]}."


def told_of(call):
    """The turn that tells the model what came of its call."""
    try:
        asked = StatusOf.model_validate_json(call.function.arguments)
        result = status_of(asked.ticket)
    except (LookupError, ValueError) as error:
        # your line: the call has failed; what does the model hear?
        result = f"Error: {error}"

    return {"role": "tool", "tool_call_id": call.id, "content": result}


# %%
tool = openai.pydantic_function_tool(StatusOf, name="status_of")


def converse(question, turns, most=3):
    """The turns that follow a question, until the model calls no tool any more."""
    talk = [*turns, {"role": "user", "content": question}]
    auto = partial(complete, max_tokens=48, tools=[tool], tool_choice="auto")
    for _ in range(most):
        said = auto(messages=talk).choices[0].message
        talk.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            break
        talk += map(told_of, said.tool_calls)
    return talk[len(turns) :]


# %% tags=["nbval-ignore-output"]
helper = [{"role": "system", "content": "You answer questions about repairs."}]
call = {"name": "status_of", "arguments": '{"ticket": 34}'}
call = {"id": "a", "type": "function", "function": call}
shown = [
    {"role": "user", "content": "How is my phone? Ticket 34."},
    {"role": "assistant", "tool_calls": [call]},
    {"role": "tool", "tool_call_id": "a", "content": "Ticket 34 is tested."},
    {"role": "assistant", "content": "Ticket 34 is tested."},
]
for what, turns in (("No example:", helper), ("One example:", helper + shown)):
    print(what)
    for turn in converse("How is my printer? Ticket 17.", turns):
        calls = [one["function"]["arguments"] for one in turn.get("tool_calls", [])]
        print(f"    {turn['role']}: {calls or turn['content']}")

# %% [markdown]
# `auto` leaves the choice to the model, which calls nothing before it has seen an example. Here the first token
# decides, and a call follows its schema. The number 17 is valid, and false. An error is written for the model, which
# passes it on: a stranger learns which tickets are open. And the loop has an end, since a model may call forever.
#
# ## Elsewhere
#
# | | vLLM | TensorRT-LLM | here |
# |---|---|---|---|
# | JSON schema | `response_format`, or <code>structured_<wbr>outputs</code> with `json` | <code>GuidedDecodingParams(<wbr>json=…)</code>; in Triton <code>guided_<wbr>decoding_<wbr>guide_type</code> `json_schema` | as vLLM, and as in Triton |
# | choice, regex, grammar | <code>structured_<wbr>outputs</code> | `regex`, `grammar` | as vLLM |
# | `tools` with `auto` | follows the schema where a tool has `"strict": true`; else the <code>--tool-call-<wbr>parser</code> cuts calls out of free text, and they may be malformed | <code>trtllm-serve <wbr>--tool_parser</code> | always follows the schema |
# | who masks | <code>--structured-<wbr>outputs-<wbr>config.backend</code>: xgrammar, guidance, … | <code>guided_<wbr>decoding_<wbr>backend</code>: xgrammar, llguidance | llguidance |
# | your own mask | <code>--logits-<wbr>processors</code>, a class for the whole batch | <code>SamplingParams(<wbr>logits_<wbr>processor=…)</code> | <code>logits_<wbr>processor_path</code> |
# | Watch | answers that were cut: <code>vllm:request_<wbr>success_total</code>, `finished_reason` `length` | | the same |
#
# [Sources, and what changes quickly](../assets/elsewhere.md#10-Structured-output)
#
# ## What breaks
#
# **A mask that fails open.** `choice.py` raises for a guide that is not JSON. Somebody wants to spare users the error:

# %%
# %%writefile {workdir.name}/fails_open.py
import runpy
from pathlib import Path

Choice = runpy.run_path(str(Path(__file__).with_name("choice.py")))["LogitsProcessor"]


class LogitsProcessor(Choice):
    def __init__(self, guide, tokenizer):
        try:
            super().__init__(guide, tokenizer)
        except ValueError:  # better an answer than an error
            self.ways = None

    def __call__(self, token_ids, logits):
        return super().__call__(token_ids, logits) if self.ways else logits


# %% tags=["nbval-ignore-output"]
digits = {"regex": "[0-9]{3}"}
impossible = {"json": {"type": "array", "uniqueItems": True}}
asked = [{"role": "user", "content": "My ticket has the number 417. Which number?"}]
tried = ("fails_open.py", digits), ("choice.py", digits), ("", digits), ("", impossible)
for name, wanted in tried:
    path = f"{workdir.name}/{name}" if name else ""
    server.load("tensorrt_llm", logits_processor_path=path)
    try:
        body = {"structured_outputs": wanted}
        one = complete(messages=asked, max_tokens=24, extra_body=body).choices[0]
        print(f"{name or 'the engine'}: {one.message.content!r}")
    except openai.APIStatusError as error:
        print(f"{name or 'the engine'}: {error.status_code}, {error.body['message']}")

# %% [markdown]
# Failing open is the outage of the first paragraph again, without a line in any log. Failing closed is an error that
# somebody mends. So the engine refuses a guide that it cannot follow, before the first token. Its three digits have the
# form; only 417 is true. Libraries follow different keywords ([Geng et al. 2025](https://arxiv.org/abs/2501.10868) count them):
# test your schema on the server that you will use, and validate answers with it all the same.
#
# ## Recap
#
# The fortieth answer is JSON like the others. What the program still meets is an answer that is cut, and one that is
# valid and false.
#
# - An example makes a readable answer likely; a mask makes it certain, if the answer is not cut.
# - A mask sets to minus infinity the logits of all tokens after which the answer could not be completed. For a
#   choice, a list of ways is enough; for a schema, a library follows a grammar.
# - It costs a compilation for each request, and CPU time at each token.
# - Valid is not true. Look at `finish_reason`, check what must not be false, and give the schema a way out.
# - A guide that cannot be followed is refused. One that fails open is worse than none.
#
# <details><summary>1. A schema asks for a country as free text, and a colleague proposes an enum of about 250 names.
# What does that change for the mask, and for the answers?</summary>
#
# At the first token of the name, a few hundred tokens at most may come in place of tens of thousands; after one or
# two, usually a single one. Answers can no longer be misspelt, but a place that is not in the list becomes one that
# is.
# </details>
#
# <details><summary>2. All twenty answers are valid, and the service's users complain. Where do you look first?</summary>
#
# Whether the answers are true: compare some with their messages. Then ask for the same without the guide: where the
# free answer says something that the schema has no word for, the schema is too narrow.
# </details>
#
# <details><summary>3. After an update of the server, one program in ten gets text that it cannot read, and no errors are
# logged. What has probably happened?</summary>
#
# The server ignores the field that carried the guide, for instance under a name that it dropped. Send a guide that
# allows a single word, and see whether the answer is that word.
# </details>
#
# Now [do the lab]({lab}): there you write a mask that goes by text, a program without a `try`, and the rule that
# keeps it from charging what nobody ordered.
