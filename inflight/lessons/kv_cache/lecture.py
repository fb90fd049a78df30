# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **read** a block table, and turn memory into blocks and blocks into users;
# - **choose** between `guaranteed_no_evict` and `max_utilization`, by counting what each costs;
# - **protect** readers from a long prompt, and **share** what all prompts begin with.
#
# You need lesson 04. vLLM, SGLang and TensorRT-LLM all have blocks, pauses, chunked prefill and prefix caching. The names
# of the two policies are TensorRT-LLM's; vLLM has the second one.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# In-flight batching keeps eight slots busy. But each token of a request's prompt and answer also leaves keys and values in
# the [KV cache](glossary.md#KV-cache). One evening slots (the seats) are free, and requests wait all the same: room in the
# cache (the plates) has run out. TensorRT-LLM offers two policies:
#
# - **`guaranteed_no_evict`**: a request starts when there is memory for its prompt and its *longest possible* answer. The
#   promise holds to its end.
# - **`max_utilization`**: a request starts when there is memory for its prompt. When memory runs out later, the engine
#   **pauses** the request that started last: it takes its memory away, and computes its tokens again when there is room.

# %%
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from inflight import CourseError, engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BlockManager, BuildConfig
from inflight.lessons import kv_cache as lesson
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.triton import Client, Server, repository, telemetry

session.others()

# %% [markdown]
# ## The block table
#
# The cache is divided into [blocks](glossary.md#Block) of 32 tokens. A request holds a list of them, its *block table*:
# its first 32 tokens are in the first block of the list, the next 32 in the second. Blocks need not be neighbours: a request
# takes any free one when its last is full. Attention that reads keys and values through such a table is
# [PagedAttention](https://arxiv.org/abs/2309.06180). This engine is built for short requests, so that its cache can be tiny:

# %% tags=["nbval-ignore-output"]
longest = 768
with progress.wait("The engine, built the first time"):
    engine_dir = engine.cached(fetch(), BuildConfig(max_input_len=736, max_seq_len=768))
limits = engine.read(engine_dir).build_config
slots, block = limits.max_batch_size, limits.tokens_per_block
num_blocks = longest // block
print(f"{slots} slots, and a cache of {num_blocks} blocks of {block} tokens")

# %% [markdown]
# Two prompts begin with the same instructions. The engine's own block manager gives them blocks, and shares those in
# which they begin alike, as with `enable_kv_cache_reuse`:

# %%
tokenizer = load_tokenizer(engine_dir)
[instructions] = workload.prompts_of([80], tokenizer)
manager, tables, tokens = BlockManager(num_blocks, block), {}, {}
for name, question in {"A": "Describe Peru.", "B": "Name three rivers."}.items():
    ids = tokenizer.encode(tokenizer.chat(f"{instructions} {question}"))
    blocks = tables[name] = []
    manager.find(blocks, ids)  # blocks in which the same beginning is already
    manager.grow(blocks, len(ids))  # and free ones for the remaining tokens
    manager.keep(blocks, ids, len(ids))
    tokens[name] = len(ids)
tokens["A"] = 100  # the answer to A has outgrown its last block
manager.grow(tables["A"], tokens["A"])
figure, summary = lesson.block_tables(tables, tokens, num_blocks, block)
charts.show(figure, summary)
print(summary)

# %% [markdown]
# B took block 3, so A's answer goes on in block 4. How many requests fit into a memory? Lesson 01 has the bytes of a token: 46,080 in this model, 131,072 in Llama 3.1 8B
# with 16 bits. A request wastes at most the end of its last block.


# %%
def requests_that_fit(memory_bytes, token_bytes, tokens):
    # your line: how many requests of so many tokens fit? Each has whole blocks.
    return int(memory_bytes // (math.ceil(tokens / block) * block * token_bytes))


# %%
here = num_blocks * block * 46_080
print(
    f"Here, {here / 1e6:.0f} MB:",
    requests_that_fit(here, 46_080, 134),
    "captions of 134 tokens",
)
gpu = 0.9 * 80e9 - 16e9  # 80 GB, of which 90 % may be used, less the weights of 8B
print("On a GPU of 80 GB:", requests_that_fit(gpu, 131_072, 2000), "of 2,000 tokens")

# %% [markdown]
# ## Two kinds of traffic
#
# To the tiny cache come sixteen requests for **captions**, whose answers are exactly as long as they may be. Or eight
# **questions**: the answers are short, but the clients allow 216 tokens, to be safe.


# %%
def requests_of(texts, max_tokens):
    """A request for each text; they are sent 20 ms apart."""
    sent = []
    for place, text in enumerate(texts):
        length = workload.input_len(text, tokenizer)
        sent.append(workload.TimedRequest(text, max_tokens, 0.02 * place, length))
    return sent


countries = ["France", "Italy", "Japan", "Egypt", "Peru", "Norway", "Kenya", "Spain"]
asked = [f"Describe {country} in one short sentence." for country in countries]
captions = workload.prompts_of([90] * 16, tokenizer)
traffic = {"captions": requests_of(captions, 44), "questions": requests_of(asked, 216)}
for kind, requests in traffic.items():
    prompt = max(request.input_len for request in requests)
    print(f"{kind}: prompts of at most {prompt} tokens,", end=" ")
    print(f"answers of at most {requests[0].max_tokens}")

# %% [markdown]
# ## Predict
#
# A caption needs 3 blocks to start, and 5 at its end. So `guaranteed_no_evict` runs four captions side by side: a fifth
# promise would exceed 24 blocks. `max_utilization` starts eight at once.

# %%
guess = widgets.predict(
    "How many iterations does max_utilization need for the captions, compared with guaranteed_no_evict?",
    {
        "half as many: eight run side by side to the end": 0.5,
        "three quarters as many: five or six run side by side on average": 0.75,
        "as many: after the pauses it is four again": 1,
        "twice as many: most are paused more than once": 2,
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
    return math.ceil((request.prompt + request.max_tokens) / block)


# %%
def guaranteed_no_evict(running, blocks):
    return sum(may_need(request) for request in running) <= blocks


def max_utilization(running, blocks):
    return sum(holds(request) for request in running) <= blocks


# %% [markdown]
# They differ in one word. The rest is common: pause while there are too few blocks, start requests that fit, give each
# running request one token. A paused request comes back with all its tokens as one prompt.


# %%
def simulate(requests, fits, blocks):
    waiting, running, paused, iterations = list(requests), [], [], 0
    while waiting or running:
        while sum(map(holds, running)) > blocks:
            waiting.insert(0, running.pop())  # the youngest; it comes back first
            paused.append(waiting[0].prompt + waiting[0].answered)
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
# Suppose that questions are answered in 30 tokens:

# %%
policies = {
    "guaranteed_no_evict": guaranteed_no_evict,
    "max_utilization": max_utilization,
}
paper = {}
for kind, requests in traffic.items():
    for policy, fits in policies.items():
        ends_at = 44 if kind == "captions" else 30
        sent = [OnPaper(one.input_len, one.max_tokens, ends_at) for one in requests]
        paper[kind, policy] = simulate(sent, fits, num_blocks)
columns = ["iterations", "pauses", "tokens computed again"]
pd.DataFrame(paper.values(), pd.MultiIndex.from_tuples(paper), columns)

# %% [markdown]
# ## Run
#
# Now the real engine. On paper all wait from the start; so here a request that fills the cache goes first, and they
# come while it is answered.

# %%
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    decoupled_mode=True,
    iteration_log_path=log_path,
    max_tokens_in_paged_kv_cache=longest,
)
with progress.wait("The server starts"):
    server = Server(repo).start()
client = Client(server.grpc_url, timeout_s=600)


# %% tags=["nbval-ignore-output"]
[text] = workload.prompts_of([705], tokenizer)  # 23 blocks: too few are left for others
filling = workload.TimedRequest(text, longest - 705, 0.0, 705)


def run(kind, policy):
    """The requests under a policy; the model ends the answers to questions."""
    server.load("tensorrt_llm", batch_scheduler_policy=policy)
    ends = tokenizer if kind == "questions" else None
    return lesson.run_behind(filling, client, traffic[kind], log_path, ends)


runs = {key: run(*key) for key in progress.over(paper, "Run", ", ".join)}
logs = {policy: runs["captions", policy].log for policy in policies}
ratio = len(logs["max_utilization"]) / len(logs["guaranteed_no_evict"])
print(
    guess.score(round(ratio, 2), "the iterations of max_utilization over the other's")
)

# %% [markdown]
# ## See
#
# The captions' blocks, iteration by iteration, stacked; hatched on top, what is promised and not yet in use. An
# orange edge is a paused request that is computed again, in one long iteration. The strip below counts requests without a
# slot: those that wait, and those that are paused.

# %% tags=["nbval-ignore-output"]
no_evict = "guaranteed_no_evict"
promised = {no_evict: lesson.promised_blocks.idle(runs["captions", no_evict])}
summary = lesson.kv_blocks_summary(logs, promised)
charts.show(lesson.kv_blocks(logs, promised), summary)
print(summary)

# %% tags=["remove-cell"]
assert not logs[no_evict]["paused"].any() and logs["max_utilization"]["paused"].any()
assert ratio == 132 / 176

# %% [markdown]
# Above, four captions run at a time: four rounds of 44 iterations are 176. Below, eight start, and fill the cache: 8 × 3
# blocks. Each needs a fourth block with its seventh token, and the two youngest are paused: 6 × 4 = 24. Two more leave when
# a fifth is due: 4 × 5 = 20. A caption holds 3 blocks for 7 iterations, 4 for 32 and 5 for 5: 174 in all. So sixteen in 24
# blocks need at least 16 × 174 / 24 = 116 iterations. `max_utilization` takes 132.
#
# ## Which policy when
#
# A paused request comes back with its prompt and all that it had answered, as one long prompt. So the log counts more
# context tokens than the prompts have:


# %%
def computed_again(log, requests):
    # your line: context tokens beyond those of the prompts, from the log and the requests
    return log["context_tokens"].sum() - sum(one.input_len for one in requests)


# %% tags=["nbval-ignore-output"]
def counts(kind, policy):
    """What a run cost, in iterations and tokens."""
    log = runs[kind, policy].log
    tokens_at = telemetry.shares(log).groupby("request")["iteration"]
    return {
        "iterations on paper": paper[kind, policy][0],
        "in the log": len(log),
        "computed again": computed_again(log, traffic[kind]),
        "first token on average": tokens_at.min().mean(),
        "longest gap": tokens_at.apply(lambda at: at.diff().max()).max(),
    }


counted = pd.DataFrame({key: counts(*key) for key in runs}).T.round().astype(int)
counted

# %% tags=["remove-cell"]
assert counted["in the log"]["captions"].tolist() == [176, 132]
assert counted["in the log"]["questions"]["max_utilization"] < 45
assert not counted.xs(no_evict, level=1)["computed again"].any()

# %% [markdown]
# *Computed again* counts tokens, all other columns iterations; the longest gap is between two tokens of an answer. For the
# captions engine and paper agree. Every answer to a question ended before 30 tokens: 29 iterations, not
# 30, and with three at a time 71, not 90.
#
# For a question, `guaranteed_no_evict` promises eight blocks: three run, and five slots stay empty. Prompt and answer fill
# at most three, so `max_utilization` runs all eight and pauses none.
#
# For the captions its readers see another service: the first token comes 35 iterations earlier on average, but seven of the
# sixteen stop in mid-sentence, one for 38. Do fewer iterations take less time?

# %% tags=["nbval-ignore-output"]
done_s = {policy: [] for policy in policies}
for _ in progress.over(range(7), "Round"):
    for policy, rounds in done_s.items():
        log = run("captions", policy).log
        ends_s = log["timestamp"] + log["iteration_ms"] / 1000
        rounds.append(ends_s.max() - log["timestamp"].min())
ours, theirs = done_s["max_utilization"], done_s[no_evict]
its = counted["in the log"]["captions"]
print(
    f"Compared with guaranteed_no_evict: {its.min() / its.max():.2f} times the iterations,"
)
print("and the time until the last answer is", end=" ")
print(told_apart(ours, theirs, "longer", "shorter"))

# %% [markdown]
# 44 iterations are saved and 756 tokens computed again, 17 for each. Time is gained where 17 tokens of a prompt take less
# than the part of an iteration that all share: not on the course's machine.
#
# | your service | policy |
# |---|---|
# | answers end long before `max_tokens` | `max_utilization`, or cap `max_tokens` (the lab's 5.1) |
# | answers come near `max_tokens`, and users watch them come | `guaranteed_no_evict`: a later first token, no stop |
# | answers come near `max_tokens`, nobody watches | `max_utilization`, if the tokens computed again take less time than the iterations saved |
# | many pauses, and you want to keep `max_utilization` | more blocks, fewer slots, or the lab's 5.3 |
#
# ## Turn the knob
#
# 1. Under `max_utilization`, find the smallest cache at which no request is paused.
# 2. `guaranteed_no_evict` with 1,024 tokens, a third more: how many iterations fewer?
#
# <details><summary>What to see</summary>
#
# Here nothing fills the cache first, so that counts differ by a few.
#
# 1. 1,280 tokens always do: eight slots of 5 blocks. On a fast machine 1,152 may: not all need their fifth block at once.
# 2. 44: six run, six, and four, which is three rounds and not four.
#
# </details>

# %%
lesson.board(server, traffic["captions"], log_path)

# %% [markdown]
# ## A long prompt arrives
#
# Seven people read their streams, and an eighth sends a prompt of 500 tokens. The engine computes all of it in one
# iteration, and every reader waits for its end. With **chunked context** (vLLM: chunked prefill) a prompt may be computed in
# parts, so the bound on an iteration's tokens can be low: first one for each running answer, then as much of the prompt
# as there is room for. In vLLM the bound is `max_num_batched_tokens`; here five lines of scheduler lower it:

# %%
# %%writefile {workdir.name}/in_parts.py
from dataclasses import replace

from inflight.engine import GuaranteedNoEvict


class Scheduler(GuaranteedNoEvict):
    def schedule(self, now):
        return super().schedule(replace(now, max_num_tokens=128))


# %% [markdown]
# How many iterations does the prompt take?

# %%
readers = 7
# your line: iterations for 500 tokens of prompt, while 7 readers take a token in each
parts = math.ceil(500 / (128 - readers))

# %%
[text] = workload.prompts_of([500], tokenizer)
reading = requests_of(["Tell me a story."] * readers, 64)
arrival = [*reading, workload.TimedRequest(text, 4, 0.3, 500)]


def long_prompt(path):
    """The log of seven readers and the long prompt, with the scheduler at path."""
    server.load(
        "tensorrt_llm",
        max_tokens_in_paged_kv_cache=4096,
        scheduler_path=path,
        enable_chunked_context=bool(path),
    )
    client.ask(text, 2)  # a warm-up of the same size
    return trace_run.run(client, arrival, log_path, stream=True).log


# %% tags=["nbval-ignore-output"]
ways = {"whole": "", "in parts": f"{workdir.name}/in_parts.py"}
seen = {way: [] for way in ways}
for _ in progress.over(range(7), "Round"):
    for way, path in ways.items():
        seen[way].append(long_prompt(path))
charts.show(*lesson.iterations_around(seen))

# %% tags=["nbval-ignore-output"]
took = {
    way: [lesson.of_longest_prompt(log)["iteration_ms"] for log in logs]
    for way, logs in seen.items()
}
longest_ms = {way: [ms.max() for ms in rounds] for way, rounds in took.items()}
print("In parts compared with whole, the longest iteration is", end=" ")
print(told_apart(longest_ms["in parts"], longest_ms["whole"], "longer", "shorter"))

# %% tags=["remove-cell"]
assert {way: {*map(len, rounds)} for way, rounds in took.items()} == {
    "whole": {1},
    "in parts": {parts},
}

# %% [markdown]
# The readers wait five times for a short iteration, not once for a long one. The sender waits for all five, which together
# take somewhat longer than the one. On GPUs the bound is usually thousands of tokens.
#
# ## One system prompt, many users
#
# Many services put the same long instructions before every question. With `enable_kv_cache_reuse` (vLLM: prefix caching),
# full blocks stay in the cache after their request, and a prompt that begins with the same tokens starts
# from them, as B did above. Four users ask, with nearly 400 tokens of instructions in front:

# %%
[instructions] = workload.prompts_of([400], tokenizer)
users = [f"{instructions} {question}" for question in asked[:4]]
ids = [tokenizer.encode(tokenizer.chat(text)) for text in users]
shared = next(place for place, tokens in enumerate(zip(*ids)) if len(set(tokens)) > 1)
# your line: blocks that the users after the first find in the cache, all together
found = shared // block * (len(users) - 1)

# %%
settings = {"scheduler_path": "", "enable_chunked_context": False}
server.load("tensorrt_llm", enable_kv_cache_reuse=False, **settings)  # a new cache
server.load("tensorrt_llm", enable_kv_cache_reuse=True, **settings)
client.ask("Name the capital of France.", 2)  # a warm-up that begins otherwise
since = len(telemetry.iterations(log_path))
for text in users:
    client.ask(text, 4)
log = telemetry.iterations(log_path)[since:]
first, *later = telemetry.shares(log).groupby("request")["context"].sum()
print(f"Tokens computed of the first prompt {first}, of the others {later}.")
print(f"{shared} shared tokens are {shared // block} full blocks; {found} are found.")
print("Counted by the engine:", log["kv_blocks_reused"].iloc[-1])

# %% [markdown]
# Here, as in vLLM, only full blocks are reused, up to the first token that differs. So what is the same for all comes first, and what
# differs (a date, a name) last. A kept block is given away as soon as a request needs it. But reuse leaks: a fast first token
# tells a stranger that somebody has sent the same beginning. vLLM's `cache_salt` keeps tenants apart.
#
# ## Elsewhere
#
# | | vLLM | TensorRT-LLM today | here, as in TensorRT-LLM with engines |
# |---|---|---|---|
# | Policy | it pauses (*preempts*) | <code>capacity_scheduler_<wbr>policy</code> | <code>batch_scheduler_<wbr>policy</code>, `guaranteed_no_evict` by default |
# | Size of the cache | <code>--gpu-memory-<wbr>utilization</code>: of all memory, weights included | <code>free_gpu_<wbr>memory_fraction</code>: of what is free after loading | that fraction, or <code>max_tokens_in_<wbr>paged_kv_cache</code> |
# | Tokens in an iteration | <code>--max-num-<wbr>batched-tokens</code> | `max_num_tokens` | `max_num_tokens`, when building |
# | Prompts in parts | on by default | <code>enable_chunked_<wbr>prefill</code> | <code>enable_chunked_<wbr>context</code> |
# | Reuse | on by default | <code>enable_block_<wbr>reuse</code>, on by default | <code>enable_kv_<wbr>cache_reuse</code>, off by default |
# | Tokens in a block | `--block-size`, often 16 | 32 by default | 32 |
# | Watch | <code>vllm:num_<wbr>preemptions_total</code>, <code>vllm:kv_cache_<wbr>usage_perc</code>, <code>vllm:prefix_<wbr>cache_hits_total</code> | iteration statistics | `paused`, `kv_blocks_used`, `kv_blocks_reused` of the log |
#
# [Today's engines pause, evict and offload](../assets/elsewhere.md#05-Policies-and-the-KV-cache) in other ways, too. To see
# this lesson on [a large GPU](../assets/lab-gpu/README.md), cap the cache.
#
# ## What breaks
#
# **A cache that is too small for one request.** That request would wait for ever, so the engine refuses to load, and
# the server keeps the engine that it had:

# %%
try:
    server.load("tensorrt_llm", max_tokens_in_paged_kv_cache=512)
except CourseError as error:
    print(error.sentence)
print("still ready:", client.is_ready())

# %% [markdown]
# ## Recap
#
# Promise, and new requests wait although memory is free; or take memory back, and compute some tokens twice.
#
# - A request needs blocks for every token of its prompt and its answer. Blocks, not slots, are often what is short.
# - `guaranteed_no_evict` promises the longest answer: no pauses, but promised blocks lie idle.
# - `max_utilization` starts a request as soon as its prompt fits: fewer iterations, paid with pauses and with tokens that
#   are computed again.
# - It gains the blocks that a promise leaves idle: some while every answer grows, most where answers end long before
#   `max_tokens`. It pauses when answers outgrow the blocks that are there.
# - Chunked context turns one long wait of the readers into several short ones. Reuse computes a common beginning once.
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
# Now [do the lab]({lab}), or go on with {next}.
