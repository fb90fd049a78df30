# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **rehearse** a deployment without a model, and say by how much a rehearsal is wrong;
# - **choose** settings by what a million tokens in time cost, and not by tokens a second;
# - **decide** what happens when twice as many requests come, and how many machines a peak takes.
#
# **What you will use elsewhere:** a contract in percentiles, goodput, a front of cost against service, and a forecast that
# carries its error are the same for vLLM, TensorRT-LLM and every other server. *Elsewhere* has their names.
#
# You need lessons 01, 04 and 05: quality of a build, the price of an iteration, the blocks of the KV cache.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A railway company wants a chat service for travellers on the platform. You are asked two things. *Can we run it on machines
# like this one? What does it cost?* What you will sign is a contract:
#
# > At a given rate, 95 % of all requests are **in time**: the first token comes within a limit
# > ([TTFT](glossary.md#TTFT)), and the answer's [TPOT](glossary.md#TPOT) stays within another. The KV cache
# > has 64 MiB. Perplexity is at most 1.02 times the checkpoint's. And a million tokens of answers in time (their prompts,
# > nine times as many, are in that price) cost no more than one machine does at that rate.
#
# If 95 % are in time, the P95 of TTFT and that of TPOT are within their limits, too. Not the other way round: each
# limit may be broken by another 5 %. A request that gets no answer is not in time. The last clause closes the easy way
# out: more machines. Requests in time per second are called *goodput*.

# %%
import inspect
import json
import math
import tempfile
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.express as px

from inflight import CourseError, engine
from inflight.bench import quality, trace_run
from inflight.checkpoint import GgufFile, fetch
from inflight.engine import BlockManager, BuildConfig, Chunk, Sequence, Sequences
from inflight.lessons import capstone as lesson
from inflight.lessons.capstone import service
from inflight.notebook import charts, palette, progress, session, told_apart, widgets
from inflight.triton import Client, Server, repository

session.others()

# %% [markdown]
# ## Predict
#
# You may turn one knob of the default deployment. Commit yourself:

# %%
knobs = {
    "more slots": {"max_batch_size": 16},
    "8-bit cache": {"kv_cache_quant_algo": "INT8"},
    "reuse": {"enable_kv_cache_reuse": True},
    "pauses": {"batch_scheduler_policy": "max_utilization"},
}
guess = widgets.predict(
    "Which knob alone brings the most requests in time?",
    [f"{name}: {next(iter(setting))}" for name, setting in knobs.items()],
)
guess

# %% [markdown]
# ## What is asked
#
# The traffic decides everything that follows, so it is all here. Of ten requests, seven are short questions, and three
# travellers paste a notice. Lengths are uniform between two numbers. Gaps between arrivals are drawn from a gamma
# distribution whose coefficient of variation `cv` is 1.5: independent arrivals have 1, so these come in bursts.

# %%
traffic = service.LECTURE
for kind in traffic.kinds:
    print(
        f"{kind.share:.0%} {kind.name}: {kind.words} words, {kind.answer} tokens back"
    )
prompt, shared, answer = traffic.means
print(f"A prompt has {prompt:.0f} tokens on average.", end=" ")
print(f"{shared} of them are the same for all;")
print(f"an answer has {answer:.0f}. The gaps have a cv of {traffic.cv}.")

# %%
hundred = traffic.requests(rate=1.0, seed=1, number=100)
rows = [
    (one.at_s, tokens, part)
    for one in hundred
    for part, tokens in (
        ("system prompt", shared),
        ("own prompt", one.input_len - shared),
        ("answer", one.max_tokens),
    )
]
table = pd.DataFrame(rows, columns=["arrives (s)", "tokens", "part"])

# %%
colours = [palette.WASTE, palette.PREFILL, palette.DECODE]
figure = px.bar(
    table, x="arrives (s)", y="tokens", color="part", color_discrete_sequence=colours
)
figure.update_traces(width=0.25, marker_line_width=0)
figure.update_layout(meta={"device": ""}, legend_title="")
gaps = np.diff([one.at_s for one in hundred])
summary = (
    "A hundred requests, drawn at one a second on average, each as a bar of its tokens."
    f" Half of the gaps are shorter than {np.median(gaps):.2f} s; "
    f"the longest is {gaps.max():.1f} s."
)
charts.show(figure, summary)
print(summary)

# %% [markdown]
# ## What this machine charges
#
# An iteration costs something by itself, and something for each answer and each token of a prompt in it. Measure the three
# prices as in lesson 04: 1, 2, 4 and 8 requests side by side, streamed, from the start of an iteration to that of the next.

# %% tags=["nbval-ignore-output"]
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    service.engine_of({}),
    decoupled_mode=True,
    iteration_log_path=log_path,
)
with progress.wait("The server starts"):
    server = Server(repo).start()
client = Client(server.grpc_url, timeout_s=600)

# %% tags=["nbval-ignore-output"]
alike = [replace(one, at_s=0.0, max_tokens=24) for one in hundred]
trace_run.run(client, alike[:2], log_path, stream=True)  # the first are the slowest
logs = []
for number in progress.over((1, 2, 4, 8), "Requests side by side"):
    log = trace_run.run(client, alike[8 : 8 + number], log_path, stream=True).log
    logs.append(log.assign(ms=1000 * log["timestamp"].diff().shift(-1)).dropna())

# %% tags=["nbval-ignore-output"]
log = pd.concat(logs)
has_prompt = log["context_tokens"] > 0
by_number = log[~has_prompt].groupby("scheduled")["ms"].mean()[[1, 2, 4, 8]]
answer_ms, iteration_ms = np.polyfit(by_number.index, by_number, 1)
first = log[has_prompt]
beyond_ms = first["ms"] - iteration_ms - answer_ms * first["generation_tokens"]
prompt_token_ms = beyond_ms.sum() / first["context_tokens"].sum()
prices = lesson.Prices(iteration_ms, answer_ms, prompt_token_ms)
print(f"An iteration takes {prices.iteration_ms:.1f} ms by itself,", end=" ")
print(f"{prices.answer_ms:.2f} ms more for each answer in it,")
print(f"and {prices.prompt_token_ms:.2f} ms more for each token of a prompt.")

# %% [markdown]
# ## The contract on this machine
#
# A laptop and a GPU cannot have the same limits. So rate and limits are written in the machine's own units of work. A
# mean request that finds its system prompt computed takes `request_ms` of the engine's time (where four answers share
# an iteration). By these prices the rate keeps the engine busy for 60 % of its time with such requests; times the bias,
# which is measured below, this is its real load. A first token may take as long as six such requests; a TPOT may be
# three full iterations. The machine's price is assumed: it is the contract's `per_hour`.

# %%
print(inspect.getsource(service.Contract.at))
print(f"SHARING is {service.SHARING}, SLOTS is {service.SLOTS}.")

# %% tags=["nbval-ignore-output"]
contract = service.Contract.at(prices, traffic)
print(contract)
decode_ms = answer * (prices.iteration_ms / service.SHARING + prices.answer_ms)
reused_ms, whole_ms = (
    tokens * prices.prompt_token_ms + decode_ms for tokens in (prompt - shared, prompt)
)
print(f"Without reuse a mean request is {whole_ms / reused_ms:.1f} times the work.")

# %% [markdown]
# ## Rehearse
#
# A rehearsal is the engine without its model. The engine's own scheduler and KV cache decide who runs, and a clock adds up
# prices. First the price of an iteration; a *chunk* is what one request computes in it.


# %%
def price_ms(chunks, prices):
    """What an iteration with these chunks costs."""
    tokens = sum(len(chunk.token_ids) for chunk in chunks if chunk.is_context)
    answers = sum(not chunk.is_context for chunk in chunks)
    # your line: milliseconds, from the three fields of `prices`
    return (
        prices.iteration_ms
        + answers * prices.answer_ms
        + tokens * prices.prompt_token_ms
    )


# %% [markdown]
# Then who comes and goes between two iterations. A request that finds the queue full is refused; one whose time is over is
# ended. (`max_queue_size` and `allotted_time_ms`; 0 is no limit.)


# %%
def come_and_go(coming, sequences, now_s, queue, allotted_s):
    """Let those in who are due, and out whose time is over."""
    while coming and coming[0][1].at_s <= now_s:
        number, one = coming.popleft()
        if not queue or len(sequences.waiting) < queue:
            asked = engine.Request(one.input_ids, one.max_tokens)
            sequences.add(Sequence(number, asked, ends_by_s=one.at_s + allotted_s))
    for sequence in list(sequences):
        if now_s > sequence.ends_by_s:
            sequences.remove(sequence)


# %% [markdown]
# And the loop. Compare it with `Executor.step` in lesson 04: only `forward` is missing.


# %%
def play(requests, build, config, prices, allotted_s=math.inf):
    """When the tokens of each request come, in seconds."""
    blocks = BlockManager(config.num_blocks(build), build.tokens_per_block)
    options = config.enable_chunked_context, config.enable_kv_cache_reuse
    sequences, scheduler = Sequences(blocks, build, *options), engine.built_in(config)
    coming, now_s, tokens_s = deque(enumerate(requests)), 0.0, [[] for _ in requests]
    while coming or len(sequences):
        now_s = now_s if len(sequences) else max(now_s, coming[0][1].at_s)
        come_and_go(coming, sequences, now_s, config.max_queue_size, allotted_s)
        if len(sequences):
            chunks = sequences.carry_out(scheduler.schedule(sequences.now()))
            now_s += price_ms(chunks.values(), prices) / 1000
            give_tokens(chunks, sequences, tokens_s, now_s)
    return tokens_s


# %%
def give_tokens(chunks, sequences, tokens_s, now_s):
    """One to each whose prompt is computed; who has the last of an answer leaves."""
    for sequence, chunk in chunks.items():
        sequences.computed(sequence, len(chunk.token_ids))
        if not sequence.num_pending:
            tokens_s[sequence.id].append(now_s)
            if sequence.add(0) == "length":
                sequences.remove(sequence)


# %% [markdown]
# The times of the tokens give a row for each request, and the only judgement that counts: was it in time?


# %%
def as_rows(asked, times):
    """A row for each request."""
    rows = []
    for one, tokens_s in zip(asked, times):
        done = len(tokens_s) == one.max_tokens
        first, last = (tokens_s[0], tokens_s[-1]) if done else (math.nan, math.nan)
        tpot_ms = 1000 * (last - first) / (one.max_tokens - 1)
        error, ttft_ms = "" if done else "no answer", 1000 * (first - one.at_s)
        rows.append((one.at_s, ttft_ms, tpot_ms, len(tokens_s), last, error))
    columns = ["due_s", "ttft_ms", "tpot_ms", "output_len", "last_s", "error"]
    return pd.DataFrame(rows, columns=columns)


# %%
def rehearse(settings, load=1, seeds=range(1, 6), contract=contract, number=100):
    """A run of `number` requests for each seed, at `load` times the contract's rate."""
    build, config, allotted_ms = service.configs(settings, contract)
    config.check_prompts_fit(build)
    allotted_s, runs = allotted_ms / 1000 or math.inf, []
    for seed in seeds:
        texts = contract.traffic.requests(load * contract.rate, seed, number)
        asked = service.with_ids(texts)
        times = play(asked, build, config, contract.prices, allotted_s)
        runs.append(as_rows(asked, times).assign(seed=seed))
    return pd.concat(runs, ignore_index=True)


# %%
def in_time(rows, contract=contract):
    # your line: which rows have an answer, and both times within the contract's limits
    return (
        (rows["error"] == "")
        & (rows["ttft_ms"] <= contract.ttft_ms)
        & (rows["tpot_ms"] <= contract.tpot_ms)
    )


# %% [markdown]
# Five seeds are five times a hundred requests: other texts, at other times. Each knob alone, then the best of them with each
# of the others:

# %% tags=["nbval-ignore-output"]
with progress.wait("Rehearsals"):
    alone = {"default": {}} | knobs
    shares = {name: in_time(rehearse(one)).mean() for name, one in alone.items()}
    best = max(knobs, key=shares.get)
    pairs = {f"{best}, {name}": knobs[best] | one for name, one in knobs.items()}
    del pairs[f"{best}, {best}"]
    shares |= {name: in_time(rehearse(one)).mean() for name, one in pairs.items()}
for name, share in shares.items():
    print(f"{name:22} {share:6.1%} in time")
print(guess.score(best, "the share in time of 500 rehearsed requests"))

# %% [markdown]
# ## Believe it?
#
# Before anybody signs on a rehearsal, measure: the best pair, and the best single knob. Fifty requests go to the server
# with each: new ones, since the settings were chosen on the others, with a hard burst, since an easy one could not
# contradict a rehearsal.

# %% tags=["nbval-ignore-output"]
chosen = max(pairs, key=shares.get)
deployments = {best: knobs[best], chosen: pairs[chosen]}
fifty = traffic.requests(contract.rate, seed=13, number=50)
logs, measured = {}, {}
for name, one in deployments.items():
    with progress.wait(f"Fifty requests, with {name}"):
        service.bring_in(server, one, contract)
        run = trace_run.run(client, fifty, log_path, stream=True)
    logs[name] = run.log
    measured[name] = run.requests

# %% [markdown]
# The iteration logs say where a difference comes from. What these iterations took, over what the prices make of them,
# is the bias of the clock:


# %%
def took_and_priced(log):
    """Of each iteration, in milliseconds."""
    log = log.assign(took=1000 * log["timestamp"].diff().shift(-1))
    log = log[log["active"] > log["finished"]].dropna()  # not idle
    answers, tokens = log["generation_tokens"], log["context_tokens"]
    priced = prices.iteration_ms + answers * prices.answer_ms
    priced += tokens * prices.prompt_token_ms
    return pd.DataFrame({"took": log["took"], "priced": priced})


# %% tags=["nbval-ignore-output"]
each = {name: took_and_priced(log) for name, log in logs.items()}
for name, rows in each.items():
    parts = rows.groupby(4 * np.arange(len(rows)) // len(rows)).sum()
    parts = ", ".join(f"{part:.2f}" for part in parts["took"] / parts["priced"])
    print(f"{name}, its four quarters one after another: {parts}")
both = pd.concat(each.values())
bias = both["took"].sum() / both["priced"].sum()
print(f"All {len(both)} iterations took {bias:.2f} times what the prices say.")

# %% [markdown]
# If the quarters differ, so may tomorrow; below 1 the machine may have been busier when you took its prices, or the
# straight line is too dear for that mix. A forecast is a rehearsal with the bias in its prices. That it holds for
# deployments that were not measured is supposed.


# %%
def forecast(settings, load=1, seeds=range(6, 11), contract=contract, number=100):
    """Rehearsed rows that carry the bias."""
    # your line: the same contract, with prices that are `bias` times as high
    as_measured = replace(contract, prices=contract.prices.times(bias))
    return rehearse(settings, load, seeds, as_measured, number)


# %% tags=["nbval-ignore-output"]
rows = {}
for name, one in deployments.items():
    rows[name, "measured"] = measured[name]
    rows[name, "rehearsed"] = rehearse(one, seeds=[13], number=50)
    rows[name, "with its bias"] = forecast(one, seeds=[13], number=50)
times = pd.DataFrame(
    {
        f"P{100 * share:.0f} of {what[:4].upper()} (ms)": {
            way: each[what].quantile(share) for way, each in rows.items()
        }
        for what in ("ttft_ms", "tpot_ms")
        for share in (0.5, 0.95)
    }
)
times.round().astype(int)

# %% tags=["remove-cell"]
rehearsed = rehearse(deployments[chosen], seeds=[1])
package = service.rehearse(deployments[chosen], contract, seeds=[1])
assert np.allclose(package["ttft_ms"], rehearsed["ttft_ms"])
assert np.allclose(package["tpot_ms"], rehearsed["tpot_ms"])
assert (in_time(rehearsed) == service.in_time(rehearsed, contract)).all()

# %% [markdown]
# And how many were in time? Wilson's interval has the shares of all requests that a count does not rule out, with 95 %
# confidence, if each is late by itself. These are late together, in bursts, so more is open than it says.


# %%
def left_open(good, number):
    share, part = good / number, 1.96**2 / number
    middle = share + part / 2
    half = 1.96 * math.sqrt((share * (1 - share) + part / 4) / number)
    return (middle - half) / (1 + part), (middle + half) / (1 + part)


# %% tags=["nbval-ignore-output"]
for name in deployments:
    good = in_time(measured[name]).sum()
    low, high = left_open(good, 50)
    told = in_time(rows[name, "with its bias"]).mean()
    verdict = "within that" if low <= told <= high else "outside: it is wrong here"
    print(f"{name}: {good} of 50 in time, {low:.0%} to {high:.0%} left open;")
    print(f"    the forecast for the same requests has {told:.0%}, {verdict}")

# %% [markdown]
# This seed was picked for its burst, so compare a run only with the forecast for the same requests. A forecast within
# what the measurement leaves open has not been proved right, and its bias was taken from these very runs; the hundred
# requests at the end are an independent test. It leaves out the messages between processes and the client on the same
# cores, and supposes one pace: a machine that is slow for five seconds has a longer queue than one that is a little
# slower all the time. Use it to find what is worth measuring.
#
# ## What is short?
#
# Take one limit away at a time. The one that helps is what was short:

# %% tags=["nbval-ignore-output"]
limits = {
    "as it is": ({}, contract),
    "twice the slots": ({"max_batch_size": 16}, contract),
    "four times the memory": ({}, replace(contract, memory_mib=256)),
    "a machine twice as fast": ({}, replace(contract, prices=prices.times(0.5))),
}
deployments = {"default": {}} | deployments
short = {name: {} for name in deployments}
with progress.wait("Rehearsals"):
    for name, one in deployments.items():
        for limit, (more, other) in limits.items():
            played = forecast(one | more, contract=other)
            short[name][limit] = 100 * in_time(played).mean()
pd.DataFrame(short).round(1).rename_axis("% in time")

# %% tags=["nbval-ignore-output"]
for name, column in short.items():
    gains = {limit: share - column["as it is"] for limit, share in column.items()}
    top = max(gains.values())
    helps = " or ".join(limit for limit, gain in gains.items() if gain >= top - 2)
    told = f"{helps} helps most, by {top:.0f} points"
    if top <= 2:
        told = (
            "nothing is short" if column["as it is"] > 98 else "nothing is told apart"
        )
    print(f"{name}: {told}")

# %% [markdown]
# What is within two points is not told apart: a rule of thumb for settings that had the same requests. Other requests
# move all of them, and further: compare *reuse* here, as it is, with its share in the first rehearsal, which had other
# seeds, and prices without the bias. Where rows meet at 100 %, a higher load would rank them. Why are slots no help
# while the cache is small? A request is let in when blocks for its prompt and its longest answer can be promised
# (lesson 05). The blocks of the system prompt are in that promise for each request anew, although reuse keeps them only
# once; so reuse saves work here, and no promised memory. (vLLM counts shared blocks once and promises no answer: for
# its users *reuse, pauses* is the nearer row.)

# %%
for name, size in service.BYTES_PER_TOKEN.items():
    tokens = contract.memory_mib * service.MIB / size
    print(f"{contract.memory_mib} MiB of {size:,} bytes a token ({name or '32 bits'}):")
    print(f"    {tokens:,.0f} tokens, {tokens / (prompt + answer):.1f} mean requests")

# %% [markdown]
# Some knobs act like such machines. An 8-bit cache is four times the memory of a 32-bit one (twice in vLLM and
# TensorRT-LLM, whose caches usually have 16 bits). Reuse computes the system prompt once: less work. At a higher load
# memory is not the next to be short: with 8 bits the eight slots are full before it is. Do not carry these verdicts to
# a GPU: a token of a prompt costs less beside an iteration there, but tens of answers share that iteration, so prompts
# can still be most of the work. Rehearse with that machine's prices.
#
# ## See
#
# How much load does a deployment bear, and what does it cost? Add one of your own: change the first line, and run this
# cell and the next ones again. The knobs are those of `service.KNOBS` (`scheduler_path` only in
# `service.rehearse`; above eight slots the prices are extrapolated).

# %% tags=["nbval-ignore-output"]
yours = pairs[chosen] | {"max_queue_size": 6}  # change this


def cost_of(played):
    """Euros for a million tokens of answers in time."""
    runs = played.groupby("seed")
    seconds = (runs["last_s"].max() - runs["due_s"].min()).sum()
    tokens_per_s = played.loc[in_time(played), "output_len"].sum() / seconds
    return contract.per_hour / (3600 * tokens_per_s) * 1e6 if tokens_per_s else math.inf


# %% tags=["nbval-ignore-output"]
deployments["yours"] = yours
rows = []
with progress.wait("Rehearsals"):
    for name, one in deployments.items():
        for load in (0.4, 0.7, 0.85, 1, 1.15, 1.3, 1.6, 2):
            played = forecast(one, load)
            share, rate = in_time(played).mean(), load * contract.rate
            rows.append((name, load, rate, share, cost_of(played)))
points = pd.DataFrame(rows, columns=["setting", "load", "rate", "share", "cost"])


# %% tags=["nbval-ignore-output"]
def bears(name):
    """The highest rate at which 95 % are in time, between two points of the line."""
    line = points[points["setting"] == name]
    falling = -line["share"].cummin()
    return float(np.interp(-service.SHARE, falling, line["rate"], left=0))


most = {name: bears(name) for name in deployments}
summary = "95 % are in time up to so many requests a second: " + "; ".join(
    f"{name} {rate:.2f}" if rate else f"{name} at no load that was tried"
    for name, rate in most.items()
)
charts.show(lesson.service_against_load(points, contract), summary)
print(f"{summary}. We tried up to {points['rate'].max():.2f}.")
print(f"The contract asks for {contract.rate:.2f}.")

# %% [markdown]
# The shaded corner is the contract: this rate or more, and 95 % in time. This is an open loop: requests come whether or
# not others are answered. Lines within a point or two of each other are not told apart.
#
# ## Explain
#
# Could this have been worked out on paper? From mean lengths, at prices that carry the bias, with the system prompt computed
# once and all slots full:

# %% tags=["nbval-ignore-output"]
real = prices.times(bias)
request_ms = (prompt - shared) * real.prompt_token_ms
slots = service.configs(pairs[chosen])[0].max_batch_size
request_ms += answer * (real.iteration_ms / slots + real.answer_ms)
on_paper = 1000 / request_ms
print(f"On paper at most {on_paper:.2f} requests a second; ", end="")
print(
    f"{chosen} bears {most[chosen]:.2f}, {most[chosen] / on_paper:.2f} times as many."
)

# %% [markdown]
# What the means leave out is time. Requests come in bursts, and a slot that is free now does not help those who came in
# the burst before. And runs of a hundred requests end before an overload has built its whole queue, which flatters the
# rate that is kept.
#
# ## What it costs
#
# A machine costs the same, busy or idle. So more load makes a token cheaper, until requests are late: a late token
# costs as much as one in time, and earns nothing. You choose the load of a machine by how many machines share the
# traffic.
#
# Each deployment at each load is a point. A point is *beaten* if another costs no more and
# has as many in time, and is better in one of the two. What remains is the *Pareto front*.


# %%
def beaten(share, cost, points):
    """Whether some point beats one with this share and cost."""
    no_worse = (points["cost"] <= cost) & (points["share"] >= share)
    # your line: is one of those better in one of the two?
    return bool(
        (no_worse & ((points["cost"] < cost) | (points["share"] > share))).any()
    )


# %% tags=["nbval-ignore-output"]
points["on_front"] = [
    not beaten(one.share, one.cost, points) for one in points.itertuples()
]
summary = lesson.front_in_words(points, contract)
charts.show(lesson.cost_against_service(points, contract), summary)

# %% tags=["nbval-ignore-output"]
kept = points[(points["share"] >= service.SHARE) & (points["rate"] >= contract.rate)]
kept = kept[kept["cost"] <= contract.cost]
if kept.empty:
    print("Nothing keeps the contract; we go on with the best pair, at its rate.")
    kept = points[(points["setting"] == chosen) & (points["load"] == 1)]
deal = kept.sort_values("cost").iloc[0]
settings = deployments[deal.setting]
print(f"{sum(points['on_front'])} of {len(points)} points are on the front. To sign:")
print(f"{deal.setting} at {deal.rate:.2f} requests a second, {settings}.")
print(f"Forecast: {deal.share:.1%} in time, €{deal.cost:.2f} for a million tokens.")

# %% [markdown]
# The picture leaves out shares below 48 %. At the contract's rate, one machine's cost and share in time are one clause
# written twice. Cost decides over the load that each machine gets: the cheapest point in the corner is what to sign,
# once it is measured. It was chosen for coming out well in these runs, so expect a little less, and leave it room:
# settings within a point or two of each other are equally good, and other requests may move all of them by more. A
# hundred new requests:

# %% tags=["nbval-ignore-output"]
with progress.wait(f"A hundred requests, with {deal.setting}"):
    service.bring_in(server, settings, contract)
    final = service.measure(server, traffic.requests(deal.rate, seed=11))
good = in_time(final).sum()
low, high = left_open(good, len(final))
print(f"Measured: {good} of 100 in time; {low:.1%} to {high:.1%} is left open.")

# %% [markdown]
# Does a benchmark from elsewhere agree? AIPerf was once run between two runs of the course's client, under the contract
# of a slower hour: 0.94 requests a second, a TTFT of 3,818 ms and a TPOT of 235 ms ([command and
# machine](../assets/results/README.md)):

# %%
other = json.loads(service.AIPERF_RUN.read_text())
counts = {
    who: (run["in_time"], run["seconds"], run["tpot_ms"]["p50"])
    for who, run in zip(("before", "after"), other["course"])
}
found = other["aiperf"]
counts["AIPerf"] = (
    found["good_request_count"]["avg"],
    found["benchmark_duration"]["avg"],
    found["inter_token_latency"]["p50"],
)
for who, (good_ones, seconds, tpot_ms) in counts.items():
    per_s = f"{good_ones / seconds:.2f} a second"
    told = f"{good_ones:3.0f} of 100 in time, {per_s}, P50 of TPOT {tpot_ms:.0f} ms"
    print(f"{who:6} {told}")

# %% [markdown]
# It does not agree. A hundred gaps with a cv of 1.5 miss the rate that was asked for, so the two had different loads;
# but with the smaller one AIPerf's TPOT is about three times as long. AIPerf's processes and the server of OpenAI's
# protocol share the two cores with the engine. That may be why; one run cannot tell it from a neighbour. A contract
# names the client that judges it.
#
# ## Is it still the same model?
#
# Cheaper settings may write worse. The contract bounds [perplexity](glossary.md#Perplexity), so three engines read a
# text: the checkpoint's weights written out as numbers of 16 bits, which rounds them slightly; the engine chosen above; and
# lab 01's control, whose 4-bit weights have lost their lowest bit.

# %% tags=["nbval-ignore-output"]
file = np.fromfile(fetch().path, np.uint8)
for tensor in GgufFile(fetch().path).tensors.values():
    if tensor.tensor_type.name == "Q4_1":
        blocks = file[tensor.data_offset :][: tensor.n_bytes].reshape(-1, 20)
        # clear the lowest bit of both 4-bit numbers in a byte
        blocks[:, 4:] &= 0b1110_1110
        # and add half a step to the offset, so that the mean stays
        scales = blocks[:, :4].copy().view(np.float16)
        scales[:, 1] += scales[:, 0] / 2
        blocks[:, :4] = scales.view(np.uint8)
coarse = Path(workdir.name) / "coarse.gguf"
file.tofile(coarse)

# %% tags=["nbval-ignore-output"]
short_texts = BuildConfig(max_input_len=128, max_seq_len=160)
folders = {deal.setting: service.engine_of(settings)}
with progress.wait("Two engines are built"):
    whole = replace(short_texts, quant_algo=None)
    folders["checkpoint"] = engine.cached(fetch(), whole)
    coarse_dir = Path(workdir.name) / "coarse"
    folders["3 bits"] = engine.build(fetch(coarse), short_texts, coarse_dir)


# %%
windows = np.array(service.tokenizer().encode(quality.prose())[: 8 * 128])
windows = windows.reshape(8, 128)


def perplexities(folder):
    """Of each window, read in one iteration with logits after every token."""
    model, found = engine.load(folder), []
    model.allocate_kv_cache(4)
    for window in windows:
        chunk = Chunk(window.tolist(), 0, list(range(4)), num_logits=128)
        logits = np.array(model.forward([chunk]))[:-1]
        log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        found.append(float(np.exp(-log_p[range(127), window[1:]].mean())))
    return found


# %% tags=["nbval-ignore-output"]
with progress.wait("Three engines read the text"):
    judged = {name: perplexities(folder) for name, folder in folders.items()}
for name in (deal.setting, "3 bits"):
    told = told_apart(judged[name], judged["checkpoint"], "worse", "better")
    verdict = "not told apart from the limit"
    if told.low > service.QUALITY:
        verdict = (
            f"breaks the contract, by a factor of {told.ratio / service.QUALITY:.2f}"
        )
    elif told.high <= service.QUALITY:
        verdict = "keeps the contract"
    print(f"{name}, perplexity over the checkpoint's: {told}\n    {verdict}")

# %% tags=["nbval-ignore-output"]
told = told_apart(judged[deal.setting], judged["checkpoint"])
dear, cheap = (
    contract.per_million(deal.rate * answer * share) for share in (low, high)
)
clauses = {
    "in time": (low >= service.SHARE, high < service.SHARE),
    "cost": (dear <= contract.cost, cheap > contract.cost),
    "quality": (told.high <= service.QUALITY, told.low > service.QUALITY),
}
for clause, (is_kept, is_broken) in clauses.items():
    print(f"{clause}:", "kept" if is_kept else "broken" if is_broken else "left open")
print("memory: kept, the cache was made that size")

# %% [markdown]
# These verdicts are for the load that was chosen to sign, which may lie well above the contract's rate: there the
# cheapest point is also the one with the least room. A clause that is left open takes more requests, or a lower load.
# So the railway company's answer has two parts: whether one machine keeps the contract at its own rate (the left edge
# of the shaded corner, for which a hundred requests have to be measured there, unless that was the load to sign), and
# how far the cost falls with the load, where you sign what was measured and not the edge of a forecast. The windows
# have 128 tokens and prompts up to 512: what an 8-bit cache loses over longer texts is not measured. Without the clause
# on quality, the cheapest deployment is always one that says nothing useful.
#
# ## Twice the load
#
# On Monday twice as many requests come as this deployment bears (or, where that is more, as the contract says). Some of them
# fail, and you choose which:
#
# - **Queue**: all are let in, and wait.
# - **Shed**: `max_queue_size` bounds the queue. A request that finds it full is refused at once. Six, since a first
#   token may take as long as six mean requests.
# - **Time out**: `allotted_time_ms` bounds the whole request, its wait included. One that takes longer is ended. Here
#   it is twice the limit of the first token. That is short on purpose: a long answer may take longer and still keep the
#   contract.

# %% tags=["nbval-ignore-output"]
monday = 2 * max(contract.rate, most[deal.setting])
ways = {
    "queue": {},
    "shed": {"max_queue_size": 6},
    "time out": {"allotted_time_ms": round(2 * contract.ttft_ms)},
}
no_limit = settings | {"max_queue_size": 0, "allotted_time_ms": 0}
runs = {
    name: forecast(no_limit | more, load=monday / contract.rate)
    for name, more in ways.items()
}
print(f"{monday:.2f} requests a second, {100 / monday:.0f} seconds a run")

# %% tags=["nbval-ignore-output"]
rows = {}
for name, crowded in runs.items():
    good = in_time(crowded)
    rows[name] = {
        "in time": good.sum(),
        "no answer": (crowded["error"] != "").sum(),
        "P95 of TTFT (ms)": crowded["ttft_ms"].quantile(0.95).round(),
        "tokens not in time": crowded.loc[~good, "output_len"].sum(),
    }
pd.DataFrame(rows).T.rename_axis("of 500 requests").astype(int)

# %% [markdown]
# None of them keeps all. A queue without a limit breaks the TTFT: each that is let in late makes the next one
# late, and the longer the load lasts, the further its row falls. Shedding leaves requests unanswered; the others wait
# less, so more are in time. In bursts below the limit it does the same, which is all by which *yours* differs from the
# best pair. A time-out throws away what was computed for those whom it ends, and this one ends some who would have been
# in time: only the limit of TTFT plus 63 times that of TPOT ends none. What you want to bound is the wait for the first
# token, which a limit on the whole request cannot say. A client that asks again at once brings the load back: let it
# retry after a growing pause, and not for ever.
#
# So how many machines does a peak take, of ten times the contract's rate? Enough that each bears its part. And one
# more, so that the contract outlives a restart. This supposes that the load divides evenly, which is what lesson 12
# looks at.


# %%
def machines(rate, each):
    """How many it takes, where each bears so much with 95 % in time."""
    # your line: a whole number; math.inf where one bears nothing
    return math.ceil(rate / each) if each else math.inf


# %% tags=["nbval-ignore-output"]
peak = 10 * contract.rate
million = contract.per_million(peak * answer * service.SHARE)
print(f"At a peak of {peak:.2f} requests a second:")
for name, each in most.items():
    few, many = (machines(peak, part * each) + 1 for part in (1, 0.9))
    bill = f"{few} to {many} machines, €{few * million:.2f} to €{many * million:.2f}"
    print(f"{name}: {bill if each else 'no load here was kept, so no number is known'}")

# %% [markdown]
# The euros are for a million tokens in time while the peak lasts: where the mean is a third of the peak, they cost
# three times that. The first figure has each machine at the very load where the forecast has just 95 %, and only the
# spare one gives it room; the second is for machines that bear a tenth less. Where *in time* was not kept above, order
# by the second.
#
# ## Elsewhere
#
# | | Here | TensorRT-LLM today | vLLM |
# |---|---|---|---|
# | Bursts | `cv=1.5` | AIPerf's <code>--arrival-<wbr>pattern gamma <wbr>--arrival-<wbr>smoothness 0.44</code> | <code>--burstiness 0.44</code> (1/cv²) |
# | Slots | `max_batch_size` of the engine | `max_batch_size` | `--max-num-seqs` |
# | Tokens in an iteration | `max_num_tokens` of the engine | `max_num_tokens` | <code>--max-num-<wbr>batched-tokens</code> |
# | 8-bit cache | <code>kv_cache_<wbr>quant_algo=<wbr>&quot;INT8&quot;</code> | `dtype: fp8` of `kv_cache_config` | <code>--kv-cache-<wbr>dtype fp8</code> |
# | Reuse | <code>enable_kv_<wbr>cache_reuse</code> | <code>enable_block_<wbr>reuse</code>, on by default | prefix caching, on by default |
# | Pauses | <code>batch_<wbr>scheduler_<wbr>policy=&quot;max_<wbr>utilization&quot;</code> | <code>capacity_<wbr>scheduler_<wbr>policy</code> of `scheduler_config` | always: it preempts, and computes again |
# | Prompt in parts | <code>enable_<wbr>chunked_<wbr>context</code> | <code>enable_<wbr>chunked_<wbr>prefill</code> | on by default |
# | Shed | `max_queue_size` | in the gateway before it | <code>--max-num-<wbr>queued-reqs</code>, of waiting and running together |
# | Time out | `allotted_time_ms` | the client disconnects | the client disconnects |
# | Goodput | `shares` of this page | <code>aiperf profile <wbr>--goodput</code> | <code>vllm bench serve <wbr>--goodput</code> |
#
# Sources: vLLM's [engine](https://docs.vllm.ai/en/latest/configuration/engine_args/) and
# [benchmark](https://docs.vllm.ai/en/latest/cli/bench/serve/) arguments, [its limit of the
# queue](https://github.com/vllm-project/vllm/pull/49445) (July 2026) and [its
# metrics](https://docs.vllm.ai/en/latest/usage/metrics/); TensorRT-LLM's
# [KvCacheConfig](https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html); AIPerf's
# [goodput](https://github.com/ai-dynamo/aiperf/blob/main/docs/tutorials/goodput.md) and
# [arrival patterns](https://github.com/ai-dynamo/aiperf/blob/main/docs/tutorials/arrival-patterns.md).
#
# In production you watch the same figures as histograms: vLLM's `vllm:time_to_first_token_seconds` and
# `vllm:request_time_per_output_token_seconds`, and `vllm:num_requests_waiting` for the queue. Triton's
# `default_timeout_microseconds` bounds the wait in Triton's own queue, which an LLM backend empties at once, so it does
# not help.
#
# Before a service goes live, close its control API and decide what to watch: [both are on a page of their
# own](../assets/going-live.md), with an attack that you can try.
#
# ## What breaks
#
# A setting that cannot work is refused in rehearsal: a knob that does not exist by the lesson, the others with the sentence
# that the engine would say.

# %%
for wrong in (
    {"max_batch": 16},
    {"max_num_tokens": 128},
    {"kv_cache_quant_algo": "FP8"},
):
    try:
        rehearse(wrong)
    except CourseError as error:
        print(error)

# %% [markdown]
# ## Recap
#
# - A contract says what is in time, at which rate, at which quality, and for how much. Goodput counts what is in time.
# - A rehearsal is the engine's scheduler and cache with a clock of prices. Measure once beside it, and carry its bias.
# - Find out what is short before you turn a knob: work, blocks or slots. When one is no longer short, another may be.
# - Cost falls with load until requests are late. Compare deployments on the front of cost against the share in time.
# - Above its limit a service queues, sheds or times out. None of them keeps all figures; more machines do.
#
# Three questions to answer without running anything:
#
# <details><summary>1. Requests miss the contract, and only by their TPOT. Which knob first, and which one makes it worse?
# </summary>
#
# Less must be computed in each iteration: chunked context with a smaller <code>max_num_tokens</code>, or fewer slots. More
# slots make it worse. </details>
#
# <details><summary>2. A colleague reports €0.20 for a million tokens, from a run of all requests at once on a busy machine. What
# do you ask?</summary>
#
# How many of those tokens were in time. All requests at once fill every slot, so tokens a second are at their highest,
# and most first tokens are late.
# </details>
#
# <details><summary>3. Somebody puts the time, with minutes, in front of the system prompt. What happens to the cost?</summary>
#
# Reuse finds only blocks of the same minute, so each minute the system prompt is computed again by everybody who comes
# before the first has finished it. With seconds there is next to no reuse, and the deployment is where it began.
# </details>
#
# Now [do the lab]({lab}): there you keep a contract of your own with the parts that you made.
#
# The server ends with this notebook's kernel (*Kernel → Shut Down Kernel*).
