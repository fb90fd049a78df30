# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **choose** a routing policy for several servers, and predict from the prompts how much work it saves;
# - **say** what clients see when a server dies, what may be sent again, and what may not;
# - **watch** several servers as one: add up their metrics rightly, and write one alert that is worth waking for.
#
# **What you will use elsewhere:** all of it. The router here is vLLM's, the metrics have vLLM's names, the rules are
# Prometheus', and every command works on three machines as it does on one.
#
# You need lesson 05: blocks, and KV cache reuse. Engines, servers and router are started here; together they take
# about 1.1 GB of memory.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Lesson 09 ended with twice as many requests as before. One way to bear them is a second server with the same engine, a
# *replica*. Clients know one address, so something stands in front and hands each request to one of the two: a *router*.
#
# Both servers give the same answers. But each has a
# [KV cache](glossary.md#KV-cache) of its own. Prompts of a chat service begin with a system prompt, and a server
# may have its blocks already, or not. And one day one of the two dies.

# %%
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import httpx
import pandas as pd

from inflight import engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig
from inflight.lessons import replicas as lesson
from inflight.notebook import charts, progress, session, told_apart, widgets

session.others()

# %% [markdown]
# ## Three commands
#
# On three machines, you would type these. For `inflight serve`, `--host` opens the OpenAI port alone, and only with a
# key. The router's opens all that it has, adding and removing servers included, and asks for no key: see *What breaks*
# before you type the third line. Triton's own ports and, without `--prometheus-host`, the router's metrics (29000) stay
# on 127.0.0.1.
#
# ```
# a$  INFLIGHT_API_KEY=… inflight serve --openai-port 9000 --host 0.0.0.0
# b$  INFLIGHT_API_KEY=… inflight serve --openai-port 9000 --host 0.0.0.0
# c$  vllm-router --host 0.0.0.0 --port 8000 --policy round_robin \
#         --worker-urls http://a:9000 http://b:9000
# ```
#
# Here, `Replicas` runs them on free ports of 127.0.0.1, and ends them with this notebook.

# %% tags=["nbval-ignore-output"]
build = BuildConfig(max_input_len=736, max_seq_len=768)
with progress.wait("The engine, built the first time"):
    engine_dir = engine.cached(fetch(), build)
tokenizer = load_tokenizer(engine_dir)
settings = {"enable_kv_cache_reuse": "true", "max_tokens_in_paged_kv_cache": 4096}
stack = ExitStack()
with progress.wait("Two servers and a router start"):
    service = stack.enter_context(lesson.Replicas(engine_dir, **settings))
print("router ", service.url)
for number, url in enumerate(service.servers):
    print(f"server {number}", url)

# %% [markdown]
# ## Five desks
#
# The service has five desks, each with a system prompt of its own, and 36 visitors. Some desks are busier than others.
# Each load gets desks of its own, by a number at the beginning of each prompt, so that no cache knows them from before.
# A request is sent as token ids to `/v1/completions`: the chat is encoded here, and not by the server.

# %%
load_numbers = itertools.count(1)
[instructions] = workload.prompts_of([225], tokenizer)


def encoded(system, question):
    messages = [("system", system), ("user", question)]
    return tokenizer.encode_chat([{"role": r, "content": text} for r, text in messages])


# %%
def visitors(seed, max_tokens=4):
    """36 requests: the same desks in the same order for the same seed, in new words."""
    load, found = next(load_numbers), []
    order = random.Random(seed).choices(range(5), weights=[5, 3, 2, 1, 1], k=36)
    for number, desk in enumerate(order):
        system = f"{load:03}.{desk} {instructions}"
        prompt = encoded(system, f"Visitor {number:02}?")
        found.append(lesson.load.Request(desk, system, prompt, max_tokens))
    return found


# %% [markdown]
# How much of a prompt can be found in a cache? Full blocks of 32 tokens, as far as two prompts begin alike.

# %%
requests = visitors(seed=0)
block = build.tokens_per_block
ids = [request.prompt for request in requests if request.prefix == 0]
prompt = len(ids[0])
alike = next(place for place, pair in enumerate(zip(*ids[:2])) if len({*pair}) > 1)
common = alike // block * block
print(f"A prompt has {prompt} tokens;", end=" ")
print(f"{common} of them, {common // block} full blocks, are a desk's.")

# %% [markdown]
# ## Predict
#
# *Round robin* gives the servers one request each, in turn. *By prefix* sends every visitor of a desk to the same server.
# With either, a server that has a desk's blocks computes only the rest of the prompt.

# %%
guess = widgets.predict(
    "How many prompt tokens do both servers compute by prefix, "
    "compared with round robin?",
    {
        "a third": 0.33,
        "half as many: each desk is computed once, not twice": 0.5,
        "about seven tenths": 0.71,
        "as many": 1,
    },
)
guess

# %% [markdown]
# ## By hand: a policy in ten lines
#
# A router is a function: it gets a request and what it knows of the servers, and returns one of them. `under_way` counts
# the requests that we have sent to a server and that are not answered yet.


# %%
@dataclass(eq=False)
class Server:
    url: str
    under_way: int = 0


# %%
turn, homes = itertools.count(), {}


def round_robin(request, servers):
    return servers[next(turn) % len(servers)]


def least_outstanding(request, servers):
    # your line: the server with the fewest requests under way
    return min(servers, key=lambda server: server.under_way)


# %% [markdown]
# By prefix: a desk has a home, and keeps it. A new desk goes where the fewest desks live.


# %%
def by_prefix(request, servers):
    if request.system not in homes:
        homes[request.system] = min(servers, key=[*homes.values()].count)
    # your line: the home of the request's system prompt
    return homes[request.system]


# %% [markdown]
# On paper: a server that has seen a desk computes a prompt without the desk's blocks.


# %%
def computed_of(is_known):
    # your line: the tokens that are computed of a prompt, its desk known or not
    return prompt - common if is_known else prompt


# %%
def on_paper(requests, choose):
    """Prompt tokens that two servers compute, if each request ends before the next."""
    servers, known, computed = [Server("a"), Server("b")], set(), 0
    for request in requests:
        where = choose(request, servers), request.system
        computed += computed_of(where in known)
        known.add(where)
    return computed


paper = {
    choose.__name__: on_paper(requests, choose) for choose in (round_robin, by_prefix)
}
ratio_on_paper = paper["by_prefix"] / paper["round_robin"]
print(paper, f"ratio {ratio_on_paper:.2f}")

# %% [markdown]
# ## Run
#
# Four users, each with one request at a time, send the 36 requests straight to the servers, where the policy says. A lock
# makes the choice and the count one step.


# %%
def client_side(choose):
    servers, lock = [Server(url) for url in service.servers], threading.Lock()

    @contextmanager
    def address(request):
        with lock:
            server = choose(request, servers)
            server.under_way += 1
        try:
            yield f"{server.url}/v1"
        finally:
            with lock:
                server.under_way -= 1

    return address


# %%
def measure(address, seed):
    """Send the visitors of a seed: a row a request, with who computed how much."""
    rows = lesson.load.send(visitors(seed), address, users=4)
    return lesson.load.traced(rows, service)


def router(request):
    return nullcontext(service.url)


# %%
def mean_lead(rows):
    """By how many requests one server is ahead of the other when a request is sent."""
    leads = []
    for at in rows["sent_s"]:
        there = rows.loc[(rows["sent_s"] < at) & (rows["last_s"] > at), "server"]
        leads.append(abs(2 * there.sum() - len(there)))
    return sum(leads) / len(leads)


# %%
def figures(rounds):
    """A row a round."""
    found = {"tokens computed": [rows["computed"].sum() for rows in rounds]}
    most = [rows["server"].value_counts().max() / len(rows) for rows in rounds]
    found["share of the busier"] = most
    found["mean lead"] = [mean_lead(rows) for rows in rounds]
    for q in (0.5, 0.95):
        ttft = [rows["ttft_s"].quantile(q) * 1000 for rows in rounds]
        found[f"TTFT P{q * 100:.0f} (ms)"] = ttft
    return pd.DataFrame(found)


def medians(runs, what="policy"):
    found = {name: figures(rounds).median() for name, rounds in runs.items()}
    return pd.DataFrame(found).T.rename_axis(what).reset_index()


# %% tags=["nbval-ignore-output"]
warm_up = lesson.load.send(visitors(seed=9)[:8], client_side(round_robin), users=4)
by_hand = {}
for choose in progress.over((round_robin, least_outstanding, by_prefix), "By hand"):
    by_hand[choose.__name__] = [measure(client_side(choose), seed=0)]
charts.table(medians(by_hand), decimals=2)

# %% tags=["nbval-ignore-output"]
computed = {name: rows["computed"].sum() for name, [rows] in by_hand.items()}
ratio = computed["by_prefix"] / computed["round_robin"]
print(guess.score(ratio, "the tokens of one run over those of the other"))
print(f"On paper {ratio_on_paper:.2f}, measured {ratio:.2f}:", end=" ")
print(f"{ratio_on_paper / ratio:.2f} times.")

# %% tags=["remove-cell"]
assert all(not rows["error"].any() for [rows] in by_hand.values())
assert computed["by_prefix"] < 0.9 * computed["round_robin"]

# %% [markdown]
# *Mean lead* is by how many requests one server is ahead when a request is sent. Least outstanding keeps it small; by
# prefix does not look at it. How long does the saving last, once round robin has taken each desk to both servers?

# %%
for visits in (36, 360, 3600):
    rest = visits * (prompt - common)
    by, rr = (first_visits * common + rest for first_visits in (5, 10))
    print(f"{visits:5,} visitors: {by / rr:.2f}")

# %% [markdown]
# The saving is one first visit for each desk and each *further* server: over a long day it hardly counts. (The measured
# ratio may differ from the first line: round robin need not take each desk to both servers.) Routing by prefix keeps
# paying where one cache cannot hold all desks: two caches that hold the same desks hold half as many different ones.
# Conversations are such desks, one each, and they grow.
#
# ## The router
#
# Now the field's own: `vllm-router`, a program in Rust that vLLM's project makes, with two of its policies: `round_robin`;
# and `cache_aware`, which sends a prompt where its longest beginning went, if that is more than 30 % of it
# (`--cache-threshold`), otherwise where fewest requests are under way. In version 0.1.17, chat requests without a session id
# [go by load alone](https://github.com/vllm-project/router/issues/219). Hence token ids here; for chat, use
# `consistent_hash` with `X-Session-ID`. Five rounds in which the policies take turns:

# %% tags=["nbval-ignore-output"]
policies = ["round_robin", "cache_aware"]
routed = {policy: [] for policy in policies}
for seed in progress.over(range(5), "Round"):
    for policy in policies:
        service.route(policy)
        routed[policy].append(measure(router, seed))
rounds = {policy: figures(routed[policy]) for policy in policies}
for policy, found in rounds.items():
    print(f"{policy}:", *map("{:,.0f}".format, found["tokens computed"]), "tokens")
charts.table(medians(routed), decimals=2)

# %% tags=["nbval-ignore-output"]
base, found = rounds.values()
for what in ("tokens computed", "TTFT P50 (ms)", "TTFT P95 (ms)"):
    told = told_apart(found[what], base[what], more="more", less="less")
    print(f"cache_aware against round_robin, {what}: {told}")

# %% [markdown]
# The table has medians of the rounds. On paper, each request ends before the next one comes. Here, where a desk's first
# visitors come in pairs, both may compute its system prompt: a block is found only after it has been computed. TTFT
# depends on this machine as well: its verdicts above say whether five rounds show more than the saved tokens. The two
# servers share its cores, so a token that one does not compute leaves time to the other. With a machine each, a busy
# desk would be felt at its home alone: look at *mean lead* before you expect these times there.
#
# ## See
#
# A bar is a request, from its sending to its last token, in the colour of its desk, with a mark at its first token. A row
# is one of a server's simultaneous streams. Hatching is a share of the prompt, not of time: what was found in the cache.


# %% tags=["nbval-ignore-output"]
def middle_of(rounds):
    """The rows of the round with the median number of computed tokens."""
    in_order = sorted(rounds, key=lambda rows: rows["computed"].sum())
    return in_order[len(rounds) // 2]


middle = {name: middle_of(routed[name]) for name in ("round_robin", "cache_aware")}
summary = lesson.lanes_summary(middle)
charts.show(lesson.lanes(middle, prompt), summary)
print(summary)

# %% [markdown]
# Each panel is the round with the median number of computed tokens. Rounds that tie in tokens may differ in balance:
# the table's *share of the busier* is what to expect. A colour that appears on both servers is a desk that is computed
# on both; its first bar on each is plain. *System prompts in caches* counts them: with five desks and two servers, five
# is the fewest and ten the most.
#
# ## One server dies
#
# 24 streams of 100 tokens come one after the other, in turn to both servers. When twelve have been sent and eight of
# them have their first words, the second server is killed (its kernel still closes the connections, so clients know at
# once; after a power cut they would wait for a time-out). The other twelve follow. The clients are the `openai` package as
# it is, with its two retries. Beside them, something reads the pages of figures four times a second.


# %%
def with_a_kill(requests, begun_first=8):
    """A row a stream, when server 1 was killed, and how many requests it had."""
    begun, streams = threading.Semaphore(0), []
    ask = lambda one: lesson.load.stream(service.url, one, begun.release)
    with ThreadPoolExecutor(len(requests)) as pool:
        for number, request in enumerate(requests):
            if number == 12:
                for _ in range(begun_first):
                    begun.acquire()
                had, killed_s = service.under_way(1), time.time()
                service.kill(1)
            streams.append(pool.submit(ask, request))
            time.sleep(0.05)
    return pd.DataFrame(one.result() for one in streams), killed_s, had


# %% tags=["nbval-ignore-output"]
service.route("round_robin")
with lesson.watching.Watch(service) as watch, progress.wait("24 streams and a kill"):
    calm = lesson.load.send(visitors(seed=20)[:12], router, users=4)
    rows, killed_s, had = with_a_kill(visitors(seed=21, max_tokens=100)[:24])
samples = watch.samples
broken, begun = rows["error"] != "", rows["id"] != ""
print(f"{len(rows)} streams: {(~broken).sum()} answered, {broken.sum()} broken off:")
print(*rows["error"][broken].unique())
print(f"The dead server had {had:.0f}; {(broken & begun).sum()} of them had begun.")

# %% tags=["remove-cell"]
assert not calm["error"].any()
assert 0 < broken.sum() <= 8 and begun[broken].all()

# %% [markdown]
# A stream that breaks off is one that has begun. **Nothing that is only waiting is lost here** (with vLLM's server it
# may be, see below; where all that the dead server had were begun, this run shows it only for those that came after the
# kill): the router gets no answer to those requests, and sends them to the other server, since nobody has seen a word.
# A stream with a first word may not be repeated: the router cannot take words back, and the next server might choose
# others. So the client sees an error in the middle, and *the program* decides: ask again from the start, or show the
# half and say so.
#
# This server sends its status with the first word, so a waiting request has no first byte.
# [vLLM's](https://github.com/vllm-project/vllm/blob/00cd8fcf67c8acf8e5cafb0a0cb09cd4699e5e54/vllm/entrypoints/openai/completion/api_router.py)
# sends the status 200 before the first token: there a stream that only waits breaks as well, and the client must repeat
# it.
#
# ### How long until it is noticed?

# %% tags=["nbval-ignore-output"]
dead = service.servers[1]
health = samples[
    (samples["name"] == "vllm_router_worker_health") & (samples["worker"] == dead)
]
noticed_s = health.loc[
    (health["at_s"] > killed_s) & (health["value"] == 0), "at_s"
].min()
failed = lesson.watching.total(
    samples, lesson.watching.ATTEMPTS, worker=dead, outcome="failure"
).max()
print(f"The health check noticed after {noticed_s - killed_s:.1f} s.")
print(f"The router counted {failed:.0f} failed attempts at the dead server.")

# %% [markdown]
# Here the router looks each second and believes the second failure: `--health-check-interval-secs 1` and
# `--health-failure-threshold 2`. By default it looks each minute and believes the third. With much traffic, what
# protects clients sooner is the *circuit breaker*: after ten failed attempts in a row (`--cb-failure-threshold`) it
# sends nothing there for a while (5 s here, a minute by default; a server that returns needs one good check here, two
# by default).
#
# ### It comes back

# %% tags=["nbval-ignore-output"]
with progress.wait("The server starts again"):
    back_s = time.time()
    service.start(1)
    answers_s = time.time()
    its = pd.DataFrame()
    while its.empty and time.time() < answers_s + 60:
        again = lesson.load.send(visitors(30)[:2], router, users=1)
        again = lesson.load.traced(again, service)
        its = again[again["server"] == 1]
print(f"It answered {answers_s - back_s:.1f} s after its start, and", end=" ")
print(f"got work {its['sent_s'].min() - answers_s:.1f} s later. Its cache is empty.")

# %% [markdown]
# ### Drained
#
# A server that you want to update does not have to die: take it from the router (`/remove_worker`), wait until it has
# nothing under way, end it. `drain` does these three while streams run on both:

# %% tags=["nbval-ignore-output"]
with progress.wait("Eight streams, and one server is drained"):
    begun = threading.Semaphore(0)
    ask = lambda one: lesson.load.stream(service.url, one, begun.release)
    with ThreadPoolExecutor(8) as pool:
        streams = pool.map(ask, visitors(seed=40, max_tokens=60)[:8])
        for _ in range(6):
            begun.acquire()
        service.drain(1)
drained = pd.DataFrame(streams)
print(f"{(drained['error'] == '').sum()} of {len(drained)} answered; the router knows")
print(httpx.get(service.url.replace("/v1", "/list_workers")).json()["urls"])

# %% tags=["remove-cell"]
assert not drained["error"].any()

# %% [markdown]
# ## Watch both
#
# Each server has a page of figures. What is true of the service? **Take each counter's growth first, then the sum**,
# since a restart sets a counter to zero. A gauge such as requests under way is summed; a share, such as cache in use,
# is not. A *histogram* is a row of counters, one for each bound: how many first tokens came within it. So histograms
# are summed as well, bucket by bucket. A quantile is found last, in the sum: the bucket in which 95 % are reached, and
# in it a straight line, as Prometheus' `histogram_quantile` does.
#
# To see that the order matters, one server gets 72 visitors and the other three long prompts at once.


# %%
def p95(buckets):
    """Seconds; `buckets` counts what came within each bound, the last one infinite."""
    wanted, lower, below = 0.95 * buckets.iloc[-1], 0.0, 0.0
    for bound, count in buckets.items():
        if count >= wanted:
            return lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count


# %%
def histograms():
    """The TTFT histogram of each server now."""
    with lesson.watching.Watch(service) as watch:
        pass  # one look
    rows = watch.samples[watch.samples["name"] == lesson.watching.TTFT]
    rows = rows.assign(le=rows["le"].astype(float)).sort_values("le").set_index("le")
    return [rows.loc[rows["source"] == url, "value"] for url in service.servers]


# %%
def at_server(number):
    return lambda request: nullcontext(f"{service.servers[number]}/v1")


many = visitors(seed=60, max_tokens=1) + visitors(seed=61, max_tokens=1)
long = [
    lesson.load.Request(n, text, encoded("", text), max_tokens=1)
    for n, text in enumerate(workload.prompts_of([690] * 3, tokenizer))
]

# %% tags=["nbval-ignore-output"]
with progress.wait("72 short prompts to one server, three long ones to the other"):
    service.start(1)
    before = histograms()
    asked = [lesson.load.send(many, at_server(0), users=1)]
    asked += [lesson.load.send(long, at_server(1), users=3)]
both = [now.sub(then, fill_value=0) for now, then in zip(histograms(), before)]
# your line: one histogram of both
merged = both[0] + both[1]

# %% tags=["nbval-ignore-output"]
each, asked = [p95(one) for one in both], pd.concat(asked)
mean, exact = sum(each) / 2, (asked["first_s"] - asked["sent_s"]).quantile(0.95)
print(f"P95 of TTFT: {each[0]:.2f} s and {each[1]:.2f} s, their mean {mean:.2f} s;")
print(f"of both together {p95(merged):.2f} s:", end=" ")
print(f"the mean is {mean / p95(merged):.2f} times that.")
print(f"The clients' own times have a P95 of {exact:.2f} s.")
counts = [one.iloc[-1] for one in both]
print(f"They had {counts[0]:.0f} and {counts[1]:.0f} first tokens to tell of.")

# %% [markdown]
# Three of 75 are 4 %, so the P95 of all lies among the visitors at the other server. The mean gives the three as much
# weight as the 72, and three values hardly have a P95. Where in a bucket the values lie, the merged histogram cannot
# know: compare with the clients' own times. vLLM's bounds are fixed (…, 0.1, 0.25, 0.5, 0.75, 1, 2.5 s, …), and these
# servers use the same. So promise a limit that is a bound: the *share* within 0.25 s is exact, in one server and in the
# sum; only a quantile between two bounds is a guess.
#
# ### An error budget, and one alert
#
# The objective: 99 of 100 attempts are answered. So 1 % may fail: the *error budget*. The *burn rate* is how many times as
# fast as allowed it is being spent. At 14.4, a budget for 30 days loses 2 % in an hour, which is
# [worth waking somebody](https://sre.google/workbook/alerting-on-slos/). The window here is 2 s, for a demonstration: it
# would wake somebody for anything. Below it stands what Prometheus gets.

# %% tags=["nbval-ignore-output"]
window_s, limit, tried = 2, 14.4, lesson.watching.ATTEMPTS
failures = lesson.watching.increase(samples, tried, window_s, outcome="failure")
attempts = lesson.watching.increase(samples, tried, window_s)
# your line: how many times as fast as 1 of 100
burning = failures / attempts / (1 - 0.99)

# %% tags=["nbval-ignore-output"]
alarm = burning[burning > limit]
calm_most = burning[burning.index < killed_s].max()
print(f"Before the kill at most {calm_most:.1f}; after it {burning.max():.0f}.")
fires = f"fires {alarm.index[0] - killed_s:.1f} s after the kill." if len(alarm) else ""
print("The alert", fires or "stays silent.")

# %%
rules = lesson.watching.RULES.read_text()
start = rules.index("      - record: router:error_budget")
print(rules[start : rules.index("labels:")].rstrip())

# %% tags=["remove-cell"]
assert (alarm.index > killed_s).all()

# %% tags=["nbval-ignore-output"]
lines = {f"burn rate, in windows of {window_s} s": burning}
for gauge in ("vllm:num_requests_running", "vllm_router_worker_health"):
    lines[f"sum({gauge})"] = lesson.watching.total(samples, gauge)
marks = {"killed": killed_s, "noticed": noticed_s}
summary = lesson.watched_summary(lines, marks)
charts.show(lesson.watched(lines, marks, limit), summary)
print(summary)

# %% [markdown]
# `inflight/lessons/replicas/dashboard.json`, for Grafana, asks for the same with windows of five minutes, and for the merged P95.
#
# How could these figures mislead? The router counts *attempts*, and calls one a success when an answer begins. So what it
# counted is not what clients saw:

# %% tags=["nbval-ignore-output"]
said = lesson.watching.total(samples, tried, outcome="success").max()
asked = len(calm) + len(rows)
print(f"Clients: {asked} streams, {broken.sum()} of them broken off.")
print(f"Router: {said:.0f} attempts succeeded, {failed:.0f} failed.")

# %% [markdown]
# The failures were repeated at the other server, and no client noticed them; the broken streams are among the successes. So
# requests that no user missed burn this budget, and streams that users lost do not. Measure a promise to users where users
# are: at the client, or at a gateway that sees streams end.
#
# ## Turn the knob
#
# `cache_aware` goes by load alone while one server is ahead of the other by more than `balance_abs_threshold` requests
# (64 by default) and has more than `balance_rel_threshold` times as many. With four users nobody is ever 64 ahead. Set
# the first to 0, 1 and 2. What does it cost, and what gets evener? The policy looks only at what is under way; with
# four users, whoever has fewer requests under way soon gets the next one, so expect the share of the busier to fall
# with the mean lead; few rounds may not show it. Compare no TTFT here: the row for 64 is from the rounds further up,
# and these did not take turns with them.

# %% tags=["nbval-ignore-output"]
ahead = 0  # then try 1 and 2
service.route("cache_aware", balance_abs_threshold=ahead)
knob = {ahead: [measure(router, seed) for seed in range(3)]}
knob[64] = routed["cache_aware"][:3]
charts.table(medians(knob, "balance_abs_threshold"), decimals=2)

# %% [markdown]
# ## Elsewhere
#
# What runs this on many machines. Only the first row was run here (0.1.17; the linked page gives other defaults than its
# `--help`); the others are what their makers say.
#
# | | what it is | how it chooses, prefill and decode apart |
# |---|---|---|
# | [vllm-router](https://github.com/vllm-project/router/blob/301790e790349e27a752632516df438717825c81/docs/load_balancing/README.md) | one program in front of OpenAI's protocol | the policies above, `power_of_two`; `kv_aware`, by blocks that servers report; `--vllm-pd-disaggregation` |
# | [Kubernetes: the gateway's inference extension](https://kubernetes.io/blog/2025/06/05/introducing-gateway-api-inference-extension) | an *endpoint picker* beside a gateway such as Envoy's; servers are an `InferencePool` | by what the servers report of themselves, such as queues and caches |
# | [llm-d](https://llm-d.ai/docs/architecture/architecture) | vLLM and that gateway on Kubernetes, put together | [prefix-aware, load-aware](https://llm-d.ai/docs/getting-started); [prefill and decode on different pods](https://llm-d.ai/docs/architecture/Components/disagg_prefill-decode) |
# | [NVIDIA Dynamo](https://docs.nvidia.com/dynamo/latest/components/router/disaggregated-serving) | a frontend and router over vLLM, SGLang and TensorRT-LLM | by blocks that servers report; a prefill router and a decode router |
#
# *Prefill and decode apart* means that one server computes a prompt, sends its KV cache over the network, and another one
# writes the answer. In production, look for `vllm_router_worker_health`, `vllm_router_retries_total` and
# `vllm:time_to_first_token_seconds`.
#
# ## What breaks
#
# **All servers gone.** Then there is nobody to repeat a request with, and the client is told so:

# %% tags=["nbval-ignore-output"]
service.kill(0)
service.kill(1)
nobody = lesson.load.stream(service.url, visitors(50)[0])
print(f"{nobody['error']} after {nobody['last_s'] - nobody['sent_s']:.1f} s")
stack.close()

# %% [markdown]
# Most of that time is pauses: router and client try several times, each time after a longer one.
#
# **A key that the router does not have.** The router has none of its own and hands on what the client sends
# (`Authorization`). Who has no key gets no answer from a server, but may add and remove servers, and one that somebody
# adds is sent your users' prompts and their keys: keep the router's port behind a gateway that lets `/v1` through
# alone.
#
# ## Recap
#
# - A router is a function from a request and what is known of the servers to a server. What it saves is what a server need
#   not compute again.
# - By prefix, a system prompt is computed once, not once a server: it pays for long where one cache cannot hold all.
#   The price: a busy desk makes a busy server.
# - A request without a first byte may be sent again; a stream that has begun may not. Draining loses nothing.
# - Add up each counter's growth, merge histograms bucket by bucket, and take the quantile last; a mean of P95s is not a P95.
# - An alert on the burn rate asks how fast the budget goes. Know what its counters count: attempts are not users.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A third server is added. What does round robin do to the prompt tokens, and what does by
# prefix?</summary>
#
# Round robin computes each system prompt on three servers: half as much again of what is common. By prefix each is
# computed once. With the ten lines above no desk moves: the new server gets new desks only, and idles until they come.
# </details>
#
# <details><summary>2. Server A had 1,000 answers with a P95 of 0.2 s, server B 10 with a P95 of 8 s. What is the P95 of the
# service?</summary>
#
# About 0.2 s: ten of 1,010 are 1 %, and cannot fill the highest 5 %; the rest of it is A's. The mean says 4.1 s.
# </details>
#
# <details><summary>3. A stream breaks off after "The answer is". May your gateway ask another server and append what it
# says?</summary>
#
# Only if it sends the words so far along as the beginning of the answer, and nobody minds that other words may follow than
# would have.
# </details>
#
# Now [do the lab]({lab}), and write a policy that holds when a desk is hot, a server slow, or dead.
