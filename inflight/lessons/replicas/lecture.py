# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **choose** a routing policy from the prompts and the size of the caches, and predict what it saves;
# - **say** what users see when a server dies, and what may be sent again;
# - **count** what users lose, through a restart, and say when it should wake somebody.
#
# You need lesson 05: blocks, and KV cache reuse. The router is vLLM's, the metrics have vLLM's names, and the rules are
# Prometheus': you can use all three elsewhere. `Replicas`, `load` and `watching` belong to this lesson.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# One server is full, so you start a second with the same engine, a [replica](glossary.md#Replica). Clients know one
# address. A [router](glossary.md#Router) listens there and picks a server for each request.
#
# Either server can answer. But each has its own [KV cache](glossary.md#KV-cache), so one may have the
# beginning of a prompt already, and the other not. And one day one of the two dies.
#
# On this machine two servers share the cores, so together they are no faster than one. What a policy saves is counted
# here in tokens; what two machines carry is rehearsed with lesson 09's simulator.

# %%
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pandas as pd
import plotly.express as px
from prometheus_client import CollectorRegistry, Counter

from inflight import engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig, ExecutorConfig
from inflight.lessons import replicas as lesson
from inflight.lessons.capstone import rehearsal
from inflight.notebook import charts, progress, session, widgets

session.others()

# %% [markdown]
# ## Three commands
#
# On three machines you would type:
#
# ```
# a$  INFLIGHT_API_KEY=… inflight serve --openai-port 9000 --host 0.0.0.0
# b$  INFLIGHT_API_KEY=… inflight serve --openai-port 9000 --host 0.0.0.0
# c$  vllm-router --host 0.0.0.0 --port 8000 --policy round_robin \
#         --worker-urls http://a:9000 http://b:9000
# ```
#
# `Replicas` runs the same three on free ports of 127.0.0.1. Each server has four slots, and a small cache:

# %% tags=["nbval-ignore-output"]
build = BuildConfig(max_input_len=736, max_seq_len=768, max_batch_size=4)
settings = {
    "enable_kv_cache_reuse": True,
    "max_tokens_in_paged_kv_cache": 34 * build.tokens_per_block,
}
with progress.wait("The engine, built the first time"):
    engine_dir = engine.cached(fetch(), build)
tokenizer = load_tokenizer(engine_dir)
stack = ExitStack()
with progress.wait("Two servers and a router start"):
    service = stack.enter_context(lesson.Replicas(engine_dir, **settings))
print("router ", service.url)
for number, url in enumerate(service.servers):
    print(f"server {number}", url)

# %% [markdown]
# ## Eight desks
#
# The service has eight desks. Each has a long system prompt of its own. 64 visitors come, each to a desk drawn at
# random. Each run gets desks of its own, which no cache knows yet.

# %%
desks, load_numbers = range(8), itertools.count(1)
[instructions] = workload.prompts_of([225], tokenizer)


def encoded(system, question):
    messages = [("system", system), ("user", question)]
    return tokenizer.encode_chat([{"role": r, "content": text} for r, text in messages])


def visitors(seed, weights=None):
    """64 requests, whose desks are drawn."""
    load, drawn = next(load_numbers), random.Random(seed).choices(desks, weights, k=64)
    prompts = [f"{load:03}.{desk} {instructions}" for desk in drawn]
    return [
        lesson.load.Request(desk, encoded(system, f"Visitor {number:02}?"))
        for number, (desk, system) in enumerate(zip(drawn, prompts))
    ]


# %%
requests = visitors(seed=0)
ids = [request.prompt for request in requests if request.desk == 0]
prompt, block = len(ids[0]), build.tokens_per_block
alike = next(place for place, pair in enumerate(zip(*ids[:2])) if len({*pair}) > 1)
common = alike // block * block
room = (34 - build.max_batch_size) // (common // block)
print(f"A prompt has {prompt} tokens. {common} of them, {common // block} full blocks,")
print(f"are the desk's. With four running requests a cache has room for {room} desks.")

# %% [markdown]
# - **Round robin** gives the servers a request each, in turn.
# - **By prefix**, all visitors of a desk go to the same server.
#
# Under both, a server that has a desk's blocks in its cache computes only the remaining tokens of the prompt. When the
# cache is full, the desk that was visited longest ago is evicted.
#
# ## Predict

# %%
guess = widgets.predict(
    "How many times round robin's prompt tokens do the two servers compute by prefix?",
    {
        "0.7 times: with round robin nearly every visitor's desk is cached": 0.7,
        "0.45 times: with round robin half of the visitors' desks are": 0.45,
        "0.25 times: with round robin hardly any visitor's desk is": 0.25,
    },
)
guess

# %% [markdown]
# ## By hand
#
# A policy is a function from a request to a server, 0 or 1.

# %%
turn, homes = itertools.count(), {}


def round_robin(desk):
    return next(turn) % 2


def by_prefix(desk):
    if desk not in homes:
        # A new desk gets a home.
        homes[desk] = len(homes) % 2
    return homes[desk]


# %% [markdown]
# The servers are two lists of desks, the one visited last at the end.


# %%
def on_paper(order, choose, room):
    """Prompt tokens that two servers compute, each with room for so many desks."""
    caches, computed = ([], []), 0
    for desk in order:
        cache = caches[choose(desk)]
        computed += prompt - common if desk in cache else prompt
        if desk in cache:
            cache.remove(desk)
        cache.append(desk)
        del cache[:-room]
    return computed


order = [request.desk for request in requests]
for choose in (round_robin, by_prefix):
    print(f"{choose.__name__:11} {on_paper(order, choose, room):6,} tokens")

# %% [markdown]
# ## Run
#
# Now the real servers, behind `vllm-router` with two of its policies. `cache_aware` sends a prompt where its longest
# known beginning went, if that is more than 30 % of the prompt (`--cache-threshold`), and otherwise to the server with
# the fewest requests under way. It [comes from SGLang](https://github.com/sgl-project/sglang/pull/2114), from whose
# gateway vLLM's router [was forked](https://github.com/vllm-project/router#acknowledgement). Four users send, each one
# request at a time; three rounds, in turns.


# %% tags=["nbval-ignore-output"]
def measure(policy, requests, **options):
    """Send with a new router: a row a request, with its server and what it computed."""
    service.route(policy, **options)
    ask = lambda request: lesson.load.stream(service.url, request)
    rows = lesson.load.send(requests, ask, users=4)
    return lesson.load.traced(rows, service).assign(policy=policy)


rounds = []
for seed in progress.over(range(3), "Round"):
    for policy in ("round_robin", "cache_aware"):
        rows = measure(policy, visitors(seed))
        rounds.append(rows.assign(round=seed, visitors=1 + rows.index // 32 * 32))
rounds = pd.concat(rounds)
table = rounds.pivot_table("computed", ["round", "visitors"], "policy", "sum")
table.rename(lambda first: f"{first} to {first + 31}", level="visitors")

# %% tags=["nbval-ignore-output"]
sums = rounds.groupby("policy")["computed"].sum()
ratio = sums["cache_aware"] / sums["round_robin"]
late = rounds[rounds["visitors"] > 1].groupby("policy")["computed"].mean()
print(guess.score(ratio, "cache_aware's tokens over round robin's, in three rounds"))
print(f"The later 32 visitors of a round: {late['round_robin']:.0f} tokens each with")
print(f"round robin, {late['cache_aware']:.0f} with cache_aware.", end=" ")
print(f"{prompt - common} is the least possible.")

# %% tags=["remove-cell"]
assert (rounds["error"] == "").all() and 0.3 < ratio < 0.65
assert late["cache_aware"] < 60 < 70 < late["round_robin"]

# %% [markdown]
# With round robin each server sees all eight desks, and has room for five. It evicts a desk and computes it again, for
# as long as visitors come. With `cache_aware` the servers share the desks out and keep them: after the first visits they
# compute hardly more than the visitors' own questions.
#
# ## See
#
# How much does it save in a larger cache, or a smaller one? On paper, for each size, with 4,000 visitors:

# %%
many = random.Random(0).choices(desks, k=4000)
rows = [
    (size, choose.__name__, on_paper(many, choose, size) / len(many))
    for choose in (round_robin, by_prefix)
    for size in range(1, 9)
]
names = ["desks in a cache", "policy", "tokens a visitor"]
paper = pd.DataFrame(rows, columns=names)

# %% tags=["nbval-ignore-output"]
figure = px.line(paper, x=names[0], y=names[2], color="policy", markers=True)
mark = {"symbol": "x", "size": 12, "color": charts.palette.INK}
figure.add_scatter(
    x=[room, room], y=late, name="the router, measured", mode="markers", marker=mark
)
figure.update_layout(legend_title="")
figure.update_xaxes(title="desks that fit in one cache")
figure.update_yaxes(title="prompt tokens computed for a visitor", rangemode="tozero")
gap = paper.pivot(index=names[0], columns="policy", values=names[2])
summary = (
    "Prompt tokens computed for a visitor, against the desks that fit in one cache: "
    f"with room for {room} round robin computes {gap.loc[room, 'round_robin']:.0f}, "
    f"by prefix {gap.loc[room, 'by_prefix']:.0f}."
)
charts.show(figure, summary)

# %% [markdown]
# **Two caches that hold different desks are one cache of twice the size.** By prefix is at its floor from four desks a
# cache on, round robin only from eight. Where each cache holds everything, a policy saves only each desk's first visit
# to the second server. Conversations are desks, too: one each, and they grow.
#
# ## Two machines
#
# What would that be worth on two machines? Lesson 09's simulator plays the engine's scheduler and cache, at prices like
# that lesson's: 10 ms an iteration, 2 ms an answer in it, 0.5 ms a token of a prompt. 400 visitors arrive at a rate and
# get 16 tokens each. The P95 of TTFT, in ms, rehearsed:


# %%
def arriving(rate):
    """400 visitors at random times, so many a second on average."""
    draw, at_s, found = random.Random(0), 0.0, []
    for number in range(400):
        at_s, desk = at_s + draw.expovariate(rate), draw.choice(desks)
        ids = [10 * desk] * common + [1000 + number] * (prompt - common)
        found.append((desk, rehearsal.TokenRequest(ids, 16, at_s)))
    return found


def rehearsed(asked, choose):
    """P95 of TTFT (ms), with a machine for each number that `choose` returns."""
    machines, prices = {}, rehearsal.Prices(10, 2, 0.5)
    for desk, request in asked:
        machines.setdefault(choose(desk), []).append(request)
    rows = [
        rehearsal.play(part, build, ExecutorConfig(**settings), prices)
        for part in machines.values()
    ]
    return pd.concat(rows)["ttft_ms"].quantile(0.95)


# %%
policies = {"one machine": lambda desk: 0, "two, round robin": round_robin}
policies["two, by prefix"] = by_prefix
rehearsals = pd.DataFrame(
    {"visitors a second": rate}
    | {
        f"{name} (ms)": rehearsed(arriving(rate), choose)
        for name, choose in policies.items()
    }
    for rate in (3, 6, 9, 12, 15, 18, 21, 24)
)
charts.table(rehearsals, decimals=0)

# %% [markdown]
# With a limit of one second, one machine carries 6 of these visitors a second, two with round robin 12, two by prefix 18.
# The second brings its cores, and a cache for other desks.
#
# ## Turn the knob
#
# A desk may be hot: now one has two thirds of the visitors. `cache_aware` ignores prefixes while one server is ahead of
# the other by more than `balance_abs_threshold` requests (64 by default) and has 1.5 times as many. What does 1 cost,
# and what does it even out? Then try 3.
#
# <details><summary>What to see</summary>
#
# With 1 the hot desk gets a second home: more is computed, and the busier server has fewer requests. 3 never acts here:
# when one of four users sends, only three requests are under way.
#
# </details>

# %% tags=["nbval-ignore-output"]
for ahead in (64, 1):
    requests = visitors(9, [14] + [1] * 7)
    hot = measure("cache_aware", requests, balance_abs_threshold=ahead)
    busier = hot["server"].value_counts().max()
    print(f"{ahead:2}: {hot['computed'].sum():,} tokens;", end=" ")
    print(f"the busier server had {busier} of the 64 requests.")

# %% [markdown]
# Reuse and balance pull apart. **`consistent_hash` never looks at load.** It is the router's way to keep a chat
# together (`X-Session-ID`; in 0.1.17 `cache_aware` routes chats without a session by load alone, so this lesson sends
# token ids). [Pinned sessions](../assets/elsewhere.md#12-Replicas) can keep one engine of four saturated while three
# idle. Lab 12.4 gives such a hash a bound.
#
# ## One server dies
#
# Users see streams end, or break off, so the client counts both:

# %%
page = CollectorRegistry()  # the client's own /metrics
ended = Counter("client_streams", "Streams, by their end.", ["end"], registry=page)
for end in ("whole", "broken"):
    ended.labels(end)  # there from the start, at zero


def ask(request, begun=lambda: None):
    """One stream, through the openai package and the router."""
    row = lesson.load.stream(service.url, request, begun)
    ended.labels("broken" if row["error"] else "whole").inc()
    return row


# %%
def talks(number, max_tokens):
    prompts = [encoded("You are brief.", f"Question {n}?") for n in range(number)]
    return [lesson.load.Request(0, prompt, max_tokens) for prompt in prompts]


def with_a_kill():
    """Twelve streams; when eight have begun, server 1 dies, and twelve more come."""
    begun = threading.Semaphore(0)
    with ThreadPoolExecutor(24) as pool:
        streams = [pool.submit(ask, one, begun.release) for one in talks(12, 100)]
        for _ in range(8):
            begun.acquire()
        service.kill(1)
        streams += [pool.submit(ask, one) for one in talks(12, 100)]
    return pd.DataFrame(stream.result() for stream in streams)


# %% [markdown]
# Twelve streams in turn are six for each server: four in its slots, and two that wait. `look` reads every `/metrics`
# page, as Prometheus would: the client's, the router's and each server's.

# %% tags=["nbval-ignore-output"]
service.route("round_robin")
looks = [lesson.watching.look(service, page)]
calm = lesson.load.send(talks(12, 4), ask, users=4)
looks.append(lesson.watching.look(service, page))
with progress.wait("24 streams and a kill"):
    rows = lesson.load.traced(with_a_kill(), service)
looks.append(lesson.watching.look(service, page))
broken = rows["error"] != ""
survived = (rows["server"][:12] == 0).sum()
print(f"Of 24 streams {broken.sum()} broke off:", *rows["error"][broken].unique())
print(f"Server 0 answered {survived} of the first twelve:", end=" ")
print(f"its six, and {survived - 6} more.")

# %% tags=["remove-cell"]
assert (calm["error"] == "").all()
assert broken.sum() == 4 and survived == 8 and not broken[12:].any()

# %% [markdown]
# The streams that had begun broke off. **What only waited was saved**: no byte had come back, so the router sent those
# requests to the other server, as it did with the later twelve. A stream with a first word may not be repeated: nobody
# can take words back, and the next server may choose others. The *program* must decide: ask again, or show the half and
# say so.
#
# This server sends its status with the first word. vLLM's sends 200 before it: there, a waiting stream breaks as well.
#
# Who notices? The router's health check (after three failures a minute apart; here two, a second apart), and before it
# the [circuit breaker](glossary.md#Circuit-breaker): after ten failures in a row nothing is sent there for a while.
#
# ### Drained
#
# For an update nobody has to die. First take the server from the router (`/remove_worker`), then wait until it is
# empty, then end it:

# %% tags=["nbval-ignore-output"]
with progress.wait("Server 1 starts again, and eight streams"):
    service.start(1)
    after = lesson.load.send(talks(8, 4), ask, users=4)
looks.append(lesson.watching.look(service, page))
begun = threading.Semaphore(0)
with ThreadPoolExecutor(12) as pool, progress.wait("Twelve streams, and a drain"):
    streams = [pool.submit(ask, one, begun.release) for one in talks(12, 60)]
    for _ in range(8):
        begun.acquire()
    service.drain(1)
whole = sum(not stream.result()["error"] for stream in streams)
print(f"Drained: {whole} of 12 streams are whole.")

# %% tags=["remove-cell"]
assert whole == 12

# %% [markdown]
# In Kubernetes, let a [`preStop`](https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/) hook wait
# until routers have noticed and streams have ended; `terminationGracePeriodSeconds` (30 by default, the hook included)
# must be longer than your longest answer.
#
# ## Watch both
#
# How many answers did the service give in these four looks? A restart sets a counter to zero, so **take each counter's
# growth first, then the sum**.


# %%
def growth(values):
    """How much a counter grew, look by look, though its process may have restarted.

    >>> growth([7, 9, 2, 5])
    7
    """
    steps = zip(values, values[1:])
    # your line: the sum of all steps; after a restart, what is there is all new
    return sum(now - before if now >= before else now for before, now in steps)


# %%
def grown(name, label=""):
    """The growth of a service's counters over all looks, added up."""
    each = lesson.watching.counters(looks, name, label)
    return sum(growth(each[one].tolist()) for one in each)


# %% tags=["nbval-ignore-output"]
answers = "vllm:request_success_total"
pages = [look.xs(answers, level="name") for look in looks]
totals = [int(one.sum()) for one in pages]
print(f"Sum first: {totals}, so {growth(totals)} answers.")
print(f"Growth first: {grown(answers):.0f}.", end=" ")
whole, lost = (grown("client_streams_total", f'"{end}"') for end in ("whole", "broken"))
print(f"The clients had {whole:.0f} whole streams.")

# %% tags=["remove-cell"]
assert growth(totals) != grown(answers) == whole == 40

# %% [markdown]
# When server 1 died, the sum fell by all that it had ever counted. To `growth` that is a restart, so all that is left
# in the sum looks new. `increase()` and `rate()` take a restart as your line does: `sum(increase(x[5m]))`.
# A *histogram* is a row of counters, one for each bound: growth, then the sum for each bound, and a quantile last
# (lab 12.2). A mean of P95s is not a P95.
#
# ### An alert that is worth waking for
#
# The objective: 999 of 1,000 streams end whole. The others are the [error budget](glossary.md#Error-budget). How
# many times as fast as allowed is it spent?

# %%
budget = 1 - 0.999
# your line: the burn rate over these looks
burning = lost / (whole + lost) / budget

# %% tags=["nbval-ignore-output"]
said, failed = (
    grown("vllm_router_cb_outcomes_total", f'"{end}"') for end in ("success", "failure")
)
print(f"Clients: of {whole + lost:.0f} streams {lost:.0f} broke,", end=" ")
print(f"{burning:.0f} times as fast as allowed.")
print(f"Router: {said:.0f} attempts succeeded, {failed:.0f} failed.")

# %% [markdown]
# At a [burn rate](glossary.md#Burn-rate) of 14.4, an hour takes 2 % of a budget for 30 days, which is
# [worth waking somebody](https://sre.google/workbook/alerting-on-slos/).
#
# **Attempts are not users.** The router's failures were all repeated elsewhere, and no user noticed. The broken streams
# are among its successes, since it counts one when an answer begins. So page on the counter of whoever sees streams
# end, your client or gateway, and let the router's be a ticket:

# %%
rules = lesson.watching.RULES.read_text()
print(rules[rules.index("      - alert: Streams") : rules.index("      # Attempts")])

# %% [markdown]
# One trap is left. `increase` needs two values, so it misses a counter's first, and the router's counter of failures
# appears with the first failure. Ours starts at zero. For the router's, `rules.yml` takes what was not there 5 minutes
# ago as all new. `promtool test rules rules_test.yml` plays two kills, and a restart of the router between them.
#
# ## Elsewhere
#
# | | how it chooses | what it knows of a cache |
# |---|---|---|
# | [vllm-router](https://github.com/vllm-project/router/blob/301790e790349e27a752632516df438717825c81/docs/load_balancing/README.md) | the policies above; `sticky_least_loaded`: a session stays, a new one goes where the fewest sessions are | what it has sent where; with [`kv_aware`](https://github.com/vllm-project/router/blob/bf9bdb02f8d3044a11049f75050b1194ac3d3800/docs/kv_aware.md), what servers report |
# | [SGLang's gateway](https://docs.sglang.io/advanced_features/sgl_model_gateway.html) | `cache_aware` began here | what it has sent where |
# | [llm-d Router](https://llm-d.ai/docs/architecture/core/router) | a picker beside a Kubernetes gateway (`InferencePool`) scores prefix, load and queue | both ways |
# | [NVIDIA Dynamo](https://docs.nvidia.com/dynamo/v1.5.1/knowledge-base/modular-components/router/overview.md) | the least cost of prefill and decode together | what servers report |
#
# [Sources, and what changes quickly](../assets/elsewhere.md#12-Replicas)
#
# ## What breaks
#
# **Retries multiply.** The last server dies too. Then one user sends one request:

# %% tags=["nbval-ignore-output"]
service.kill(0)
looks = [lesson.watching.look(service, page)]
nobody = ask(talks(1, 4)[0])
looks.append(lesson.watching.look(service, page))
gave_up = grown("vllm_router_retries_exhausted_total")
tries = gave_up + grown("vllm_router_retries_total")
print(f"{nobody['error']}: the client asked {gave_up:.0f} times,", end=" ")
print(f"the router tried {tries:.0f} times.")
reached = grown("vllm_router_cb_outcomes_total", '"failure"')
print(f"At the server {reached:.0f} of them failed, then its breaker was open.")
stack.close()

# %% [markdown]
# Three by the client, times five by the router: load, just when servers are fewest. Retry in one place, and with a
# [retry budget](https://sre.google/sre-book/handling-overload/): at most three attempts a request, and at most
# one retry for ten requests.
#
# **By default the router checks no key.** It hands on the client's. Whoever reaches its port may add a server, which then
# gets your users' prompts and keys: let only `/v1` through.
#
# ## Recap
#
# The next request goes to the server that has its beginning, unless that one is too busy, or dead.
#
# - Two caches that hold different prefixes are one of twice the size. By prefix pays where one cache cannot hold all.
# - A policy that never looks at load keeps a hot desk's server busy and the other idle.
# - What has no first byte may be sent again; a stream that has begun may not. Draining loses nothing.
# - Growth first, then the sum, then the quantile.
# - Page on what users lose. Attempts are not users, and retries are load.
#
# <details><summary>1. Eight desks, and caches that hold eight each. What does by prefix save over a long day?</summary>
#
# Next to nothing: eight first visits, since with round robin each desk is computed on both servers once.
# </details>
#
# <details><summary>2. Server A had 1,000 answers with a P95 of 0.2 s, server B 10 with a P95 of 8 s. What is the P95 of
# the service?</summary>
#
# About 0.2 s: ten of 1,010 are 1 %, and cannot fill the highest 5 %. The mean says 4.1 s.
# </details>
#
# <details><summary>3. A stream breaks off after "The answer is". May your gateway ask another server and append what it
# says?</summary>
#
# Only if it sends these words along as the beginning of the answer, and nobody minds if the rest is not what the first
# server would have written.
# </details>
#
# Now [do the lab]({lab}): a policy that holds when a desk is hot, a server slow, or dead.
