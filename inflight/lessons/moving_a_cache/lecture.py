# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **weigh** computing a prompt against sending or fetching its blocks, in bytes and in milliseconds;
# - **run** prefill and decode on two servers, and say whom that helps, and at which limits it pays;
# - **keep** a cache beyond the end of its engine, and let nothing wrong into it.
#
# You need lesson 05: blocks, prefix reuse, chunked context. vLLM, SGLang, TensorRT-LLM, Dynamo and llm-d all do what is
# done here; the router is vLLM's own. Nothing of it is Triton's. Engines and servers take about 3 GB of memory.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Your users complain of two things. While somebody sends a long document, everybody else's text stands still. And after
# a restart, every conversation is slow once: its engine computes it again from the first word. In the design review,
# somebody proposes one machine that reads prompts, another that writes answers, and a disk that remembers both.
#
# All of it rests on one fact: the blocks of a prompt's [KV cache](glossary.md#KV-cache) are bytes. They can be
# **computed**, **taken** from another engine, or **fetched** from a store. Each way has a price.

# %%
import itertools
import random
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
from IPython.display import display

from inflight import CourseError, engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import (
    BuildConfig,
    Chunk,
    Executor,
    ExecutorConfig,
    GuaranteedNoEvict,
    Request,
)
from inflight.lessons import moving_a_cache as lesson
from inflight.lessons.capstone import rehearsal
from inflight.lessons.replicas import load
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


def two(engine_dir):
    """Two engines with room for 32 blocks each."""
    pair = engine.load(engine_dir), engine.load(engine_dir)
    for each in pair:
        each.allocate_kv_cache(num_blocks=32)
    return pair


with progress.wait("Two engines"):
    one, other = two(engine_dir)
block = one.info.build_config.tokens_per_block

# %%
[text] = workload.prompts_of([1060], tokenizer)
ids = tokenizer.encode(text)[:1000]
table = list(range(-(-len(ids) // block)))
one.forward([Chunk(ids[:-1], num_past=0, blocks=table)])
data = one.read_blocks(table)
print(f"{len(ids)} tokens are {len(table)} blocks, {len(data) / 1e6:.1f} MB:", end=" ")
print(f"{one.block_bytes / block:,.0f} bytes a token")

# %% [markdown]
# These bytes go through a socket into *other* blocks of the second engine, last block first. It has never seen the
# prompt. Both engines then compute its last token.


# %%
def send(end, data, gigabits):
    """At so many Gbit/s at most."""
    begun = time.perf_counter()
    for start in range(0, len(data), 2**20):
        end.sendall(data[start : start + 2**20])
        due = begun + 8 * (start + 2**20) / (gigabits * 1e9)
        time.sleep(max(0, due - time.perf_counter()))


def sent(data, gigabits=np.inf):
    """The bytes, as they come out of a socket."""
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, here, data, gigabits)
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
    "A token is 270 million FLOPs, or 46 kB. From how many tokens of a prompt on is "
    "taking its blocks from the other engine faster than computing them here?",
    {
        "32, one block: a block's arithmetic takes longer than its copy": 32,
        "100: below that, a transfer's fixed cost is more than it saves": 100,
        "300: computing grows faster than the prompt, copying does not": 300,
        "more than 1,000: 46 kB take longer to move than a token to compute": 4000,
    },
)
guess

# %% [markdown]
# ## Three prices
#
# A *store* is a folder with a file for each block. Its files are new, so Linux reads them from memory, not from the
# disk. Each way is timed with both precisions that a cache can have here; the second has 30 % of the bytes.


# %% tags=["nbval-ignore-output"]
store = tempfile.TemporaryDirectory()
with progress.wait("Two engines with an 8-bit cache"):
    int8 = BuildConfig(kv_cache_quant_algo="INT8")
    pairs = {"float32": (one, other), "INT8": two(engine.cached(fetch(), int8))}
for cache, (giver, _) in pairs.items():
    giver.forward([Chunk(ids, 0, table)])
    for number in table:
        Path(store.name, f"{cache} {number}").write_bytes(giver.read_blocks([number]))


# %%
def compute(cache, blocks):
    pairs[cache][1].forward([Chunk(ids[: len(blocks) * block], 0, blocks)])


def take(cache, blocks, gigabits=np.inf):
    giver, taker = pairs[cache]
    taker.write_blocks(blocks, sent(giver.read_blocks(blocks), gigabits))


def fetch_from_store(cache, blocks):
    for number in blocks:
        content = Path(store.name, f"{cache} {number}").read_bytes()
        pairs[cache][1].write_blocks([number], content)


# %%
ways = {"compute": compute, "take": take, "fetch": fetch_from_store}


def timed(way, cache, tokens, **options):
    """Milliseconds until so many tokens are in the cache."""
    begun = time.perf_counter()
    ways[way](cache, table[: tokens // block], **options)
    return 1000 * (time.perf_counter() - begun)


def spread(ms):
    return f"{ms.median():.1f} ({ms.min():.1f}–{ms.max():.1f})"


# %% tags=["nbval-ignore-output"]
each = [(c, n, w) for c in pairs for n in (32, 96, 320, 992) for w in ways]
rows = []
for number in progress.over(range(8), "Round"):
    rows += [(number, c, n, w, timed(w, c, n)) for c, n, w in each]
rows = pd.DataFrame(rows, columns=["round", "cache", "tokens", "way", "ms"])
rows = rows[rows["round"] > 0]  # the first is a warm-up
prices = rows.groupby(["cache", "tokens", "way"], sort=False)["ms"]
print("Milliseconds, the median of seven rounds (the least and the most):")
display(prices.agg(spread).unstack())
ms = prices.median().unstack()
faster = ms.loc["float32"].query("take < compute").index.min()
print(guess.score(faster, "the least of the four lengths"))
ratio = ms["compute"] / ms["take"]
for cache in pairs:
    print(
        f"{cache}, 992 tokens: computing takes {ratio[cache, 992]:.0f} times as long."
    )

# %% tags=["remove-cell"]
assert (ms["compute"] > ms["take"]).all()
assert (ms["compute"] > ms["fetch"]).all()

# %% [markdown]
# **The break-even is a speed, not a length.** Both prices grow with the tokens: computing one takes two FLOPs for each
# weight (attention, in long prompts, comes on top), moving one takes its bytes. What can turn the scale is the line:


# %%
def gigabits_needed(token_bytes, tokens_per_s):
    # your line: gigabits a second below which sending takes longer than computing
    return 8 * token_bytes * tokens_per_s / 1e9


# %% [markdown]
# Now the socket sends like a network: at an eighth, a half, twice and eight times the speed that your line gives for
# float32.

# %% tags=["nbval-ignore-output"]
computed = {c: np.median([timed("compute", c, 256) for _ in range(7)]) for c in pairs}
needed = {
    c: gigabits_needed(giver.block_bytes / block, 256e3 / computed[c])
    for c, (giver, _) in pairs.items()
}
speeds = [round(needed["float32"] * times, 2) for times in (1 / 8, 1 / 2, 2, 8)]
rows = []
for _ in progress.over(range(5), "Round"):
    rows += [(c, g, timed("take", c, 256, gigabits=g)) for c in pairs for g in speeds]
rows = pd.DataFrame(rows, columns=["cache", "Gbit/s", "ms"])
charts.show(lesson.lines(rows, computed), lesson.lines_summary(rows, computed))
medians = rows.groupby(["cache", "Gbit/s"])["ms"].median()
for cache, least in needed.items():
    wins = [g for g in speeds if medians[cache, g] < computed[cache]]
    print(f"{cache}: taking is faster at {wins} Gbit/s; formula: above {least:.2f}")

# %% tags=["remove-cell"]
for cache in pairs:
    assert medians[cache, speeds[0]] > computed[cache] > medians[cache, speeds[-1]]

# %% [markdown]
# The formula counts the sending alone; reading and writing the blocks come on top, so the lines cross a little to the
# right of it. An 8-bit cache needs 30 % of the speed. On a GPU all of this is larger:

# %%
tera = 0.4 * 989  # TFLOP/s of an H100 at 40 % of its BF16 peak, a supposition
for model, billions, token_bytes, gpus in (
    ("Llama 3.1 8B", 8.0, 131_072, 1),
    ("Llama 3.1 70B", 70.6, 327_680, 8),
):
    flops = 2e9 * billions
    needed = gigabits_needed(token_bytes, gpus * tera * 1e12 / flops)
    print(f"{model}, {gpus} H100: {needed:.0f} Gbit/s;", end=" ")
    print(f"{flops / token_bytes:,.0f} FLOPs a byte")

# %% [markdown]
# Over 10 Gbit/s Ethernet, sending takes longer than computing; over a 400 Gbit/s network card, far less. That is why
# engines send from GPU to GPU over NVLink or InfiniBand (NIXL, Mooncake). A token here has 5,800 FLOPs a byte: the
# larger the model, the more work a moved byte saves.
#
# ## A name for a block
#
# A store needs a name for each block. Its own 32 tokens are not enough: keys depend on every token before. They depend
# on the engine, too: its *fingerprint* is a digest of weights, build and block size. A
# [cache salt](glossary.md#Cache-salt) is a tenant's own word.


# %%
def names(ids, fingerprint="W4A8", salt=""):
    name, found = repr((fingerprint, salt)), []
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


# %% tags=["nbval-ignore-output"]
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
# the prompt's blocks and asks the prefiller for each (`kv_peer_url`).

# %% tags=["nbval-ignore-output"]
del pairs["INT8"]  # two engines less in memory
stack = ExitStack()
with progress.wait("Two servers and a router start"):
    apart = stack.enter_context(lesson.Apart(engine_dir))
document = load.Request(0, ids[:256], max_tokens=4)
load.stream(apart.url, document)
for number, name in enumerate(("prefiller", "decoder")):
    log = telemetry.iterations(apart.log(number))
    print(f"{name}: {log['context_tokens'].sum()} prompt tokens computed")

# %% [markdown]
# The decoder computes one block: it needs the last token's logits, and blocks come whole.
#
# Whom does it help? Seven people read their streams when the document comes. Lesson 05 had two ways: one engine computes
# it whole, or in parts alongside the readers' tokens. This is the third; all three have the same two cores. The log of
# the engine that writes says what it did meanwhile.


# %%
readers = [tokenizer.encode(f"Story {number}:") for number in range(7)]


def meanwhile(log, sent_s, came_s):
    """What the readers' engine did from when the document was sent."""
    ends = log["timestamp"] + log["iteration_ms"] / 1000
    log = log.assign(gap_ms=1000 * ends.diff())[ends > sent_s]
    tokens = log["context_tokens"] + log["generation_tokens"]
    return {
        "prompt tokens computed": log["context_tokens"].sum(),
        "most tokens in one iteration": tokens.max(),
        "longest gap (ms)": log["gap_ms"].max(),
        "TTFT (ms)": 1000 * (came_s - sent_s),
    }


# %%
class InParts(GuaranteedNoEvict):
    most = 64  # tokens of an iteration

    def schedule(self, now):
        return super().schedule(replace(now, max_num_tokens=self.most))


def one_engine(prompt, scheduler=None):
    config, begun = ExecutorConfig(enable_chunked_context=True), threading.Semaphore(0)
    with Executor(one, config, scheduler) as executor:
        for story in readers:
            asked = Request(story, 200, streaming=True)
            executor.enqueue_request(asked, lambda response: begun.release())
        for _ in range(10 * len(readers)):
            begun.acquire()
        sent_s = time.time()
        executor.generate(Request(prompt, 1))
        return meanwhile(pd.DataFrame(executor.iteration_stats), sent_s, time.time())


# %%
def two_engines(prompt):
    """Through the router; the readers ask the decoder."""
    begun, decoder = threading.Semaphore(0), f"{apart.servers[lesson.DECODER]}/v1"
    came_s = []
    with ThreadPoolExecutor(len(readers)) as pool:
        for number, story in enumerate(readers):
            asked = load.Request(number, story, 200)
            pool.submit(load.stream, decoder, asked, begun.release)
        for _ in readers:
            begun.acquire()
        sent_s, asked = time.time(), replace(document, prompt=prompt)
        load.stream(apart.url, asked, lambda: came_s.append(time.time()))
    return meanwhile(telemetry.iterations(apart.log(lesson.DECODER)), sent_s, *came_s)


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
        found.append({"engines": name} | way(fresh))
found = pd.DataFrame(found)
counts = found.groupby("engines", sort=False).median().iloc[:, :2].astype(int)
counts

# %% tags=["nbval-ignore-output"]
charts.show(lesson.gaps(found), lesson.gaps_summary(found))
print(lesson.gaps_summary(found))
gap = found.groupby("engines")["longest gap (ms)"].median()
print(f"In this run the gap was shortest with {gap.idxmin()}: {gap.min():.0f} ms.")

# %% tags=["remove-cell"]
assert counts.to_numpy().tolist() == [[256, 263], [256, 64], [32, 39]]
assert gap["apart"] < gap["one engine, whole"]

# %% [markdown]
# A gap is one iteration. Whole, the longest computes 263 tokens: the prompt, and one for each reader. In parts none
# computes more than 64, but there are five of them: the readers' engine still computes all 256. **Parts spread the
# prompt over the readers' iterations; apart takes it away from them.**
#
# The second panel is the sender's. In parts, an iteration's fixed cost counts five times. Apart, the prompt has one
# core, and its blocks have to move.
#
# On one machine parts are the better deal: no copy, no second set of weights.
#
# ## When apart pays
#
# Take two H100s and Llama 3.1 8B, on paper: an iteration reads the weights, an answer in it reads its cache, a token of a
# prompt takes its FLOPs. Documents of 3,000 tokens come at a rate, and each gets an answer of 150. The limits are a second
# for TTFT and 8 ms for TPOT, of which an answer alone takes 4.9. Lesson 09's simulator plays two machines that do both, or
# one for prompts and one for answers:

# %%
token_bytes = 131_072


class Overlapped(rehearsal.Prices):
    """Of a machine that reads and computes at the same time."""

    def of(self, chunks):
        computing = [len(one.token_ids) for one in chunks if one.is_context]
        reading_ms = self.iteration_ms + (len(chunks) - len(computing)) * self.answer_ms
        return max(reading_ms, sum(computing) * self.prompt_token_ms)


weights_ms, cache_ms = 16e9 / 3.35e9, 3000 * token_bytes / 3.35e9  # at 3.35 TB/s
prices = rehearsal.Prices(weights_ms, cache_ms, 16e9 / (tera * 1e9))
config = ExecutorConfig(enable_chunked_context=True, max_tokens_in_paged_kv_cache=2**18)


def machine(asked, part=4096):
    """What one machine's requests see, with so many tokens of prompts at most in an iteration."""
    build = BuildConfig(max_input_len=4000, max_seq_len=4096, max_num_tokens=part)
    return rehearsal.play(asked, replace(build, max_batch_size=64), config, prices)


def alike(asked, part=4096):
    """Two machines that do both, each for every other document."""
    return pd.concat(machine(asked[n::2], part) for n in (0, 1))


# %%
def divided(asked, gigabits=400):
    """One machine for prompts, one for answers, which computes each last block."""
    first = machine([replace(one, max_tokens=1) for one in asked])
    line_s, sent_s = 8 * 3000 * token_bytes / (gigabits * 1e9), [0]
    for first_s in first["first_s"]:
        # your line: when this document's blocks are at the second machine, in seconds
        sent_s.append(max(sent_s[-1], first_s) + line_s)

    block_ids = [1] * block
    later = [
        replace(one, input_ids=block_ids, at_s=s) for one, s in zip(asked, sent_s[1:])
    ]
    rows = machine(later)
    before_ms = 1000 * (rows["due_s"] - [one.at_s for one in asked])
    return rows.assign(ttft_ms=rows["ttft_ms"] + before_ms)


# %%
limits, rows = pd.Series({"ttft_ms": 1000, "tpot_ms": 8}), []
ways = {"alike, whole": alike, "alike, parts of 256": lambda asked: alike(asked, 256)}
ways["apart"] = divided
for rate in range(2, 11, 2):
    draw = random.Random(0)
    at_s = itertools.accumulate(draw.expovariate(rate) for _ in range(200))
    asked = [rehearsal.TokenRequest([1] * 3000, 150, s) for s in at_s]
    rows.append({"documents a second": rate})
    for name, way in ways.items():
        keeps = (way(asked)[limits.index] <= limits).all(axis=1)
        rows[-1][f"{name} (%)"] = 100 * keeps.mean()
print("Of 100 requests, so many keep both limits:")
charts.table(pd.DataFrame(rows), decimals=0)

# %% [markdown]
# If nine of ten are to keep both limits, two machines that do both carry 4 documents a second, in parts or not. Apart
# they carry 6: no answer meets a prompt, and TTFT breaks only when the machine for prompts is full. That rate is called
# [goodput](glossary.md#Goodput). Nobody computes less: by vLLM's documentation, disaggregated prefill "DOES NOT improve
# throughput". These prices add reading and computing: a part of 256 takes 15 ms. A GPU does much of both at once.
#
# ## Turn the knob
#
# 1. Let TPOT be 20 ms: who keeps the limits at 8 documents a second?
# 2. Back at 8 ms, let the line have 10 Gbit/s: `lambda asked: divided(asked, 10)`.
# 3. Back at 400 Gbit/s, let the machines read and compute at once: `Overlapped(…)` in place of `rehearsal.Prices(…)`.
#
# <details><summary>What to see</summary>
#
# 1. Two that do both: their prompts use both machines, and apart only one.
# 2. Apart carries 2: the line carries three documents a second, and blocks wait for it.
# 3. In parts they carry 8, whole still 4, apart 6: a part of 256 takes 10 ms, and costs the answers little
#    ([Sarathi-Serve](https://arxiv.org/abs/2403.02310)). Apart pays for what does not overlap.
#
# </details>
#
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
# Dynamo can leave a prompt with the decoder, where it is short or its beginning is there already
# (`--router-conditional-disagg`): the choice that you write in the lab. In production, watch
# `vllm:external_prefix_cache_hits` beside `vllm:prefix_cache_hits`: tokens found outside, and in memory. `cache_salt`
# is a field of the request, in vLLM and here.
#
# [Sources, and what changes quickly](../assets/elsewhere.md#13-Moving-a-cache)
#
# ## What breaks
#
# **Half of the bytes, or another engine's.** They begin with a fingerprint and end with a checksum: against damage, not
# forgery. What does not fit is computed: a cache that is nearly right gives nearly right answers, and nobody notices.

# %%
half, foreign = data[: len(data) // 2], bytes(32) + data[32:]
for wrong in (half, foreign):
    try:
        other.write_blocks(table, wrong)
    except CourseError as error:
        print(error)

# %% [markdown]
# **The prefiller dies.** vllm-router 0.1.17 then answers with status 500, though the decoder could do it all. (By
# default vLLM's decoder would refuse, too.) A small client does better: whatever happens to the first request, it sends
# the second.


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
# - The break-even is a speed, not a length: bytes a token times tokens a second. On a slower line, compute.
# - A block's name is a hash of everything that its keys depend on: engine, tenant, all tokens before.
# - Parts spread a prompt over the readers' iterations, apart takes it away from them. On one machine parts are the better
#   deal; on several, apart carries more where TPOT is tight, and less where it is loose.
# - What does not fit is computed: no answer comes from a damaged block.
#
# <details><summary>1. A system prompt begins with today's date. What does the store hold after a month?</summary>
#
# Thirty copies of it, of which one is of use: every name depends on the first tokens. Put the date at the end.
# </details>
#
# <details><summary>2. Your service has short prompts and long answers. Do you put prefill apart?</summary>
#
# No. Short prompts hardly hold up readers, and the second machine would idle. A second replica is worth more.
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
