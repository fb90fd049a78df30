# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **choose** between `guaranteed_no_evict` and `max_utilization` for a service, from how long its answers are;
# - **count** what a small KV cache costs: requests that wait, requests that are paused, tokens computed twice;
# - **protect** readers from a long prompt, and **share** the KV cache of what all prompts begin with.
#
# **What you will use elsewhere:** the arithmetic of blocks, and the questions that decide between waiting and pausing, hold
# for TensorRT-LLM and vLLM too. *Elsewhere* has their names, and two sums that differ.
#
# You need lesson 04: slots, iterations, in-flight batching. Engines, repository and server are made here.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# In-flight batching keeps eight slots busy. But a request needs more than a slot: each token of its prompt and of its
# answer leaves keys and values in [blocks](glossary.md#Block) of the
# [KV cache](glossary.md#KV-cache). In the restaurant of lesson 04, blocks are plates: guests need more of them
# the longer they eat, and give all back when they leave.
#
# One evening there are free seats and no plates. Do you keep new guests at the door until there are plates for all that
# they may order? Or do you let them in, and take plates back from somebody later? `batch_scheduler_policy` decides:
#
# - **`guaranteed_no_evict`**: a request starts when there are blocks for its prompt and its *longest possible* answer.
#   They are promised to it, so it always runs to its end.
# - **`max_utilization`**: a request starts when there are blocks for its prompt. When blocks run out later, the engine
#   **pauses** the request that started last: it takes its blocks, and computes them again when there is room.

# %%
import math
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.express as px

from inflight import CourseError, engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig
from inflight.lessons import kv_cache as lesson
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.triton import Client, Server, repository, telemetry

session.others()

# %% [markdown]
# ## Two kinds of traffic
#
# A cache must have room for one request of the longest kind, `max_seq_len`. We build an engine for short ones, so that
# the cache can be tiny:

# %% tags=["nbval-ignore-output"]
longest = 768
short_requests = BuildConfig(max_input_len=736, max_seq_len=longest)
with progress.wait("The engine, built the first time"):
    engine_dir = engine.cached(fetch(), short_requests)
tokenizer = load_tokenizer(engine_dir)
slots, block = short_requests.max_batch_size, short_requests.tokens_per_block
num_blocks = longest // block
print(f"{slots} slots, and a KV cache of {num_blocks} blocks of {block} tokens")

# %% [markdown]
# Eight requests come to it. Either they write **captions**: each answer has exactly as many tokens as it may have. Or they
# ask **questions**: short answers, but to be safe the clients allow 216 tokens.


# %%
def requests_of(texts, max_tokens):
    """A request for each text; they come 20 ms apart."""
    sent = []
    for place, text in enumerate(texts):
        length = workload.input_len(text, tokenizer)
        sent.append(workload.TimedRequest(text, max_tokens, 0.02 * place, length))
    return sent


countries = ["France", "Italy", "Japan", "Egypt", "Peru", "Norway", "Kenya", "Spain"]
asked = [f"Describe {country} in one short sentence." for country in countries]
captions = workload.prompts_of(range(88, 96), tokenizer)
traffic = {"captions": requests_of(captions, 44), "questions": requests_of(asked, 216)}
for kind, requests in traffic.items():
    prompts = [request.input_len for request in requests]
    print(f"{kind}: prompts of {min(prompts)} to {max(prompts)} tokens,", end=" ")
    print(f"answers of at most {requests[0].max_tokens}")

# %% [markdown]
# ## Predict
#
# A caption needs 3 blocks to start, and 5 at its end. So `guaranteed_no_evict` runs four captions side by side: a fifth
# promise would exceed 24 blocks. `max_utilization` starts all eight at once. Commit yourself:

# %%
guess = widgets.predict(
    "For the captions, how many iterations does max_utilization need, "
    "compared with guaranteed_no_evict?",
    {
        "half as many: eight run side by side, not four": 0.5,
        "three quarters": 0.75,
        "about as many": 1,
        "twice as many: it computes everything twice": 2,
    },
)
guess

# %% [markdown]
# ## On paper
#
# Both policies fit on a page. A request *holds* blocks for the tokens that are there, and *may need* blocks for those
# that may still come.


# %%
@dataclass
class OnPaper:
    prompt: int
    max_tokens: int
    ends_at: int  # we know it, no scheduler does
    answered: int = 0


def holds(request):
    return math.ceil((request.prompt + request.answered) / block)


def may_need(request):
    # your line: blocks of the prompt and of the longest answer that it may get
    return math.ceil((request.prompt + request.max_tokens) / block)


# %% [markdown]
# Add first, then round up: the answer goes on in the block in which the prompt ends.


# %%
def guaranteed_no_evict(running, blocks):
    return sum(may_need(request) for request in running) <= blocks


def max_utilization(running, blocks):
    return sum(holds(request) for request in running) <= blocks


# %% [markdown]
# The policies differ in one word. The rest is the same for both: pause while there are too few blocks, start requests
# that fit, give each running request one token. A paused request's tokens are computed twice, all but its newest.


# %%
def play(requests, fits, blocks):
    waiting, running, paused, iterations = list(requests), [], [], 0
    while waiting or running:
        while not max_utilization(running, blocks):
            waiting.insert(0, running.pop())  # the youngest; it comes back first
            paused.append(waiting[0].prompt + waiting[0].answered - 1)
        while waiting and len(running) < slots and fits([*running, waiting[0]], blocks):
            running.append(waiting.pop(0))
        if not running:
            raise ValueError("Requests wait, none runs, and none fits.")
        for request in running:
            request.answered += 1
        running = [request for request in running if request.answered < request.ends_at]
        iterations += 1
    return iterations, len(paused), sum(paused)


# %% [markdown]
# Nobody knows in advance where an answer ends. Suppose that the questions get 30 tokens each:

# %%
policies = [guaranteed_no_evict, max_utilization]
paper = {}
for kind, requests in traffic.items():
    for fits in policies:
        ends_at = 44 if kind == "captions" else 30
        sent = [OnPaper(one.input_len, one.max_tokens, ends_at) for one in requests]
        paper[kind, fits.__name__] = play(sent, fits, num_blocks)
columns = ["iterations", "pauses", "tokens twice"]
pd.DataFrame(paper.values(), pd.MultiIndex.from_tuples(paper), columns)

# %% [markdown]
# Does a real engine agree?
#
# ## Run
#
# The server starts with `guaranteed_no_evict`. A request goes ahead: an engine's first is its slowest.

# %%
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    decoupled_mode=True,
    iteration_log_path=log_path,
    batch_scheduler_policy="guaranteed_no_evict",
    max_tokens_in_paged_kv_cache=longest,
)
with progress.wait("The server starts"):
    server = Server(repo).start()
client = Client(server.grpc_url, timeout_s=600)


# %%
def run(kind):
    """Send the requests; questions end where the model ends them."""
    ends = tokenizer if kind == "questions" else None
    return trace_run.run(client, traffic[kind], log_path, stream=True, tokenizer=ends)


warm_up = requests_of(["Name the capital of France."], 8)
print(len(trace_run.run(client, warm_up, log_path).log), "iterations to warm up")

# %% [markdown]
# ### Keep them at the door
#
# The log has a row per iteration. What is promised, `promised_blocks` works out from the requests.

# %% tags=["nbval-ignore-output"]
with progress.wait("Captions, guaranteed_no_evict"):
    no_evict = run("captions")
log = no_evict.log
idle = lesson.promised_blocks.idle(log, traffic["captions"])
beside = ((log["waiting"] > 0) & (log["empty_seats"] > 0)).to_numpy()
free = idle[beside].mean()
print(f"In {beside.sum()} of {len(log)} iterations requests waited beside free slots.")
print(
    f"Of {num_blocks} blocks, {free['promised'] + free['to_nobody']:.1f} were", end=" "
)
print(f"not in use then: {free['promised']:.1f} promised to running requests,")
print(
    f"{free['to_nobody']:.1f} to nobody: too few for another request, but for iterations"
)
print("in which one has just come or just left.")

# %% tags=["remove-cell"]
assert beside.any() and not log["paused"].any()

# %% [markdown]
# ### Take a plate back
#
# Given to `server.load`, the policy holds until the next load; `config.pbtxt` stays as it is.

# %% tags=["nbval-ignore-output"]
server.load("tensorrt_llm", batch_scheduler_policy="max_utilization")
trace_run.run(client, warm_up, log_path)
with progress.wait("Captions, max_utilization"):
    utilization = run("captions")
log = utilization.log
print(f"In {(log['paused'] > 0).sum()} of {len(log)} iterations a request was paused,")
print(f"at most {log['paused'].max()} at once.")
ratio = len(utilization.log) / len(no_evict.log)
print(guess.score(round(ratio, 2), "max_utilization over the other, a run of each"))

# %% tags=["remove-cell"]
assert log["paused"].any() and 0.87 < ratio < 1.15

# %% [markdown]
# ## See
#
# The blocks of each request, iteration by iteration, stacked; hatched on top, what is promised and not yet in use. The
# strip below counts the requests without a slot: those that wait, and those that are paused.

# %% tags=["nbval-ignore-output"]
logs = {"guaranteed_no_evict": no_evict.log, "max_utilization": utilization.log}
promised = {"guaranteed_no_evict": idle}
summary = lesson.kv_blocks_summary(logs, promised)
charts.show(lesson.kv_blocks(logs, promised), summary)
print(summary)

# %% tags=["remove-cell"]
assert "waiting and 0 paused; max_utilization" in summary

# %% [markdown]
# Above, four requests run, and the other four wait until they have finished. Below, all eight start, and their prompts
# fill the cache. Whenever running requests need a block and none is free, the youngest is paused. An orange edge marks
# where a paused request comes back and its tokens are computed again.
#
# ## The price of a pause
#
# A paused request comes back with its prompt and all that it had answered, as one long prompt. So the log counts more
# context tokens than the prompts have:


# %%
def computed_twice(log, requests):
    # your line: tokens, from log["context_tokens"] and the input_len of the requests
    return log["context_tokens"].sum() - sum(one.input_len for one in requests)


# %% tags=["nbval-ignore-output"]
for policy, log in logs.items():
    twice = computed_twice(log, traffic["captions"])
    iterations, _, on_paper = paper["captions", policy]
    print(f"{policy}: on paper {iterations} iterations, {on_paper} tokens twice;")
    print(f"    counted {len(log)} iterations, {twice} tokens twice")

# %% tags=["remove-cell"]
for policy, log in logs.items():
    iterations, _, on_paper = paper["captions", policy]
    assert abs(len(log) - iterations) < 12
    assert (computed_twice(log, traffic["captions"]) > 0) == (on_paper > 0)

# %% [markdown]
# A few iterations of difference are the order of arrival: the engine starts the first request before the others are
# there. (The log also counts the newest token of each paused request; that, and pauses a little earlier or later, is
# the difference in tokens.)
#
# ## Which policy when
#
# Counts are not yet times. So both kinds of traffic come under both policies, in three rounds in which they take turns:

# %% tags=["nbval-ignore-output"]
runs = {(policy, kind): [] for kind in traffic for policy in logs}
for _ in progress.over(range(3), "Round"):
    for policy in logs:
        server.load("tensorrt_llm", batch_scheduler_policy=policy)
        trace_run.run(client, warm_up, log_path)
        for kind in traffic:
            runs[policy, kind].append(run(kind))

# %% [markdown]
# What does a pause cost in milliseconds? Whoever runs waits for an iteration that computes somebody's tokens again: compare
# it with one of as many answers and no prompt. The paused request's own reader waits longer: first until a running request
# ends and gives blocks back, then for that iteration. The longest time between two tokens of any request is the longest
# **stall**. Without pauses there are stalls, too, while the prompts of others are computed.


# %%
def price(log):
    """Milliseconds that coming back adds to iterations, and the longest stall."""
    shares = telemetry.shares(log)
    again = shares[shares.duplicated("request") & (shares["context"] > 0)]
    plain = (
        log[log["context_tokens"] == 0].groupby("scheduled")["iteration_ms"].median()
    )
    there = log[log["iteration"].isin(again["iteration"])]
    as_usual = np.interp(there["scheduled"], plain.index, plain)
    added = (there["iteration_ms"] - as_usual).sum()
    ends = log.set_index("iteration")["timestamp"] * 1000
    ends += log.set_index("iteration")["iteration_ms"]
    times = shares["iteration"].map(ends).groupby(shares["request"])
    return added, times.diff().max()


# %% tags=["nbval-ignore-output"]
names = ["iterations", "tokens twice", "computing again (ms)", "longest stall (ms)"]
names += ["longest wait for the first token (ms)", "median done (ms)", "all done (ms)"]
figures = {}
for (policy, kind), rounds in runs.items():
    rows = []
    for one in rounds:
        twice, sent = computed_twice(one.log, traffic[kind]), one.requests
        first_ms = 1000 * (sent["first_s"] - sent["due_s"]).max()
        done_ms = 1000 * (sent["last_s"] - sent["due_s"])
        done = done_ms.median(), done_ms.max()
        rows.append((len(one.log), twice, *price(one.log), first_ms, *done))
    figures[policy, kind] = pd.DataFrame(rows, columns=names)
medians = {", ".join(key): found.median() for key, found in figures.items()}
charts.table(pd.DataFrame(medians).rename_axis("").reset_index(), decimals=0)

# %% [markdown]
# Medians of the three rounds. *Done* is from the moment at which a request was due to its last token. Compare
# *computing again*, the sum of all pauses, with the longest stall, which is a single one: what a stall has beyond its
# part of that sum is waiting for blocks, and quicker prefill does not shorten it. More blocks, or a reserve, do.

# %% tags=["nbval-ignore-output"]
words = {"longest stall (ms)": ("longer", "shorter")}
words |= {"longest wait for the first token (ms)": ("longer", "shorter")}
words |= dict.fromkeys(("median done (ms)", "all done (ms)"), ("later", "earlier"))
for kind in traffic:
    ours, theirs = (figures[policy, kind] for policy in reversed(logs))
    print(f"{kind}, max_utilization beside the other:")
    for name, more_less in words.items():
        print(f"   {name}", told_apart(ours[name], theirs[name], *more_less))

# %% tags=["remove-cell"]
counts = {key: found["iterations"].median() for key, found in figures.items()}
assert abs(counts["max_utilization", "captions"] - 87) < 12
assert counts["max_utilization", "questions"] < 45
assert all(
    found["tokens twice"].max() == 0
    for (policy, _), found in figures.items()
    if policy != "max_utilization"
)

# %% [markdown]
# The iterations follow from the blocks. For each question, `guaranteed_no_evict` promises eight blocks: three run, and
# five slots stay empty. Prompt and answer of 30 tokens need only three. On paper each question got 30 tokens; the real
# answers differ in length, so its three places are free again sooner or later than there. Fewer iterations need not be
# less time: an iteration takes longer when more requests are in it (lesson 04), so look at *all done*. The median hides
# who waits: with promises some requests are done early and others late, without them all run side by side. A stall
# counts only from the first token. At the door the same reader waits before the first token: look at both columns
# before you choose.
#
# *Not told apart* after three rounds does not mean *the same*. Where the medians are far apart and the interval is
# wide, the rounds scatter too much for three to settle it: ask what the counts say, and run more.
#
# Ask three questions about a service. *Do its answers come near `max_tokens`?* If not, ask for fewer tokens, or take
# `max_utilization`. *How often would a request be paused?* Seldom: take `max_utilization`. Often: make the cache
# larger, keep a reserve (the lab's 5.3), or take `guaranteed_no_evict`. *Does somebody read along?* Only where pauses
# are frequent does that decide: then prefer a longer wait for the first token to a stop in mid-sentence,
# `guaranteed_no_evict`. Where hardly anybody is paused, as for the questions, readers get their first token sooner with
# `max_utilization`. For a batch job only the total time counts: measure it.
#
# ## Turn the knob
#
# First on paper: how large must the cache be, so that the policies do the same? And what do a third more blocks, 1,024
# tokens, change? Then let the captions end at half of their `max_tokens`, and run the next two cells again.

# %%
share = 1.0  # of max_tokens, where an answer ends: then try 0.5 and 0.25
rows = []
for tokens in range(longest, 1793, 128):
    for fits in policies:
        sent = [
            OnPaper(one.input_len, one.max_tokens, round(share * one.max_tokens))
            for one in traffic["captions"]
        ]
        rows.append((tokens, fits.__name__, *play(sent, fits, tokens // block)))
columns = ["tokens of cache", "policy", "iterations", "pauses", "twice"]
sizes = pd.DataFrame(rows, columns=columns)
sizes = sizes.pivot(index=columns[0], columns="policy", values="iterations")
alike = sizes.nunique(axis=1).eq(1)

# %% tags=["remove-cell"]
assert alike.iloc[-1] and sizes.loc[1024].tolist() == [88, 54]

# %%
figure = px.line(sizes, line_dash="policy", markers=True)
figure.update_layout(meta={"device": ""}, yaxis_title="iterations")
figure.update_yaxes(rangemode="tozero")
summary = "Iterations on paper by size of the cache: " + "; ".join(
    f"{tokens} tokens, {with_promises} with guaranteed_no_evict and {without} without"
    for tokens, (with_promises, without) in sizes.loc[[768, 1024]].iterrows()
)
summary += f"; with {alike.idxmax()} both need the same."
charts.show(figure, summary)
print(summary)

# %% [markdown]
# With 1,024 tokens, `guaranteed_no_evict` runs six captions and then two: two rounds, as with four and four.
#
# Then on the server: find the smallest cache at which no request is ever paused. The dashboard loads the model, sends the
# captions, and draws.

# %%
lesson.board(server, traffic["captions"], log_path)

# %% [markdown]
# ## A long prompt arrives
#
# Seven people read their streams, and an eighth sends a prompt of 500 tokens. The engine computes all of it in one
# iteration, and every reader waits for its end.
#
# **Chunked context** (vLLM: chunked prefill) cuts the prompt. An iteration computes at most `max_num_tokens`: first one
# token for each running answer, then as much of the prompt as there is room for. That limit is set when the engine is
# built, so we need a second one, for 128 tokens. How many iterations does the prompt take in it?

# %% tags=["nbval-ignore-output"]
with progress.wait("A second engine, built the first time"):
    small_steps = engine.cached(
        fetch(), BuildConfig(max_input_len=736, max_seq_len=longest, max_num_tokens=128)
    )
[long_prompt] = workload.prompts_of([500], tokenizer)
readers = 7
# your line: iterations for 500 tokens of prompt, while 7 readers take a token in each
parts = math.ceil(500 / (128 - readers))

# %%
print(f"The prompt is computed in {parts} parts, of at most {128 - readers} tokens.")

# %% [markdown]
# The prompt is sent when the first reader has 16 tokens. Each reader notes the time from token to token, the ITL.


# %%
def while_others_read():
    """Milliseconds from token to token of each reader, and the newcomer's TTFT."""
    in_the_middle = threading.Event()

    def read(_):
        stream = client.stream("Tell me a story.", 44, end_id=-1)
        for number, _ in enumerate(stream, 1):
            if number == 16:
                in_the_middle.set()
        return 1000 * np.diff(stream.answer.times_s)

    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(read, reader) for reader in range(readers)]
        in_the_middle.wait(120)
        newcomer = client.stream(long_prompt, 4, end_id=-1).read()
    return [one.result() for one in reading], newcomer.time_to_first_s


# %% tags=["nbval-ignore-output"]
ways = {
    "whole": {"gpt_model_path": engine_dir},
    "in parts": {"gpt_model_path": small_steps, "enable_chunked_context": True},
}
itl_ms, ttft_s, counted = {}, {}, {}
for way, parameters in progress.over(ways.items(), "Prompt", lambda item: item[0]):
    server.load("tensorrt_llm", max_tokens_in_paged_kv_cache=4096, **parameters)
    client.ask(long_prompt, 2)  # a warm-up of the same size
    since = len(telemetry.iterations(log_path))
    itl_ms[way], ttft_s[way] = while_others_read()
    shares = telemetry.shares(telemetry.iterations(log_path)[since:])
    counted[way] = (shares["context"] > 0).groupby(shares["request"]).sum().max()
print(f"Iterations that computed the prompt: {counted['whole']} whole,", end=" ")
print(f"{counted['in parts']} in parts.")

# %% tags=["nbval-ignore-output"]
rows = [(way, n, ms) for way in ways for n, ms in enumerate(itl_ms[way][0], 2)]
one_reader = pd.DataFrame(rows, columns=["prompt", "token", "ITL (ms)"])
figure = px.scatter(one_reader, x="token", y="ITL (ms)", facet_row="prompt")
figure.for_each_annotation(lambda note: note.update(text=note.text[7:]))
figure.update_layout(height=420)
summary = "How long one reader waits for each token"
for way in ways:
    summary += f"; {way}: of all readers at most {np.max(itl_ms[way]):.0f} ms,"
    summary += f" and the sender's first token after {ttft_s[way]:.2f} s"
charts.show(figure, f"{summary}.")
print(f"{summary}.")

# %% tags=["remove-cell"]
assert one_reader["token"].max() == 44

# %% [markdown]
# One reader stands for all: they get their tokens in the same iterations. Raised points from token 16 on are iterations
# that compute the prompt or a part of it; those at the very beginning compute the readers' own prompts. No work is
# saved, and a little is added: each part reads the weights, and the keys and values of the parts before it, once more.
# But the readers get a token after each part. The sender can expect to pay: the first token comes after the last of
# several shared iterations in place of one. Whether and how much later, one run of each cannot tell. On a GPU, parts
# that are too small leave much of it unused.
#
# ## One system prompt, many users
#
# Many services put the same long instructions before every question. With `enable_kv_cache_reuse` (vLLM: prefix caching),
# full blocks stay in the cache after their request has finished, and a prompt that begins with the same tokens starts
# from them. Four users ask, one after the other, with 400 tokens of instructions in front:

# %% tags=["nbval-ignore-output"]
[instructions] = workload.prompts_of([400], tokenizer)
users = [f"{instructions} {question}" for question in asked[:4]]
ttft_ms = {}
for reuse in progress.over((False, True), f"{len(users)} users, reuse"):
    server.load(
        "tensorrt_llm", max_tokens_in_paged_kv_cache=4096, enable_kv_cache_reuse=reuse
    )
    client.ask("Name the capital of France.", 2)  # a warm-up that begins otherwise
    answers = [client.stream(text, 4, end_id=-1).read() for text in users]
    way = "reuse" if reuse else "no reuse"
    ttft_ms[way] = [1000 * answer.time_to_first_s for answer in answers]
reused = telemetry.iterations(log_path)["kv_blocks_reused"].iloc[-1]

# %% tags=["nbval-ignore-output"]
by_user = pd.DataFrame(ttft_ms, index=[f"user {n + 1}" for n in range(len(users))])
figure = px.bar(by_user, barmode="group", text_auto=".0f", pattern_shape="variable")
figure.update_traces(textposition="outside")
figure.update_layout(xaxis_title="", yaxis_title="TTFT (ms)", legend_title="")
first, *later = ttft_ms["reuse"]
summary = (
    f"Time to first token of {len(users)} users, without reuse and with it. With reuse "
    f"the first waits {first:.0f} ms, the later ones {np.mean(later):.0f} ms "
    "on average."
)
charts.show(figure, summary)
print(summary)

# %% [markdown]
# The first user still pays for the instructions. How many blocks did the later ones find? Here only full blocks count,
# as far as the prompts begin alike.

# %%
ids = [tokenizer.encode(tokenizer.chat(text)) for text in users]
shared = next(place for place, tokens in enumerate(zip(*ids)) if len(set(tokens)) > 1)
# your line: blocks that the users after the first find in the cache, all together
found = shared // block * (len(users) - 1)

# %%
print(f"{shared} shared tokens are {shared // block} full blocks; {found} are found.")
print(f"Counted by the engine: {reused}.")

# %% [markdown]
# The 400 tokens count the chat template, whose end comes after the question; ` Describe` is shared as well. Here each
# user came when the one before had finished. If all come at once, it matters from when on a block can be found: in
# [TensorRT-LLM's earlier versions](https://nvidia.github.io/TensorRT-LLM/advanced/kv-cache-reuse.html) only after its
# request has ended, so a first wave reuses nothing.
#
# A kept block is given away as soon as a request needs it, so reuse takes no memory from anybody. What it asks of you is
# order: put what is the same for all users first, and what differs (a date, a name) last.
#
# ## Elsewhere
#
# | | TensorRT-LLM with engines, and here | TensorRT-LLM today (`llmapi`) | vLLM |
# |---|---|---|---|
# | Policy | <code>batch_scheduler_<wbr>policy</code> | <code>capacity_scheduler_<wbr>policy</code> | none: it pauses (*preempts*), and computes again |
# | Size of the cache | <code>max_tokens_in_<wbr>paged_kv_cache</code>, <code>kv_cache_free_<wbr>gpu_mem_fraction</code>; the smaller wins | `max_tokens`, <code>free_gpu_<wbr>memory_fraction</code> | <code>--gpu-memory-<wbr>utilization</code>: of all memory, weights included; TensorRT-LLM's fraction is of what is free after loading |
# | Tokens in an iteration | `max_num_tokens`, when building | `max_num_tokens` | <code>--max-num-<wbr>batched-tokens</code> |
# | Prompts in parts | <code>enable_chunked_<wbr>context</code> | <code>enable_chunked_<wbr>prefill</code> | on by default |
# | Reuse | <code>enable_kv_<wbr>cache_reuse</code>: off by default up to 0.18 | <code>enable_block_<wbr>reuse</code>: on by default | on by default |
# | Tokens in a block | <code>tokens_per_block</code>: here 32; by default 64 in 0.18 | by default 32 | `--block-size`, often 16 |
#
# **Two sums that differ in TensorRT-LLM.**
#
# - It reuses a part of a block, too, by [copying
#   it](https://nvidia.github.io/TensorRT-LLM/1.4.0rc1/features/kvcache.html) (`enable_partial_reuse`, on by default).
# - A part of a prompt, except the last, is a
#   [multiple of `tokens_per_block`](https://github.com/NVIDIA/TensorRT-LLM/pull/9499): 96 of the 121 tokens above, so six
#   parts.
#
# **Pauses in TensorRT-LLM today.** Which manager of the cache you get depends on the model ([`use_kv_cache_manager_v2:
# auto`](https://github.com/NVIDIA/TensorRT-LLM/blob/0076e9390e1ed11515f149eec356f5a03f4a00d8/docs/source/features/kvcache.md)).
# The scheduler of the new one, V2, [takes `MAX_UTILIZATION` whatever you ask
# for](https://github.com/NVIDIA/TensorRT-LLM/blob/9ba713c39a62d7d27c0ee82246aa5cc3022bf60e/tensorrt_llm/_torch/pyexecutor/scheduler/scheduler_v2.py).
# It *suspends* a request, and keeps [room in the memory of the host](https://github.com/NVIDIA/TensorRT-LLM/pull/13693)
# to resume it from; later it may also compute it again (`enable_recompute_pause`). How much a policy can matter depends
# on the version, too: one user's 70B model on an H200, with too small a cache, made [40.6 % fewer tokens a
# second](https://github.com/NVIDIA/TensorRT-LLM/issues/16827) under `MAX_UTILIZATION` with 1.2.1, and 0.9 % fewer with
# 1.3.0rc22 (same thread). Measure with your own version.
#
# **Pauses in vLLM today.** vLLM admits a request when its [whole
# prompt](https://github.com/vllm-project/vllm/pull/37307) fits (`scheduler_reserve_full_isl`). A `watermark` keeps a
# share of the blocks free when requests are admitted; it is off by default. In [its author's
# measurement](https://github.com/vllm-project/vllm/pull/44594), on a nearly full cache and with prefix caching off, 5 %
# free blocks brought 1,065 pauses down to 187, raised the tokens a second by 5 % and more than halved the P99 of ITL
# (41 to 18 ms); the median TTFT rose from 6.6 to 11.2 s. The lab's 5.3 has you find such a reserve.
#
# **Order of eviction.** Of the blocks kept for reuse, TensorRT-LLM gives away those of the lowest priority first (a request
# may set it), and among these the
# [least recently used](https://nvidia.github.io/TensorRT-LLM/1.4.0rc1/features/kvcache.html). vLLM takes the least recently
# used, of one request [the last blocks first](https://docs.vllm.ai/en/latest/design/prefix_caching/).
#
# **Offload to the host.** TensorRT-LLM can copy evicted blocks to
# [the host's memory](https://nvidia.github.io/TensorRT-LLM/1.4.0rc1/features/kvcache.html) (`host_cache_size`), from where
# they can still be reused; vLLM has [`OffloadingConnector`](https://docs.vllm.ai/en/latest/api/vllm/v1/kv_offload/). It pays
# when copying a block is quicker than computing it.
#
# **FP8 cache.** One byte a number in place of two, so twice as many tokens fit:
# `dtype: fp8` of `kv_cache_config`, in vLLM
# [`--kv-cache-dtype fp8`](https://docs.vllm.ai/en/latest/features/quantization/quantized_kvcache/). Its scales are 1 unless
# somebody calibrated them: measure the quality.
#
# On a lab GPU ([commands](../assets/lab-gpu/README.md)):
#
# - A large GPU is seldom short of blocks for a small model with few slots. To see this lesson there, cap the cache with
#   `max_tokens_in_paged_kv_cache`, at no less than the engine's `max_seq_len`.
# - With engines, chunked context and reuse need `--use_paged_context_fmha enable` when building.
#   With `decoupled` and without `enable_chunked_context`, tensorrtllm_backend 24.02
#   [only warns](https://github.com/triton-inference-server/tensorrtllm_backend/issues/396) that it runs
#   `guaranteed_no_evict` where you ask for `max_utilization`.
#
# ## What breaks
#
# **A cache that is too small for one request.** That request would wait for ever, so the engine refuses to load, and the
# server goes on with what it had:

# %%
try:
    server.load("tensorrt_llm", max_tokens_in_paged_kv_cache=512)
except CourseError as error:
    print(str(error).splitlines()[0])
print("still ready:", client.is_ready())

# %% [markdown]
# **Small iterations without chunked context.** A long prompt would never fit into one:

# %%
try:
    server.load(
        "tensorrt_llm", gpt_model_path=small_steps, enable_chunked_context=False
    )
except CourseError as error:
    print(str(error).splitlines()[0])

# %% [markdown]
# ## Recap
#
# - A request needs blocks for every token of its prompt and its answer. Blocks, not slots, are often what is short.
# - `guaranteed_no_evict` promises blocks for the longest answer: no request is ever paused, but promised blocks lie idle
#   while other requests wait.
# - `max_utilization` starts a request as soon as its prompt fits, and pays with pauses and tokens computed twice.
# - Which needs fewer iterations depends on the traffic: do answers use what was promised, or end long before? Whether that
#   is less time, measure.
# - Chunked context turns one long wait of the readers into several short ones. Reuse computes a common beginning once.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A cache of 40 blocks of 32 tokens; every request has a prompt of 100 tokens and asks for 220. How
# many start at once under each policy?</summary>
#
# A whole request is 320 tokens, 10 blocks: four under <code>guaranteed_no_evict</code>. A prompt is 4 blocks: ten under
# <code>max_utilization</code>, if there are ten slots. As they grow, most of them will be paused.
# </details>
#
# <details><summary>2. For hours, 12 requests with short prompts wait, 5 of 8 slots are in use, and 30 % of the blocks are
# free. Which policy is it, and is something wrong?</summary>
#
# <code>guaranteed_no_evict</code>: the free blocks are promised, or too few for the next request. Nothing is wrong. But if
# most answers end long before <code>max_tokens</code>, ask for fewer tokens or change the policy.
# </details>
#
# <details><summary>3. You put the time of day at the top of the system prompt. What happens to reuse?</summary>
#
# It ends at the first token that differs, so almost at once: keys and values depend on every token before them. Put the
# time at the end.
# </details>
#
# Now [do the lab]({lab}) and write the scheduler yourself, or go on with {next}.
#
# The server ends with this notebook's kernel (*Kernel → Shut Down Kernel*).
