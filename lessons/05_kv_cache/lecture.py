# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **choose** between `guaranteed_no_evict` and `max_utilization` for a service, with figures of your own;
# - **measure** what a small KV cache costs: guests who wait, guests who are paused, tokens computed twice;
# - **protect** readers from a long prompt, and **compute** once what all prompts begin with.
#
# You need nothing but this notebook: engines, repository and server are made here.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# In-flight batching keeps eight slots busy. But a guest needs more than a slot: each token of a prompt and of an
# answer leaves its keys and values in the [KV cache](00_start_here.ipynb#KV-cache), in
# [blocks](00_start_here.ipynb#Block) of 32 tokens. Call them plates. A guest gathers plates while eating, and gives
# all of them back when leaving.
#
# Memory is finite, so one evening the plates run out. You can keep guests at the door until there are plates enough for
# all that they may ever order. Or you can let them in, and take the plates back from somebody when it gets tight. The
# parameter `batch_scheduler_policy` decides:
#
# - **`guaranteed_no_evict`**: a request joins when blocks for its prompt and its *longest* answer, `max_tokens`, can be
#   promised.
# - **`max_utilization`**: a request joins when its next iteration fits. When blocks run out, the youngest request is
#   **paused**: it gives its blocks back and has to compute them again later. What it has already said stays said.

# %% [markdown]
# ## Predict
#
# Two kinds of guests come to one small cache. The first write captions: each answer has exactly as many tokens as it
# may have. The others ask short questions, and to be safe they allow 256 tokens. Commit yourself:

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["setup"]
from inflight.lessons import kv_cache as lesson
from inflight.notebook import charts, progress, widgets

guess = widgets.predict(
    "Which policy makes more tokens a second?",
    [
        "guaranteed_no_evict, for both: it computes nothing twice",
        "max_utilization, for both: it fills more slots",
        "each of them wins once",
    ],
    given=prediction,
)
guess

# %% [markdown]
# ## Who comes
#
# The engine takes at most 1,024 tokens a request (`max_seq_len`), so its cache can be made as small as that.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("05", "Who comes")
from inflight import engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig

with progress.wait("The engine, built the first time"):
    options = BuildConfig(max_input_len=512, max_seq_len=1024)
    tight_engine = engine.cached(fetch(), options)
tokenizer = load_tokenizer(tight_engine)
cache_tokens, block, slots = 1024, options.tokens_per_block, options.max_batch_size
num_blocks = cache_tokens // block
assert num_blocks == 32
print(f"{num_blocks} blocks of {block} tokens, {slots} slots")

# %% tags=["setup"]
captions = [
    workload.TimedRequest(text, 80, place * workload.TRACE_GAP_S, 120 + place)
    for place, text in enumerate(workload.prompts_of(range(120, 128), tokenizer))
]
countries = "France Italy Japan Egypt Peru Norway Kenya Spain Greece Cuba Chile Brazil"
texts = [f"In which continent is {country}?" for country in countries.split()]
questions = [
    workload.TimedRequest(
        text, 256, place * workload.TRACE_GAP_S, workload.input_len(text, tokenizer)
    )
    for place, text in enumerate(texts)
]
for name, requests in {"captions": captions, "questions": questions}.items():
    first = requests[0]
    print(f"{len(requests)} {name}: {first.input_len} tokens of prompt or a few more,")
    print(f"  answers of at most {first.max_tokens}; the first: {first.text[:40]!r} …")

# %% [markdown]
# ## On paper first
#
# Both policies fit on a page. A request holds blocks for what is there, and may need blocks for what may come:

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("05", "On paper first")
from dataclasses import dataclass


@dataclass
class OnPaper:
    prompt: int
    max_tokens: int
    ends_at: int  # known to us, and to no scheduler
    answered: int = 0

    def holds(self):
        return -(-(self.prompt + self.answered) // block)  # rounded up

    def may_need(self):
        return -(-(self.prompt + self.max_tokens) // block)


def guaranteed_no_evict(running):
    return sum(request.may_need() for request in running) <= num_blocks


def max_utilization(running):
    return sum(request.holds() for request in running) <= num_blocks


# %% [markdown]
# That is the whole difference: which of the two is summed up when somebody wants to join. The rest is the same for
# both: pause while there are too few blocks, let join who fits, and give each request in a slot one token.


# %% tags=["setup"]
def play(requests, fits):
    """Iterations, pauses, and tokens that are computed twice."""
    waiting, running = list(requests), []
    iterations = pauses = twice = 0
    while waiting or running:
        while sum(request.holds() for request in running) > num_blocks:
            youngest = running.pop()
            waiting.insert(0, youngest)  # its place in the line is the first
            pauses += 1
            twice += youngest.prompt + youngest.answered - 1
        while waiting and len(running) < slots and fits([*running, waiting[0]]):
            running.append(waiting.pop(0))
        for request in running:
            request.answered += 1
        running = [request for request in running if request.answered < request.ends_at]
        iterations += 1
    return iterations, pauses, twice


# %% [markdown]
# Where an answer ends nobody knows in advance. Suppose that the questions take 30 tokens each:

# %% tags=["setup"]
import pandas as pd

paper = {}
for name, requests in {"captions": captions, "questions": questions}.items():
    for fits in (guaranteed_no_evict, max_utilization):
        ends = [80 if name == "captions" else 30] * len(requests)
        sent = [
            OnPaper(request.input_len, request.max_tokens, end)
            for request, end in zip(requests, ends)
        ]
        paper[name, fits.__name__] = play(sent, fits)
columns = ["iterations", "pauses", "tokens twice"]
pd.DataFrame(paper.values(), pd.MultiIndex.from_tuples(paper), columns)

# %% [markdown]
# Iterations and tokens pull apart, and neither is a second yet. So run it.
#
# ## Run

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("05", "Run")
import tempfile
from pathlib import Path

from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    tight_engine,
    iteration_log_path=log_path,
    batch_scheduler_policy="guaranteed_no_evict",
    max_tokens_in_paged_kv_cache=cache_tokens,
)
server = Server(repo).start()
client = Client(server.grpc_url)
print("ready:", client.ask("Name the capital of France.").text)

# %% [markdown]
# ### Keep them at the door
#
# `trace_run.run` is lesson 04's: it sends all guests and waits for the last answer. Its `log` has a row an iteration.

# %% tags=["nbval-ignore-output"]
from inflight.bench import trace_run
from inflight.lessons.kv_cache import promised_blocks

with progress.wait("Captions, guaranteed_no_evict"):
    no_evict = trace_run.run(client, captions, log_path)
log = no_evict.log
held_back = ((log["waiting"] > 0) & (log["empty_seats"] > 0)).to_numpy()
idle = promised_blocks.idle(log, captions)[held_back].mean()
in_all = idle["promised"] + idle["to_nobody"]
print(
    f"In {held_back.sum()} of {len(log)} iterations somebody waited beside a free slot."
)
print(
    f"Of {num_blocks} blocks {in_all:.1f} were idle then: "
    f"{idle['promised']:.1f} promised to those who ran,"
)
print(f"{idle['to_nobody']:.1f} to nobody, too few for what the next one may need.")
assert held_back.any() and not log["paused"].any()

# %% [markdown]
# ### Take a plate back
#
# One key is edited in the protobuf, and the running server loads the model again.

# %%
print(repository.edit(repo, "tensorrt_llm", batch_scheduler_policy="max_utilization"))
server.load("tensorrt_llm")
print("ready:", client.ask("Name the capital of France.").text)

# %% tags=["nbval-ignore-output"]
with progress.wait("Captions, max_utilization"):
    utilization = trace_run.run(client, captions, log_path)
log = utilization.log
print(
    f"In {(log['paused'] > 0).sum()} of {len(log)} iterations somebody was paused, "
    f"at most {log['paused'].max()} at once."
)
assert log["paused"].any()

# %% [markdown]
# ### See
#
# Scrub through both runs at once. Each row is a slot, as long as the blocks that its request holds; hatched is what has
# been promised to it. The row *cache* adds them up, and what is grey there is free for anybody. Below, the whole
# run; a triangle marks a pause.

# %% tags=["nbval-ignore-output"]
runs = {"guaranteed_no_evict": no_evict.log, "max_utilization": utilization.log}
promised = {"guaranteed_no_evict": promised_blocks.shares(no_evict.log, captions)}
first_pause = int(utilization.log["paused"].gt(0).idxmax()) + 1
lesson.replay(runs, promised, slots, iteration=first_pause)

# %% [markdown]
# Go to the first iterations: above, some wait while blocks are free or only promised; below, all eight are in.
# Then follow the triangles: each pause comes where the cache is full and everybody's next block is due at once.
#
# ### Explain: the price of a pause
#
# A pause costs no answer and no token, but work. A paused request comes back with its prompt and with all that it had
# answered so far, as one long prompt: the log counts more context tokens than the prompts have.

# %%
prompt_tokens = sum(request.input_len for request in captions)
for policy, run in {
    "guaranteed_no_evict": no_evict,
    "max_utilization": utilization,
}.items():
    iterations, _, twice = paper["captions", policy]
    counted = run.log["context_tokens"].sum() - prompt_tokens
    assert abs(len(run.log) - iterations) < 12 and (counted > 0) == (twice > 0)
    print(f"{policy}: on paper {iterations} iterations, {twice} tokens twice;", end=" ")
    print("the engine's count is near it")

# %% [markdown]
# And in seconds? The log has the time of every iteration. Put those apart in which a prompt was computed, for the first
# time or again: all others only bring answers forward.

# %% tags=["nbval-ignore-output"]
rows = []
for policy, log in runs.items():
    lasted = log["timestamp"].diff().shift(-1).fillna(log["iteration_ms"] / 1000)
    prompts = log["context_tokens"] > 0
    per_policy = (lasted[~prompts].sum(), lasted[prompts].sum(), lasted.sum())
    rows.append((policy, len(log), log["context_tokens"].sum(), *per_policy))
columns = ["iterations", "context tokens", "answers (s)", "prompts (s)", "in all (s)"]
seconds = pd.DataFrame(rows, columns=["policy", *columns])
answers, prompts, whole = seconds[columns[2:]].diff().iloc[1]
print(
    f"max_utilization against guaranteed_no_evict: {answers:+.2f} s in iterations that"
)
print(
    f"bring answers alone, {prompts:+.2f} s in those with prompts: "
    f"{whole:+.2f} s in all."
)
assert seconds["context tokens"][1] > seconds["context tokens"][0]
charts.table(seconds, decimals=2)

# %% [markdown]
# These seconds are measured, so they add up to what the clock said. An estimate, so much for an iteration and so much for
# a token of a prompt, would promise too much: iterations with more answers in them take longer, and whoever is paused
# twice pays twice. And this was one run; the rounds below tell how far to trust it.
#
# ## Answers that end early
#
# Now the questions. Their answers end where the model says its end token, long before 256 tokens. Both policies take
# turns with both kinds of guests, three rounds.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("05", "Answers that end early")
from inflight.bench import trace_run

traffic = {"captions": (captions, None), "questions": (questions, tokenizer)}
turns = [
    (n, policy)
    for n in (1, 2, 3)
    for policy in ("guaranteed_no_evict", "max_utilization")
]
rows = []
for number, policy in progress.over(turns, "Round", "{0[0]}, {0[1]}".format):
    server.load("tensorrt_llm", batch_scheduler_policy=policy)
    client.ask("Name the capital of France.")
    for kind, (requests, ends) in traffic.items():
        one = trace_run.run(client, requests, log_path, tokenizer=ends)
        twice = one.log["context_tokens"].sum() - sum(r.input_len for r in requests)
        worst_s = one.requests["latency_ms"].quantile(0.99) / 1000
        counts = (len(one.log), one.log["paused"].max(), twice)
        rows.append((kind, number, policy, *counts, one.tokens_per_s, worst_s))
columns = [
    "traffic",
    "round",
    "policy",
    "iterations",
    "most paused",
    "twice",
    "tokens/s",
    "P99 (s)",
]
rounds = pd.DataFrame(rows, columns=columns)
rounds = rounds.set_index(["traffic", "policy"])
assert (rounds["twice"]["questions"] <= rounds["twice"]["captions"].max()).all()
middle = rounds.groupby(level=[0, 1]).median().drop(columns="round").round(1)
middle.astype(dict.fromkeys(["iterations", "most paused", "twice"], int))

# %% tags=["nbval-ignore-output"]
tokens_per_s = rounds.set_index("round", append=True)["tokens/s"].unstack("policy")
ratio = tokens_per_s["max_utilization"] / tokens_per_s["guaranteed_no_evict"]
gains = ratio.rename("ratio").reset_index()
spread = gains.groupby("traffic")["ratio"].agg(["median", "min", "max"])
summary = "Tokens a second, max_utilization over guaranteed_no_evict: " + "; ".join(
    f"{kind} {row['median']:.2f} times ({row['min']:.2f} to {row['max']:.2f})"
    for kind, row in spread.iterrows()
)
charts.show(lesson.policy_gains(gains), summary)
winners = {
    "max_utilization" if row > 1 else "guaranteed_no_evict" for row in spread["median"]
}
print(f"{summary}.")
print(guess.score("each" if len(winners) == 2 else f"{winners.pop()}, for both"))

# %% [markdown]
# To each question `guaranteed_no_evict` promises ten blocks, and most answers need two or three. So three guests fill
# the cache, and five slots stay empty. `max_utilization` fills all eight and pauses hardly anybody, because the answers
# end before the plates run out. The captions do need all that was promised: whoever is let in early is soon paused.
#
# ### Which policy for which service?
#
# The table comes from your rounds. A policy counts as faster only if it was so in every round; on a machine that does
# other things too the seconds scatter, and the counts beside them do not.


# %% tags=["nbval-ignore-output"]
def faster(row):
    if row["min"] > 1:
        return "max_utilization"
    return (
        "guaranteed_no_evict" if row["max"] < 1 else "either: it changes with the round"
    )


longest = {
    "captions": "as long as max_tokens",
    "questions": "far shorter than max_tokens",
}
middle = rounds.groupby(level=[0, 1]).median()
rows = [
    (
        longest[kind],
        faster(row),
        *middle.loc[kind]["iterations"].astype(int),
        int(middle.loc[kind, "max_utilization"]["twice"]),
        *middle.loc[kind]["P99 (s)"],
    )
    for kind, row in spread.iterrows()
]
short = ["no_evict", "utilization"]
columns = [
    f"{what}, {policy}" for what in ("iterations", "P99 (s)") for policy in short
]
columns = ["answers", "faster", *columns[:2], "computed twice", *columns[2:]]
charts.table(pd.DataFrame(rows, columns=columns))

# %% [markdown]
# So ask two things of a service. *Do its answers come near `max_tokens`?* If so, promises cost little and pauses much. If
# not, ask for fewer tokens, or take `max_utilization`. *Does anybody read along?* A pause stops a stream in mid-sentence,
# while a longer wait for the first word is easier to bear. Whether it is night matters to neither. And where the cache
# has room for all slots, nothing is ever short: both policies are the same one.
#
# ## Turn the knob
#
# First on paper, with the engine's own scheduler and no model. Let the captions end earlier, then make the cache larger:
# where do the lines part, and where do they meet?

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("05", "Turn the knob")
lengths = [(request.input_len, request.max_tokens) for request in captions]
both_on_paper = lesson.policies_on_paper(lengths, options, most_tokens=2048)
assert "guaranteed_no_evict takes" in both_on_paper.frame.alt
both_on_paper

# %% [markdown]
# Then on the server: the dashboard edits the config, has it loaded, sends
# the captions and draws while they are written; hatched on top of the blocks held is what is promised. The run before
# stays above, on the same scale. Try:
#
# 1. `max_utilization` with 1,024 tokens, then with 1,280: how many pauses does a quarter more memory save?
# 2. `guaranteed_no_evict` with 2,048: does anybody wait beside a free slot?
# 3. The smallest cache at which nobody is ever paused.

# %%
lesson.board(server, captions, log_path)

# %% [markdown]
# Every other key of the engine is in lesson 02's editor; Apply writes the file and has the server load it:

# %%
widgets.ConfigEditor(server, "tensorrt_llm")

# %% [markdown]
# ## A long prompt arrives
#
# Plates are one way in which guests feel each other. Here is another: seven people read their streams, and an eighth
# sends a prompt of 1,500 tokens. All of it is computed in one iteration, and in that iteration everybody waits.
#
# Chunked context cuts it: an iteration takes at most `max_num_tokens` tokens, answers first, and the prompt gets what
# is left of it. `max_num_tokens` is decided when the engine is built, so there are two engines. Streaming needs a
# decoupled repository.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("05", "A long prompt arrives")
from inflight.lessons.kv_cache import prompts_that_fit, send_while_others_read

client.close()
sizes = progress.over((2048, 256), "Engine", "of {} tokens an iteration".format)
whole, in_chunks = (
    engine.cached(fetch(), BuildConfig(max_input_len=1536, max_num_tokens=most))
    for most in sizes
)
streaming_log = Path(workdir.name) / "streaming.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "long",
    whole,
    decoupled_mode=True,
    iteration_log_path=streaming_log,
)
streaming = Server(repo).start()  # a second one: the dashboard keeps the first
client = Client(streaming.grpc_url)
long_prompt, instructions = prompts_that_fit(client, [1500, 800], tokenizer)
prompt_ids = tokenizer.encode(tokenizer.chat(long_prompt))

# %% tags=["nbval-ignore-output"]
ways = {
    "whole, in one iteration": {"gpt_model_path": whole},
    "at most 256 tokens each": {
        "gpt_model_path": in_chunks,
        "enable_chunked_context": True,
    },
}
gaps, first_s = {}, {}
for way, options in progress.over(ways.items(), "Run", lambda item: item[0]):
    streaming.load("tensorrt_llm", **options)
    client.ask_tokens(prompt_ids, 2)  # a warm-up
    gaps[way], newcomer = send_while_others_read(client, prompt_ids)
    first_s[way] = newcomer.time_to_first_s
assert all((rows["time_s"] > 0).any() for rows in gaps.values())

# %% tags=["nbval-ignore-output"]
told = [
    f"{way}: no reader waits longer than {rows['gap_ms'].max():.0f} ms for a token, "
    f"and the newcomer's first comes after {first_s[way]:.1f} s"
    for way, rows in gaps.items()
]
summary = (
    f"A dot is a token of one reader, as high as it was waited for. {'; '.join(told)}."
)
charts.show(
    lesson.token_gaps({way: rows[rows["reader"] == 0] for way, rows in gaps.items()}),
    summary,
)
room = 256 - 7  # seven readers take a token each
print(f"{summary}\n{len(prompt_ids)} tokens in parts of {room}:", end=" ")
print(f"{-(-len(prompt_ids) // room)} iterations.")

# %% [markdown]
# The picture has one reader of the seven; all get their tokens in the same iterations. No work is saved: it is cut into
# slices, and the readers get a token after each. Smaller slices hurt the readers less. For the newcomer it depends:
# every slice brings the cost of one more iteration, and on a GPU slices that are too small leave it idle; on a CPU,
# slices that fit its caches may even be the faster way.
#
# ## One system prompt, many users
#
# Most services put the same long instructions before every question. Their keys and values are the same each time, as
# long as they come first. With `enable_kv_cache_reuse`, full blocks stay in the cache after their request has left,
# and a prompt that begins with the same tokens starts from there.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("05", "One system prompt, many users")
users = [
    f"{instructions} In which continent is {place}?" for place in countries.split()[:6]
]
ttft_ms = pd.DataFrame(index=range(len(users)))
for reuse in progress.over((False, True), f"{len(users)} users, reuse"):
    streaming.load("tensorrt_llm", enable_kv_cache_reuse=reuse)
    client.stream(long_prompt, 2).read()  # a warm-up that begins otherwise
    answers = [client.stream(text, 4, end_id=-1).read() for text in users]
    name = "reuse" if reuse else "no reuse"
    ttft_ms[name] = [answer.time_to_first_s * 1000 for answer in answers]
first, later = ttft_ms["reuse"][0], ttft_ms["reuse"][1:].median()
summary = (
    f"TTFT of {len(users)} users, one after the other. With reuse the first still pays "
    f"{first:.0f} ms for the instructions; the later ones wait {later:.0f} ms."
)
charts.show(lesson.first_tokens(ttft_ms), summary)

# %% [markdown]
# How many blocks was that? What two prompts share at their beginning counts, in full blocks. The engine's own count is
# in the iteration log, and in `/metrics` under the label `reused`.

# %%
from inflight.triton import telemetry

ids = [tokenizer.encode(tokenizer.chat(text)) for text in users]
shared = next(place for place, tokens in enumerate(zip(*ids)) if len(set(tokens)) > 1)
by_hand = shared // block * (len(users) - 1)
reused = telemetry.iterations(streaming_log)["kv_blocks_reused"].iloc[-1]
print(f"{shared} shared tokens are {shared // block} full blocks;", end=" ")
print(f"{len(users) - 1} later users: {by_hand}. Counted by the engine: {reused}.")
assert reused == by_hand

# %% [markdown]
# Reuse costs nothing here: a kept block is given up as soon as somebody needs it. What it needs from you is order: put
# what is the same for all first, and what differs (a date, a name) last.
#
# ## On the lab GPU
#
# The keys are TensorRT-LLM's own, in the same `tensorrt_llm/config.pbtxt`, and lesson 01's engine serves both policies.
#
# Every command is on [the page for a lab GPU](../assets/lab-gpu/README.md).
#
# | Step | Here | TensorRT-LLM, with engines | vLLM |
# |---|---|---|---|
# | No pauses | `guaranteed_no_evict` | the same | none: it always preempts |
# | Pauses | `max_utilization` | the same | always, by recomputation |
# | Size of the cache | <code>max_tokens_in_<wbr>paged_kv_cache</code>, or <code>kv_cache_free_<wbr>gpu_mem_fraction</code>; the smaller wins | the same keys; the fraction is of the GPU memory that is free once the engine is loaded | `--gpu-memory-utilization` |
# | Reuse, chunked context | one key each | `enable_kv_cache_reuse`, `enable_chunked_context`, and an engine built with `--use_paged_context_fmha enable` | prefix caching and chunked prefill, both on by default |
# | Tokens an iteration | <code>BuildConfig(<wbr>max_num_tokens=256)</code> | `--max_num_tokens` when building | `--max-num-batched-tokens` |
# | Block | 32 tokens, fixed by the kernel | `--tokens_per_block` when building | `--block-size` |
# | See it | iteration log; `paused_requests`, `waiting`, `reused` in `/metrics` | the verbose log; the same labels in `/metrics`, of which two mean something else | `/metrics` |
# | A scheduler of your own | `scheduler_path` (see the lab) | none: it has the two policies | `--scheduler-cls` |
#
# What to know there:
#
# - On a large GPU nothing is ever short: with TinyLlama the default share is room for millions of tokens. Cap the cache by
#   `max_tokens_in_paged_kv_cache`, not by the fraction, and by no less than the engine's `max_seq_len`.
# - `waiting` counts those who have a slot and were not in this iteration; requests without one are in no gauge.
# - `paused_requests` counts who was paused *in this iteration*, not who is still paused: afterwards they count as `waiting`.
# - A streamed request is refused under `max_utilization` when its prompt and its longest answer together exceed the
#   longest prompt: once paused, it comes back as one prompt. Chunked context lifts that, or `guaranteed_no_evict`.
#
# Tutorials of other years spell things otherwise:
#
# | In a tutorial | What it really does |
# |---|---|
# | `batch_scheduler_policy: guaranteed_completion` | never a value of TensorRT-LLM's backend, which warns and takes its default, `guaranteed_no_evict`; our engine takes it for the older spelling that it is meant as |
# | `max_utilization` with `decoupled_mode` | up to 0.11 the backend took `guaranteed_no_evict` whenever the model was decoupled; since 0.12 both go together |
# | nothing about `enable_kv_cache_reuse` | off up to 0.18, on from 0.19 on: the same benchmark, other figures |
# | a misspelt policy or boolean | a warning in the log, and the default; here it is refused |
#
# ## What breaks
#
# **A cache that one longest request does not fit into.** It could wait for ever, so the engine refuses to load, and
# the server goes on with what it had:

# %%
from inflight.notebook import catch_up

catch_up("05", "What breaks")
from inflight import CourseError


def first_line(error):
    return str(error).splitlines()[0]


try:
    streaming.load("tensorrt_llm", max_tokens_in_paged_kv_cache=512)
except CourseError as error:
    print(first_line(error))
print("still ready:", client.is_ready())

# %% [markdown]
# TensorRT-LLM refuses too, in these words: `maxTokensInPagedKvCache … must be large enough to process at least 1
# sequence`. The ways out are the same: more tokens, or an engine with a smaller `max_seq_len`.
#
# **Small iterations without chunked context.** A long prompt would never fit into one:

# %%
try:
    streaming.load(
        "tensorrt_llm", gpt_model_path=in_chunks, enable_chunked_context=False
    )
except CourseError as error:
    print(first_line(error))

# %% [markdown]
# ## Recap
#
# - A request needs blocks for every token of its prompt and its answer; blocks, not slots, are often what is short.
# - `guaranteed_no_evict` promises for the longest answer: nobody is ever paused, promised blocks lie idle, guests wait.
# - `max_utilization` admits whom it can: fuller iterations, paid for with pauses and tokens computed twice.
# - Which one is faster depends on the traffic: do answers use what they were promised, or end long before?
# - Chunked context lets readers wait often and briefly instead of once and long; reuse lets later users skip a common
#   beginning.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A cache of 40 blocks of 32 tokens; every request has a prompt of 100 tokens and asks for 220. How
# many join at once under each policy?</summary>
#
# The longest is 320 tokens, 10 blocks: four under <code>guaranteed_no_evict</code>. A prompt is 4 blocks: ten under
# <code>max_utilization</code>, if there are ten slots; when they grow, most of them will be paused.
# </details>
#
# <details><summary>2. In this engine's <code>/metrics</code>, <code>waiting</code> is 12 and 30 % of the blocks are free, hour after hour.
# Which policy is it, and is something wrong?</summary>
#
# <code>guaranteed_no_evict</code>: the free blocks are promised. Nothing is wrong; but if answers mostly end long before
# <code>max_tokens</code>, ask for fewer tokens or change the policy.
# </details>
#
# <details><summary>3. You put the time of day at the top of the system prompt. What happens to reuse?</summary>
#
# It ends at the first token that differs, so nearly at once: keys and values depend on every token before them. Put the
# time at the end.
# </details>
#
# Now [do the lab]({lab}) and write the scheduler yourself, or go on with {next}: who forms the batches of a model that
# has no engine?
#
# ## What runs
#
# Both servers belong to this notebook, and so the widgets above go on working. They end with the notebook's kernel. After
# the kernel was restarted, a widget says so, or reads *model not found*: run its section again, whose first cell makes
# what it needs of the earlier ones.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
