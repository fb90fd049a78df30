# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **weigh** computing a prompt against sending or fetching its blocks, in bytes and in milliseconds;
# - **run** prefill and decode on two servers, and say whom that helps;
# - **keep** a cache beyond the end of its engine, and let nothing wrong into it.
#
# You need lesson 05: blocks, prefix reuse, chunked context. vLLM, SGLang, TensorRT-LLM, Dynamo and llm-d all do what is
# done here; the router is vLLM's own. Nothing of it is Triton's. Engines and servers take about 2.5 GB of memory.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Your users complain of two things. While somebody sends a long document, everybody else's text stands still. And after
# a restart, every conversation is slow once: it is computed from its first word. In the design review, somebody
# proposes one machine that reads prompts and another that writes answers.
#
# Both have one cause: the blocks of a prompt's [KV cache](glossary.md#KV-cache) stay where they were computed. But
# blocks are bytes. They can be **computed**, **taken** from another engine, or **fetched** from a store. Each way has
# a price.

# %%
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import httpx
import numpy as np
import pandas as pd

from inflight import CourseError, engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import Chunk, Executor, ExecutorConfig, GuaranteedNoEvict, Request
from inflight.lessons import moving_a_cache as lesson
from inflight.notebook import charts, progress, session, widgets
from inflight.triton import telemetry

session.others()

# %% [markdown]
# ## By hand: out of one engine, into another
#
# Two engines of the same build, each with a cache of its own. The first computes a prompt into its blocks 0, 1, 2 …

# %% tags=["nbval-ignore-output"]
engine_dir = engine.cached(fetch())
tokenizer = load_tokenizer(engine_dir)
with progress.wait("Two engines"):
    one, other = engine.load(engine_dir), engine.load(engine_dir)
for each in (one, other):
    each.allocate_kv_cache(num_blocks=32)
block = one.info.build_config.tokens_per_block

# %%
[text] = workload.prompts_of([540], tokenizer)
ids = tokenizer.encode(text)[:500]
table = list(range(-(-len(ids) // block)))
one.forward([Chunk(ids[:-1], num_past=0, blocks=table)])
data = one.read_blocks(table)
print(f"{len(ids)} tokens are {len(table)} blocks, {len(data) / 1e6:.1f} MB:", end=" ")
print(f"{one.block_bytes / block:,.0f} bytes a token")

# %% [markdown]
# These bytes go through a socket into *other* blocks of the second engine, last block first. It has never seen the
# prompt. Both engines then compute its last token.


# %%
def sent(data):
    """The bytes, through a socket."""
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(here.sendall, data)
        received = bytearray()
        while len(received) < len(data):
            received += there.recv(2**20)
        sending.result()
    return bytes(received)


# %%
elsewhere = table[::-1]
other.write_blocks(elsewhere, sent(data))
last = [Chunk(ids[-1:], len(ids) - 1, where) for where in (table, elsewhere)]
ours, theirs = (np.array(m.forward([c])) for m, c in zip((one, other), last))
print("largest difference of", ours.size, "logits:", np.abs(ours - theirs).max())

# %% [markdown]
# The same to the last bit: keys and values depend on the tokens and their positions, not on the blocks that hold them.
# The block table says where they are.
#
# ## Predict

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "A token is 270 million FLOPs, or 46 kB. How many times as long does "
    "computing 480 tokens take as bringing their 22 MB from the other engine?",
    {
        "0.3 times: numbers stay in the processor, bytes do not": 0.3,
        "1.5 times: both go through every layer": 1.5,
        "7 times: a token meets every weight, its bytes are copied": 7,
        "100 times: copying is hardly any work": 100,
    },
)
guess

# %% [markdown]
# ## Three prices
#
# A *store* is a folder with a file for each block. Its files are new, so Linux reads them from memory, not from the
# disk. Taking includes reading the first engine's cache.


# %%
store = tempfile.TemporaryDirectory()


def compute(ids, table):
    other.forward([Chunk(ids, num_past=0, blocks=table)])


def take(ids, table):
    other.write_blocks(table, sent(one.read_blocks(table)))


def fetch_from_store(ids, table):
    for number in table:
        other.write_blocks([number], Path(store.name, str(number)).read_bytes())


# %%
for number in table:
    Path(store.name, str(number)).write_bytes(one.read_blocks([number]))
ways = {"compute": compute, "take": take, "fetch": fetch_from_store}


def timed(way, tokens):
    """Milliseconds until so many tokens are in the cache."""
    begun = time.perf_counter()
    ways[way](ids[:tokens], table[: tokens // block])
    return 1000 * (time.perf_counter() - begun)


# %% tags=["nbval-ignore-output"]
rows = []
for number in progress.over(range(8), "Round"):
    for tokens in (32, 96, 224, 480):
        rows += [(number, tokens, way, timed(way, tokens)) for way in ways]
rows = pd.DataFrame(rows, columns=["round", "tokens", "way", "ms"])
rows = rows[rows["round"] > 0]  # the first is a warm-up
prices = rows.groupby(["tokens", "way"], sort=False)["ms"].median().unstack()
ratio = prices["compute"][480] / prices["take"][480]
print(guess.score(ratio, "the medians of seven rounds, for 480 tokens"))
charts.show(lesson.prices(rows), lesson.prices_summary(rows))
print(lesson.prices_summary(rows))

# %% tags=["remove-cell"]
assert (prices["compute"] > prices["take"]).all()
assert (prices["compute"] > prices["fetch"]).all()

# %% [markdown]
# Here the lines do not cross: even one block is cheaper to bring than to compute. Both prices grow with the tokens, so
# their ratio decides. Computing a token takes two FLOPs for each weight, moving it takes its bytes. With a fast
# processor and a slow network, moving does not pay:


# %%
def gigabits_needed(token_bytes, tokens_per_s):
    # your line: gigabits a second below which sending takes longer than computing
    return 8 * token_bytes * tokens_per_s / 1e9


# %% tags=["nbval-ignore-output"]
here = gigabits_needed(46_080, 1000 * 480 / prices["compute"][480])
print(f"Here: {here:.2f} Gbit/s")
print(f"8B model, 20,000 tokens/s: {gigabits_needed(131_072, 20_000):.0f} Gbit/s")

# %% [markdown]
# The second line supposes a GPU that computes 20,000 prompt tokens a second. There, sending every block at 10 Gbit/s
# takes twice as long as computing it. That is why engines send blocks from GPU to GPU over NVLink or InfiniBand (NIXL,
# Mooncake). An 8-bit cache, 30 % of the bytes here, needs 30 % of the network.
#
# ## A name for a block
#
# A store needs a name for each block. Its own 32 tokens are not enough: keys depend on every token before. They depend
# on the engine, too: its *fingerprint* is a digest of weights, build and block size. A
# [cache salt](glossary.md#Cache-salt) is a tenant's own word.


# %%
def names(ids, fingerprint="W4A8", salt=""):
    name, found = f"{fingerprint} {salt}", []
    for start in range(0, len(ids) - len(ids) % block, block):
        own = ids[start : start + block]
        # your line: a hash of all that this block's keys depend on
        name = sha256(f"{name} {own}".encode()).hexdigest()

        found.append(name)
    return found


# %%
changed = [*ids]
changed[100] += 1
asked = {
    "the same prompt": names(ids),
    "another token at place 100": names(changed),
    "another tenant": names(ids, salt="tenant B"),
    "another build": names(ids, fingerprint="W8A16"),
}
for what, found in asked.items():
    shared = len({*found} & {*names(ids)})
    print(f"{what}: {shared} of {len(found)} blocks found")

# %% [markdown]
# Place 100 lies in the fourth block: three are found, and none after them. This is lesson 05's prefix rule, on disk.
#
# ## A conversation after a restart
#
# The engine does all this with two settings, `enable_kv_cache_reuse` and `kv_store_path` (in vLLM, a connector in
# `--kv-transfer-config`). A user asks, the engine ends, a new one starts, the user goes on.


# %%
def two_turns(**settings):
    """Prompt tokens of the second turn, and how many its engine computes."""
    config = ExecutorConfig(enable_kv_cache_reuse=True, **settings)
    turn, computed = tokenizer.encode(tokenizer.chat(text[:1200])), []
    for _ in range(2):
        with Executor.load(engine_dir, config) as executor:
            answer = executor.generate(Request(turn, 40)).token_ids
            computed.append(sum(s.context_tokens for s in executor.iteration_stats))
            asked = len(turn)
        turn = [*turn, *answer, *tokenizer.encode(" And then?")]
    return asked, computed[1]


# %% tags=["nbval-ignore-output"]
with progress.wait("Four engines, one after the other"):
    total, without = two_turns()
    _, with_store = two_turns(kv_store_path=f"{store.name}/kept")
print(f"{total} tokens; computed without a store {without}, with one {with_store}.")

# %% tags=["remove-cell"]
assert without == total and with_store < total / 2

# %% [markdown]
# Left to compute are the new question and the end of the answer, which filled no block. The answer's full blocks are
# found: they were computed, too.
#
# ## Apart
#
# Now two servers, with a core each, and `vllm-router --vllm-pd-disaggregation` in front. The router sends each
# request twice: to the *prefiller* with `max_tokens` 1, then as it is to the *decoder*. vLLM's engines arrange the
# transfer through `kv_transfer_params`, which the router passes on. Ours need none: the decoder computes the names of
# the prompt's blocks and asks the prefiller's server for them (`kv_peer_url`).

# %% tags=["nbval-ignore-output"]
stack = ExitStack()
with progress.wait("Two servers and a router start"):
    apart = stack.enter_context(lesson.Apart(engine_dir))
document = lesson.load.Request(0, ids[:256], max_tokens=4)
lesson.load.stream(apart.url, document)
for number, name in enumerate(("prefiller", "decoder")):
    log = telemetry.iterations(apart.log(number))
    print(f"{name}: {log['context_tokens'].sum()} prompt tokens computed")

# %% [markdown]
# The decoder computes one block: it needs the last token's logits, and blocks come whole.
#
# Whom does it help? Seven people read their streams while the document comes. Lesson 05 had two ways: one engine
# computes it whole, or in parts alongside the readers' tokens. This is the third. All three have the same two cores. A
# reader's longest gap is read from the log of the engine that writes.


# %%
readers = [tokenizer.encode(f"Story {number}:") for number in range(7)]


class InParts(GuaranteedNoEvict):
    def schedule(self, now):
        return super().schedule(replace(now, max_num_tokens=64))


def longest_gap(log, sent_s):
    """Most milliseconds between two ends of iterations, once it was sent."""
    ends = log["timestamp"] + log["iteration_ms"] / 1000
    return 1000 * ends.diff()[ends > sent_s].max()


# %%
def one_engine(prompt, scheduler=None):
    """A reader's longest gap and the sender's TTFT, in ms."""
    config, begun = ExecutorConfig(enable_chunked_context=True), threading.Semaphore(0)
    with Executor(engine.load(engine_dir), config, scheduler) as executor:
        for ids in readers:
            asked = Request(ids, 200, streaming=True)
            executor.enqueue_request(asked, lambda response: begun.release())
        for _ in range(10 * len(readers)):
            begun.acquire()
        sent_s = time.time()
        executor.generate(Request(prompt, 1))
        ttft_ms = 1000 * (time.time() - sent_s)
        log = pd.DataFrame(executor.iteration_stats)
    return longest_gap(log, sent_s), ttft_ms


# %%
def two_engines(prompt):
    """The same, through the router; the readers ask the decoder."""
    begun, decoder = threading.Semaphore(0), f"{apart.servers[lesson.DECODER]}/v1"
    asked, came_s = replace(document, prompt=prompt), []
    with ThreadPoolExecutor(len(readers)) as pool:
        for number, ids in enumerate(readers):
            story = lesson.load.Request(number, ids, 200)
            pool.submit(lesson.load.stream, decoder, story, begun.release)
        for _ in readers:
            begun.acquire()
        sent_s = time.time()
        lesson.load.stream(apart.url, asked, lambda: came_s.append(time.time()))
    log = telemetry.iterations(apart.log(lesson.DECODER))
    return longest_gap(log, sent_s), 1000 * (came_s[0] - sent_s)


# %% tags=["nbval-ignore-output"]
three = {
    "one engine, whole": one_engine,
    "one engine, in parts": lambda prompt: one_engine(prompt, InParts()),
    "apart": two_engines,
}
found = []
for number in progress.over(range(5), "Round"):
    for place, (name, way) in enumerate(three.items()):
        fresh = [10 + 3 * number + place, *ids[1:256]]  # a beginning that no cache has
        found.append((name, *way(fresh)))
found = pd.DataFrame(found, columns=["engines", "longest gap (ms)", "TTFT (ms)"])

# %% tags=["nbval-ignore-output"]
charts.show(lesson.gaps(found), lesson.gaps_summary(found))
gap = found.groupby("engines")["longest gap (ms)"].median()
print(lesson.gaps_summary(found))
best = gap.idxmin()
print(f"In this run the gap was shortest with {best}: {gap[best]:.0f} ms.")

# %% tags=["remove-cell"]
assert gap["apart"] < gap["one engine, whole"]

# %% [markdown]
# A gap is one iteration. Whole, it computes 263 tokens: the prompt, and one for each reader. In parts it computes 64 at
# most; smaller parts make it shorter. Apart it computes 39, the prompt's last block and the readers', after the decoder
# has read seven blocks into its cache. The second panel is the sender's: in parts, each of five iterations computes the
# readers' tokens, too; apart, the prompt has a core to itself, and then it moves.
#
# On one machine both spare the readers, and chunked context needs no copy and no second set of weights. Apart pays
# where many machines serve: prompts and answers each get machines of their own number and kind, and a limit for TTFT
# and one for ITL can be met separately.
#
# ## Turn the knob
#
# A policy of your own says when blocks are worth fetching (`kv_policy_path`). This one fetches from `least` tokens on.
# Of the prompt's 256 tokens, 224 can be fetched: the last block is always computed. Set 32, 224 and 256.

# %% tags=["nbval-ignore-output"]
least = 32  # then 224, then 256
policy = Path(store.name, "policy.py")
policy.write_text(f"""class Policy:
    def choose(self, tokens, found, prices):
        return "fetch" if found.get("fetch", 0) >= {least} else "compute"
""")
kept = {"enable_kv_cache_reuse": True, "kv_store_path": f"{store.name}/knob{least}"}
for config in (ExecutorConfig(**kept), ExecutorConfig(**kept, kv_policy_path=policy)):
    with Executor.load(engine_dir, config) as executor:
        executor.generate(Request(ids[:256], 1))
    print(executor.iteration_stats[0].context_tokens, "tokens computed")

# %% [markdown]
# ## Elsewhere
#
# | | moves blocks by | keeps them in |
# |---|---|---|
# | [vLLM](https://docs.vllm.ai/en/latest/features/disagg_prefill/) | connectors, named in `--kv-transfer-config`: NIXL, Mooncake, LMCache | CPU memory, or what the connector has |
# | [LMCache](https://docs.lmcache.ai/) | its own servers, beside vLLM and SGLang | CPU memory, disk, Redis, S3 |
# | [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/features/disagg-serving.html) | `trtllm-serve disaggregated`; NIXL, UCX | host memory (`host_cache_size`) |
# | [NVIDIA Dynamo](https://docs.nvidia.com/dynamo/) | NIXL, over vLLM, SGLang and TensorRT-LLM | its block manager: CPU memory, disk |
# | here | HTTP between OpenAI servers (`kv_peer_url`) | a folder (`kv_store_path`) |
#
# In production, watch `vllm:external_prefix_cache_hits` beside `vllm:prefix_cache_hits`: tokens found outside, and in
# memory. `cache_salt` is a field of the request, in vLLM and here.
#
# ## What breaks
#
# **Half of the bytes, or another engine's.** They begin with a fingerprint and end with a checksum. What does not fit
# is refused, and computed: a cache that is nearly right gives answers that are nearly right, and nobody notices.

# %%
half, foreign = data[: len(data) // 2], bytes(32) + data[32:]
for wrong in (half, foreign):
    try:
        other.write_blocks(table, wrong)
    except CourseError as error:
        print(error)

# %% [markdown]
# **The prefiller dies.** vllm-router 0.1.17 then answers with status 500, though the decoder could do it all. A small
# client does better: whatever happens to the first request, it sends the second.


# %%
def ask(prompt, salt):
    """The answer; with a new salt, no cache knows the prompt."""
    body = {"model": "tensorrt_llm", "prompt": prompt, "temperature": 0}
    body["cache_salt"] = salt
    first, second = (f"{server}/v1/completions" for server in apart.servers)
    with suppress(httpx.TransportError):  # the decoder computes what it cannot take
        httpx.post(first, json=body | {"max_tokens": 1}, timeout=60)
    told = httpx.post(second, json=body | {"max_tokens": 8}, timeout=60)
    return told.json()["choices"][0]["text"]


# %% tags=["nbval-ignore-output"]
before = ask(ids[:256], salt="alive")
apart.kill(lesson.PREFILLER)
again = ask(ids[:256], salt="dead")
log = telemetry.iterations(apart.log(lesson.DECODER))
computed = log.loc[log["context_tokens"] > 0, "context_tokens"].tolist()[-2:]
print("the same answer:", again == before)
print(f"The decoder computed {computed[0]} tokens of the prompt, then {computed[1]}.")
stack.close()

# %% [markdown]
# ## Recap
#
# No: whoever has the blocks can write the answer. Whether to move them is a matter of price.
#
# - A request's cache is bytes: so many a token, in whole blocks. They may lie anywhere; the block table finds them.
# - Compare what computing costs with what moving costs. With a fast processor and a slow network, compute.
# - A block's name is a hash of everything that its keys depend on: engine, tenant, all tokens before.
# - Prefill and decode apart keep long prompts away from readers, and let two limits be met separately. On one machine,
#   chunked context spares readers with one set of weights.
# - What does not fit is computed. No answer comes from a cache that is nearly right.
#
# <details><summary>1. A system prompt begins with today's date. What does the store hold after a month?</summary>
#
# Thirty copies of it, of which one is of use: every name depends on the first tokens. Put the date at the end.
# </details>
#
# <details><summary>2. Your service has short prompts and long answers. Do you put prefill apart?</summary>
#
# No. Prompts hold up readers for little, and the second machine would idle. A second replica is worth more.
# </details>
#
# <details><summary>3. A colleague suggests sharing one store among all customers, for more hits. What do you
# say?</summary>
#
# Whoever sends a beginning learns from the time of the first token whether somebody has sent it before. A salt for each
# customer prevents that. The price: a common system prompt is computed and kept once for each customer.
# </details>
#
# Now [do the lab]({lab}): you write the policy, and a seal that lets nothing wrong in.
