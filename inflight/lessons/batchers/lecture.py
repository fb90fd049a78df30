# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **predict** which requests share a batch, and how large batches become;
# - **unmask** a load test that leaves out the waits of users, on any server;
# - **refuse** what would be late, by its tokens, and **write** a client that comes back at a better time.
#
# You need lesson 02, and lesson 04 for the engine. Batches, open and closed loops and admission control are the same for
# every server. Only the fields of `config.pbtxt` are Triton's.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# An embedding, a reranker, a guard: a request comes, the model computes one forward pass and remembers nothing: it is
# [**stateless**](glossary.md#Stateless). Say that a pass costs 40 ms, and 4 ms more for each request in it.
# One request at a time makes 23 answers a second, eight at a time 111. A hundred callers send you one request a second
# each, and know nothing of each other. Who puts their requests together?
#
# - **The client** can, if it has several texts for one [batch](glossary.md#Batch). These cannot.
# - **The model** can gather requests itself, as the engine of lesson 04 does.
# - **Triton** can, with a [dynamic batcher](glossary.md#Dynamic-batching) in front of any stateless model.

# %%
import math
import random
import runpy
import tempfile
import time
import timeit
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import tritonclient.grpc as triton

from inflight import engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.lessons import batchers as lesson
from inflight.lessons.batchers import batch_run
from inflight.models import huggingface
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.openai import OpenAIServer
from inflight.triton import Client, Server, repository, telemetry

session.others()

# %% [markdown]
# ## A model whose cost is known
#
# `batch-cost` sleeps instead of computing, 40 ms a batch and 4 ms for each unit of `work`
# in it, normally 1 a request: whatever else you see is the batcher.

# %%
workdir = tempfile.TemporaryDirectory()
folder, log_path = Path(workdir.name), Path(workdir.name) / "batches.jsonl"
engine_dir = engine.cached(fetch())
repo = repository.assemble(
    folder / "repo",
    engine_dir,
    models=("batch-cost", "text-embedding", *repository.PIPELINE),
    batch_cost_fixed_ms=40,
    batch_cost_item_ms=4,
    execution_log_path=log_path,
    checkpoint_dir=huggingface.folder(fetch()),
    decoupled_mode=True,
    iteration_log_path=folder / "iterations.jsonl",
)
config_path = repo / "batch-cost" / "config.pbtxt"
as_it_was = config_path.read_text()

# %%
with progress.wait("The server starts"):
    server = Server(repo).start()
connection = triton.InferenceServerClient(server.grpc_url)


def work(units=1):
    """Send one request, and wait for its answer."""
    tensor = triton.InferInput("work", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[units]], np.int32))
    connection.infer("batch-cost", [tensor])


def use(fragment):
    """Add a fragment to the model's config, load it, and warm it up."""
    config_path.write_text(as_it_was)
    repository.edit(repo, "batch-cost", fragment)
    server.load("batch-cost")
    work()


# %% [markdown]
# ## Predict
#
# One line goes into the config: `dynamic_batching { }`. `max_batch_size` is 8. Twenty-two requests come, one every 10 ms.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "In how many batches will the 22 requests be computed?",
    {
        "22: a batch leaves when a request is there": 22,
        "11: a batch leaves when a second request has come": 11,
        "5: a batch leaves when the model is free": 5,
        "3: a batch leaves when it is full": 3,
    },
)
guess

# %% [markdown]
# ## See
#
# A dot is a request that arrives, grey is waiting, a box is a batch. The lane below is the model.

# %% tags=["nbval-ignore-output"]
every_10_ms = batch_run.at([0.010 * number for number in range(22)])
runs = {}
for name, fragment in {"no batcher": "", "dynamic": "dynamic_batching { }"}.items():
    use(fragment)
    runs[name] = batch_run.run(server, "batch-cost", every_10_ms, log_path)
charts.show(lesson.batches(runs), lesson.batches_summary(runs))
sizes = runs["dynamic"].executions["size"].tolist()
print("Batches of", *sizes)
print(guess.score(len(sizes), "the batches of this run"))

# %% tags=["remove-cell"]
assert len(runs["no batcher"].executions) == 22 and 4 <= len(sizes) <= 6

# %% [markdown]
# The first request finds the model idle and leaves alone. **What comes while it is computed is the second batch; what
# comes during that one is the third.** Nobody waits for a batch to fill.
#
# ## By hand
#
# The whole rule, with a clock that is a number:


# %%
def by_hand(arrivals_ms, most=8, fixed_ms=40, item_ms=4):
    """Sizes of the batches."""
    waiting, now_ms, sizes = list(arrivals_ms), 0, []
    while waiting:
        now_ms = max(now_ms, waiting[0])  # the model is free, somebody is there
        size = min(most, sum(arrival <= now_ms for arrival in waiting))
        sizes.append(size)
        waiting = waiting[size:]
        now_ms += fixed_ms + item_ms * size
    return sizes


print("by hand:", *by_hand(range(0, 220, 10)))

# %% [markdown]
# So batches grow until they fit the traffic. A batch of *n* takes 40 + 4 *n* ms, and in that time (40 + 4 *n*) / 10
# requests come. Where that is *n* again, the size no longer changes:


# %%
def steady(rate, fixed_s=0.040, item_s=0.004):
    """The size at which batches settle, for `rate` requests a second.

    >>> steady(50)
    2.5
    """
    # your line: the n at which as many come during a batch as are in it
    return rate * fixed_s / (1 - rate * item_s)


# %% tags=["nbval-ignore-output"]
longer = batch_run.at([0.010 * number for number in range(150)])
settled = batch_run.run(server, "batch-cost", longer, log_path).executions[4:-1]
cycles_s = settled["start_s"].diff().shift(-1)
beyond_s = (cycles_s - 0.040 - 0.004 * settled["size"]).median()
print(f"On paper {steady(100):.1f} in a batch, measured {settled['size'].mean():.1f}:")
print(f"a cycle takes {1000 * beyond_s:.1f} ms more than its batch costs.")
print(f"Counting that too, on paper {steady(100, 0.040 + beyond_s):.1f}.")

# %% tags=["remove-cell"]
assert 6 < settled["size"].mean() <= 8

# %% [markdown]
# **Busy is not full.** Above 23 evenly spaced requests a second, somebody waits whenever this model becomes free: its
# utilisation is 100 %. Yet it can answer 111. The size of its batches tells how full it is.
#
# ## Wait for more: who pays?
#
# With `max_queue_delay_microseconds` a free model waits until a batch is full, or until its oldest request has waited for
# the [delay](glossary.md#Queue-delay). Whether it pays depends on who calls:
#
# - **[Closed loop](glossary.md#Closed-loop)**: callers who send their next request when the last is answered. So do the
#   workers of a batch job, and load testers with a `--concurrency`.
# - **[Open loop](glossary.md#Open-loop)**: requests come at their own times, however slow the answers are. So do the
#   users of a web site, and load testers with a `--request-rate`.
#
# One tester does both. With as many callers as requests its loop is open:


# %%
def tester(send, due_s, callers):
    """Send each request when it is due, or as soon as one of the callers is free."""
    began = time.perf_counter()

    def one(number):
        sent_s = time.perf_counter() - began
        send(number)
        return due_s[number], sent_s, time.perf_counter() - began

    with ThreadPoolExecutor(callers) as pool:
        answers = []
        for number, moment_s in enumerate(due_s):
            time.sleep(max(0, began + moment_s - time.perf_counter()))
            answers.append(pool.submit(one, number))
    columns = ["due_s", "sent_s", "answered_s"]
    return pd.DataFrame([answer.result() for answer in answers], columns=columns)


# %% [markdown]
# Four callers without a delay fall into two groups that take turns: a cycle is two batches. With a delay all four share
# one, but wait for the delay first.

# %%
callers, fixed_s, item_s = 4, 0.040, 0.004


def answers_per_s(delay_s):
    """Answers a second of callers who share every batch, after its delay.

    >>> answers_per_s(0.024)
    50.0
    """
    # your line: when does the same caller's next answer come?
    return callers / (delay_s + fixed_s + callers * item_s)


# %% tags=["nbval-ignore-output"]
by_themselves = workload.poisson(32, rate=40, seed=1)
loops = {"closed": ([0] * 32, callers), "open": (by_themselves, 32)}
rows = []
for delay_ms in progress.over((0, 20, 100), "Delay"):
    use(f"dynamic_batching {{ max_queue_delay_microseconds: {delay_ms}000 }}")
    for loop, load in loops.items():
        before = log_path.read_text().count("\n")
        sent = tester(lambda number: work(), *load)
        batches = log_path.read_text().count("\n") - before
        latency_ms = 1000 * (sent["answered_s"] - sent["sent_s"]).median()
        per_s = len(sent) / sent["answered_s"].max()
        rows.append((loop, delay_ms, batches, per_s, latency_ms))
columns = ["loop", "delay (ms)", "batches for 32", "answers/s", "median latency (ms)"]
table = pd.DataFrame(rows, columns=columns).sort_values(columns[:2])
is_open = table["loop"] == "open"
rates = table["answers/s"].map("{:.1f}".format).mask(is_open, "")
charts.table(table.assign(**{"answers/s": rates}))

# %% tags=["nbval-ignore-output"]
closed = table[~is_open].set_index("delay (ms)")["answers/s"]
two_groups = callers / (2 * fixed_s + callers * item_s)
paper = {0: two_groups, 20: answers_per_s(0.020), 100: answers_per_s(0.100)}
for delay_ms, per_s in paper.items():
    print(
        f"{delay_ms:3} ms: on paper {per_s:.1f} answers/s,",
        f"measured {closed[delay_ms]:.1f}",
    )

# %% tags=["remove-cell"]
assert closed[100] < closed[0] < closed[20]

# %% [markdown]
# **In the closed loop** a delay pays while it is shorter than the fixed cost of the batch that it saves, here 40 ms.
# **In the open loop** a delay cannot make more requests come. At 40 a second the model is nearly always busy, so 20 ms
# change little; 100 ms halve the batches, and the first user of each waits for it. That buys time of the model, not answers.
# The test with four callers recommends 20 ms, from which the open loop's users gain nothing.
#
# ## A real model
#
# `text-embedding` is the course's checkpoint as an embedding model: one pass turns every text of a batch into a vector.
# One caller sends 1, 2, 4 and 8 texts in a request, of 60 words and of 6. What do eight cost, compared with one?


# %%
def embed(texts, to=connection):
    """Vectors of these texts, sent as one request."""
    array = np.array([[text] for text in texts], object)
    text_input = triton.InferInput("text_input", array.shape, "BYTES")
    text_input.set_data_from_numpy(array)
    return to.infer("text-embedding", [text_input]).as_numpy("embedding")


# %% tags=["nbval-ignore-output"]
server.load("text-embedding", dynamic_batching=True)
at_once = np.array([1, 2, 4, 8])
for words in (60, 6):
    text = ["word " * words]
    calls = [partial(embed, text * int(n)) for n in at_once]
    rounds = [[timeit.timeit(call, number=1) for call in calls] for _ in range(9)]
    ms = 1000 * np.median(rounds[1:], axis=0)
    gain = 8 * ms[0] / ms[-1]
    print(f"{words} words: one text {ms[0]:.0f} ms, eight {ms[-1]:.0f} ms:", end=" ")
    print(f"batches of eight give {gain:.1f} times as many answers.")
item_ms, fixed_ms = np.polyfit(at_once, ms, 1)
print(f"Of 6 words, n texts take about {fixed_ms:.0f} + {item_ms:.1f} n ms.")

# %% [markdown]
# Sixteen callers send texts of 6 words, one a request, to a server without the batcher and to this one:

# %% tags=["nbval-ignore-output"]
plain = repository.assemble(
    folder / "plain",
    models=("text-embedding",),
    checkpoint_dir=huggingface.folder(fetch()),
)
computed = lambda: (
    connection.get_inference_statistics("text-embedding").model_stats[0].execution_count
)
without, with_it, before = [], [], computed()
with Server(plain) as other, triton.InferenceServerClient(other.grpc_url) as alone:
    for _ in progress.over(range(8), "Round"):
        for to, rates in (alone, without), (connection, with_it):
            sent = tester(lambda number, to=to: embed(text, to), [0] * 32, 16)
            rates.append(32 / sent["answered_s"].max())
told = told_apart(with_it[1:], without[1:], "faster", "slower")  # the first prepares
print("Batched, answers come", told)
batches = (computed() - before) / 8
paper = 32 * (fixed_ms + item_ms) / (batches * fixed_ms + 32 * item_ms)
print(f"32 texts took {batches:.1f} batches: on paper {paper:.1f} times.")

# %% tags=["remove-cell", "nbval-ignore-output"]
gain = pd.Series(with_it[1:]) / pd.Series(without[1:])
gain = gain.agg(["median", "min", "max"]).round(2)
print(gain.to_frame("dynamic_over_none").to_json())

# %% [markdown]
# The first text leaves alone, so 32 texts are more than four batches. What is gained is the fixed
# part of the cost, shared: the longer the texts, the less. A `model.py` that loops over its
# requests gains nothing, though Triton's statistics still show batches.
#
# ## One slow request
#
# 100 requests come at 30 a second, and one of them takes a second. All that come behind it wait, however little they
# need: [**head-of-line blocking**](glossary.md#Head-of-line-blocking). The same schedule goes to the server twice: in
# an open loop, and from a tester with four callers. In the second, how long would users have waited?


# %%
def views(four):
    """Latencies of four callers in ms, by when each request was due."""
    since_sent = four["answered_s"] - four["sent_s"]
    # your line: the same four callers, as their users would count
    since_due = four["answered_s"] - four["due_s"]

    felt = {
        "four callers, since sent": since_sent,
        "four callers, since due": since_due,
    }
    return 1000 * pd.DataFrame(felt).set_index(four["due_s"])


# %% tags=["nbval-ignore-output"]
use("dynamic_batching { }")
due_s = workload.poisson(100, rate=30, seed=3)
with progress.wait("100 requests, twice"):
    opened, four = [
        tester(lambda number: work(240 if number == 30 else 1), due_s, callers)
        for callers in (100, 4)
    ]
slow = views(four)
slow["open loop"] = 1000 * (opened["answered_s"] - opened["sent_s"]).to_numpy()
figure, summary = lesson.latencies(slow, limit_ms=300)
charts.show(figure, summary)
print(summary)

# %% tags=["remove-cell"]
sent, due, came = (slow > 300).sum()
assert sent <= 5 < came and sent < due

# %% [markdown]
# While the server stands still, four callers have at most four requests in it. The others that were due were not sent, so
# nobody saw them wait: [**coordinated omission**](glossary.md#Coordinated-omission). Counted from when each was due, they
# reappear.
#
# **That does not make it an open loop.** Four callers who wait get 41.7 answers a second here, your users up to 111. So
# the four catch up more slowly, and count more late requests. Send as your users do.
#
# ## The same four callers, on the engine
#
# Does in-flight batching save an LLM engine from this? Questions with answers of four tokens come at the rate at which
# one caller is served. With the 31st, somebody else sends two articles of 1,000 tokens.

# %% tags=["nbval-ignore-output"]
tokenizer, client = load_tokenizer(engine_dir), Client(server.grpc_url, timeout_s=600)
questions = workload.prompts_of([40] * 100, tokenizer)
articles = workload.prompts_of([1000] * 2, tokenizer)


def ask(number):
    client.ask(questions[number], 4, end_id=-1)


alone_s = np.median(timeit.repeat(partial(ask, 0), number=1, repeat=10))
print(f"A question alone takes {1000 * alone_s:.0f} ms; eight times that is late.")

# %% tags=["nbval-ignore-output"]
due_s = workload.poisson(100, rate=1 / alone_s, seed=3)
limit_ms = round(8000 * alone_s)
with progress.wait("100 questions"):
    undisturbed = views(tester(ask, due_s, callers=4))
late = (undisturbed > limit_ms).sum()
print(f"Without the articles {late.iloc[1]} are late since due.")

# %% tags=["nbval-ignore-output"]
summarize = lambda number: client.ask(articles[number], 1, end_id=-1)
with progress.wait("100 questions"), ThreadPoolExecutor(1) as somebody:
    somebody.submit(tester, summarize, [due_s[30]] * 2, 2)
    behind_articles = views(tester(ask, due_s, callers=4))
charts.show(*lesson.latencies(behind_articles, limit_ms))
as_sent, as_due = (behind_articles > limit_ms).sum()
print(f"Four callers count {as_sent} late since sending, {as_due} since due.")
log = telemetry.iterations(folder / "iterations.jsonl")
two = log.nlargest(2, "context_tokens")
print("The two iterations with most tokens of prompts computed", end=" ")
print(
    f"{two['context_tokens'].sum():.0f} of them in {two['iteration_ms'].sum():.0f} ms."
)

# %% tags=["remove-cell"]
assert as_sent <= as_due

# %% [markdown]
# It does not: an iteration ends when all its prompts are computed. The first questions waited for both articles. Chunked
# prefill (lesson 05) spares answers under way; vLLM's `--long-prefill-token-threshold` spares questions, too.
# `vllm bench serve --request-rate R --max-concurrency 4` is the tester with four callers; its latencies count [from the
# sending](https://github.com/vllm-project/vllm/blob/009e6d4a1cd6ba3fb2a9fc00f4ec06f5297232a1/vllm/benchmarks/serve.py).
#
# ## Refuse at the door
#
# When more comes than can be served, a queue without a limit grows until every answer is late. Refusing what would be
# late is [**admission control**](glossary.md#Admission-control). The first token is to come in time: how many requests may
# wait? For an engine that is the wrong unit. A prompt has 40 tokens, or 500.


# %% tags=["nbval-ignore-output"]
def burst(input_lens):
    """Seconds until the last of these prompts, sent together, has its first token."""
    texts = workload.prompts_of(input_lens, tokenizer)
    sent = tester(
        lambda number: client.ask(texts[number], 1), [0] * len(texts), len(texts)
    )
    return sent["answered_s"].max()


burst([500] * 8)  # the first prepares
prefill_per_s = 4000 / np.median([burst([500] * 8) for _ in range(3)])
target_s = max(1, math.ceil(2000 / prefill_per_s))  # a slow machine has more time
print(f"{prefill_per_s:,.0f} tokens of prompts a second; the target is {target_s} s")


# %% tags=["nbval-ignore-output"]
def let_in(input_lens, most_tokens):
    """How many of these prompts, in their order, may wait together.

    >>> int(let_in([40, 500, 40], 540))
    2
    """
    # your line: as many as stay within the limit; one always
    return max(1, (np.cumsum(input_lens) <= most_tokens).sum())


# %% tags=["nbval-ignore-output"]
rows, most_tokens = [], 0.7 * target_s * prefill_per_s  # 30 % are for answers under way
for what, input_lens in {"short": [40] * 80, "long": [500] * 24}.items():
    tokens = f"{most_tokens:,.0f} tokens"
    rules = {"8 requests": 8, tokens: let_in(input_lens, most_tokens)}
    for rule, number in rules.items():
        last_s = burst(input_lens[:number])
        in_time = "yes" if last_s <= target_s else "no"
        rows.append((what, rule, number, sum(input_lens[:number]), last_s, in_time))
columns = ["prompts", "at most", "let in", "their tokens", "last TTFT (s)", "in time"]
charts.table(pd.DataFrame(rows, columns=columns), decimals=2)

# %% tags=["remove-cell"]
assert rows[0][2] == rows[2][2] == 8 and rows[1][2] >= rows[3][2] >= 1

# %% [markdown]
# Eight requests are 320 tokens, or 4,000: such a rule lets in long prompts that come too late, or refuses short ones that
# would be in time. A limit in tokens bounds the prefill that a first token waits for, not its wait for a free slot: these
# answers of one token hold theirs only briefly. vLLM has such a limit as
# [`--max-num-queued-tokens`](https://docs.vllm.ai/en/latest/api/vllm/config/scheduler/).
#
# ## Come back later
#
# Our front end refuses with status 429, and a header that says when to come back: `Retry-After`, here one second. Forty
# users at once ask an engine with eight slots and a queue for four. When should the others come back?


# %%
# %%writefile {workdir.name}/retry.py
def spread_out(retry_after_s, draw):
    """Seconds to wait; `draw` is random, from 0 to 1."""
    # your line: nobody returns too early, and no two together
    return retry_after_s * (1 + draw)


# %%
spread_out = runpy.run_path(str(folder / "retry.py"))["spread_out"]
waits_s = [spread_out(2, draw) for draw in (0, 0.1, 0.9)]
early = "Somebody returns too early" if min(waits_s) < 2 else "Nobody returns too early"
together = "two return together" if len(set(waits_s)) < 3 else "no two together"
print(f"{early}, {together}.")
draws = random.Random(6)


def persist(http, wait_s):
    """One user: ask until there is an answer. The statuses of all replies."""
    messages = [{"role": "user", "content": "Tell me about rivers."}]
    body = {"model": "tensorrt_llm", "messages": messages, "max_tokens": 8}
    statuses = []
    while True:
        reply = http.post("/chat/completions", json=body)
        statuses.append(reply.status_code)
        if reply.status_code != 429:
            return statuses
        told_s = float(reply.headers["Retry-After"])
        time.sleep(wait_s(told_s, draws.random()))


# %% tags=["nbval-ignore-output"]
ways = {
    "at once": lambda told_s, draw: 0,
    "when told": lambda told_s, draw: told_s,
    "later, together": lambda told_s, draw: spread_out(told_s, 0.5),
    "spread out": spread_out,
}
server.load("tensorrt_llm", max_queue_size=4)
users, refusals = ThreadPoolExecutor(40), {}
kept = httpx.Limits(max_keepalive_connections=40)  # fewer may close one in use
with OpenAIServer(server.grpc_url, engine_dir) as front:
    http = httpx.Client(base_url=front.url, timeout=60, limits=kept)
    for way, wait_s in progress.over(ways.items(), "Way", lambda way: way[0]):
        replies = users.map(partial(persist, http), [wait_s] * 40)
        counted = Counter(status for one in replies for status in one)
        refusals[way] = counted[429]
        print(f"They come back {way}: {counted[200]} answers, {counted[429]} refusals.")
    http.close()
server.load("tensorrt_llm", max_queue_size=0)

# %% tags=["remove-cell"]
assert counted[200] == 40
assert refusals["at once"] > max(refusals["when told"], refusals["spread out"])

# %% [markdown]
# Users who return at once are refused hundreds of times. Those who return when told come as one crowd again; a random part,
# **jitter**, spreads them. The last two ways wait equally long on average, and differ by it alone. The `openai` package
# retries twice (`max_retries`), exactly when told.
#
# ## Who decides?
#
# | Knob | Who decides | When | On what |
# |---|---|---|---|
# | several items in one request | the client | before it sends | what it has at hand |
# | `dynamic_batching` | Triton | when the model becomes free, or a delay is over | number and age of what waits |
# | `sequence_batching` (lesson 07) | Triton | from START to END | the correlation id |
# | `gpt_model_type`, `batch_scheduler_policy` (04, 05) | the engine | each iteration | free slots, free blocks |
#
# The first three hand the model a batch and get all of it back. An engine's batch changes while it runs, so a dynamic
# batcher's delay in front of it is only a wait: leave it at 0.
#
# ## Turn the knob
#
# *Run* writes the file, loads the model, and sends; the run before stays above. Try a delay of 50000 µs, then none:
#
# 1. with "one every 10 ms": the first batch waits for company; later ones fill while the model is busy;
# 2. with "one every 60 ms": the delay ends before company comes, and every request waits in vain.
#
# With a queue policy or priorities, Triton 2.51 [can idle](../assets/elsewhere.md#06-Dynamic-batching) while requests wait.

# %% tags=["nbval-ignore-output"]
config_path.write_text(as_it_was)
board = lesson.board(server, log_path)
board.controls["dynamic_batching"].value = "true"
board.controls["dynamic_batching.max_queue_delay_microseconds"].value = "50000"
board.run()
board

# %% [markdown]
# ## Elsewhere
#
# | | vLLM, <code>--runner <wbr>pooling</code> | Text Embeddings Inference | Triton |
# |---|---|---|---|
# | a batch is limited by | <code>--max-num-<wbr>batched-tokens</code>, <code>--max-num-<wbr>seqs</code> | <code>--max-batch-<wbr>tokens</code>, <code>--max-batch-<wbr>requests</code> | `max_batch_size` |
# | waits for company | no | no | <code>max_queue_delay_<wbr>microseconds</code> |
# | refuses | <code>--max-num-<wbr>queued-tokens</code>, <code>--max-num-<wbr>queued-reqs</code>: 503 | <code>--max-concurrent-<wbr>requests</code>: 429 | `max_queue_size` |
# | watch | <code>vllm:request_queue_<wbr>time_seconds</code>, <code>vllm:num_requests_<wbr>waiting</code> | <code>te_queue_<wbr>size</code>, <code>te_batch_next_<wbr>size</code> | <code>nv_inference_queue_<wbr>duration_us</code>, <code>nv_inference_pending_<wbr>request_count</code> |
#
# ## What breaks
#
# A client that does not know of `max_batch_size` sends nine texts in one request:

# %%
try:
    embed(text * 9)
except triton.InferenceServerException as error:
    print(error.message())

# %% [markdown]
# Triton joins requests, and never splits one. The client has to.
#
# ## Recap
#
# The client decides what it sends together, Triton adds what waits, an engine decides anew in each iteration.
#
# - A batch is what came during the one before it. It grows until it fits the traffic.
# - In a closed loop a delay pays while it is shorter than the fixed cost it saves; in an open loop it buys no answers.
# - A tester that waits for answers leaves out the requests that would have waited.
# - Bound a queue by what its requests cost, not by how many they are.
# - A client that is refused waits as long as it is told, and a random time (jitter) more.
#
# <details><summary>1. A batch costs 10 ms, and 10 ms an item; batches of at most eight. What is the most that
# <code>dynamic_batching</code> can gain?</summary>
#
# Alone a request takes 20 ms: 50 a second. Eight take 90 ms: 89 a second, not even twice as many. Half of a lone
# request is fixed; sharing only that half can never double the answers.
# </details>
#
# <details><summary>2. A colleague's load test, 32 callers and 10,000 requests, shows a P99 of 80 ms. Your users say that
# nothing moved for three seconds. How can both be right?</summary>
#
# The callers wait for each answer. While the server stands still, 32 of their requests are under way, fewer than one in a
# hundred. Let the test send on a schedule, and count from when each request was due.
# </details>
#
# <details><summary>3. Prefill computes 20,000 tokens a second, and the first token must come within two seconds. Which
# limit, and what does it leave out?</summary>
#
# 40,000 queued tokens, less a margin for what running answers take of each iteration. It leaves out the wait for a
# free slot, and what the prefix cache saves.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}.
