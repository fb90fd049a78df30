# %% [markdown]
# # {heading}
#
# Four exercises, about {minutes} minutes, of which {core} are *Core*. You write a policy that holds when a desk is hot,
# a server slow, or dead; it runs in front of two real servers. Then you find one P95 through a restart, and the minutes
# in which somebody is woken. *Further*: a hash that keeps chats together and still looks at load.
#
# You need the lecture. A check never stops you: it says *done*, *not done yet*, or what to look at.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it
# has not been run.
#
# {navigation}

# %% [markdown]
# ## Set up

# %%
import random
import runpy
import tempfile
import threading
from pathlib import Path

import pandas as pd
from IPython.display import display

from inflight import CourseError, engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig
from inflight.lessons import replicas as lesson
from inflight.notebook import check, progress

workdir = tempfile.TemporaryDirectory()

# %% [markdown]
# ## Exercise 12.1: a policy for every day
#
# *Core · importance 5/5 · difficulty 4/5 · 25 minutes*
#
# `choose(request, servers)` sees `request.prefix`, the text that the prompt begins with, and of each server its `name`,
# `under_way` (requests that it has and has not answered), and `is_healthy`, as the last health check found it. It
# returns one of the servers. The list is a new one each time: keep names in `self`, not objects.
#
# The check plays seven hidden days of 240 requests: even desks, hot desks, one desk that has nearly all visitors, a
# server that is three times as slow, one that dies, three servers, and small caches, which hold 14 of 24 desks each.
#
# - Nothing is sent to a server that is known to be dead.
# - Yours computes at most 0.75 times round robin's blocks of system prompts on the six days on which caches never fill,
#   and at most 0.6 times on the last.
# - After an arrival, the fullest server is ahead of the emptiest by at most 2 requests, on average over all days.
#
# The last two pull in different directions. When may a visitor be sent away from home? (*Doing nothing* in the
# check's table is round robin.)


# %%
# %%writefile {workdir.name}/policy.py
class Policy:
    def __init__(self):
        self.homes = {}

    def choose(self, request, servers):
        # BEGIN SOLUTION
        # LAB: return None
        alive = [one for one in servers if one.is_healthy]
        emptiest = min(alive, key=lambda one: one.under_way)
        homes = self.homes.setdefault(request.prefix, set())
        known = [one for one in alive if one.name in homes]
        best = min(known, key=lambda one: one.under_way, default=emptiest)
        if best.under_way >= emptiest.under_way + 4:
            best = emptiest  # a second home, from now on
        homes.add(best.name)
        return best
        # END SOLUTION


# %%
check("12.1", Path(workdir.name) / "policy.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <code>by_prefix</code>, and its <em>Turn the knob</em>: what does a router do when one server is ahead,
# and what does that cost?
# </details>
#
# <details><summary>How to begin</summary>
#
# Give each prefix a home (<code>by_prefix</code>), another if it dies. Then the exception: by how many requests may
# home be ahead, and is the server that helps out forgotten afterwards?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>Mean lead</em> too large: your homes are right, and hot. <em>Blocks computed</em> too many: you leave home too
# easily, or forget that a prefix may have two homes; with <em>small caches</em>, too many prefixes have two. <em>Known to
# be dead</em>: a remembered home is used without a look at <code>is_healthy</code>.
# </details>

# %% [markdown]
# And in front of two real servers, whose caches have room for five desks each: eight desks, of which one has half of the
# 48 visitors, eight at a time. Your policy chooses, then round robin.

# %% tags=["nbval-ignore-output"]
build = BuildConfig(max_input_len=736, max_seq_len=768, max_batch_size=4)
with progress.wait("The engine, built the first time"):
    engine_dir = engine.cached(fetch(), build)
tokenizer = load_tokenizer(engine_dir)
[instructions] = workload.prompts_of([225], tokenizer)
small = {"enable_kv_cache_reuse": True, "max_tokens_in_paged_kv_cache": 34 * 32}


# %%
def visitor(name, desk, number):
    system, question = f"{name} {desk} {instructions}", f"Visitor {number:02}?"
    messages = [("system", system), ("user", question)]
    messages = [{"role": role, "content": text} for role, text in messages]
    return lesson.load.Request(desk, tokenizer.encode_chat(messages))


# %%
def sending(policy):
    """Sends each request where the policy says."""
    views, lock = [lesson.simulate.ServerView(n) for n in "01"], threading.Lock()

    def ask(request):
        asked = lesson.simulate.Asked(f"Desk {request.desk}")
        with lock:
            chosen = policy.choose(asked, list(views))
            chosen.under_way += 1
        row = lesson.load.stream(f"{service.servers[int(chosen.name)]}/v1", request)
        with lock:
            chosen.under_way -= 1
        return row

    return ask


# %%
def served(policy, name):
    """Send the visitors where the policy says, and count prompt tokens and requests."""
    order = random.Random(1).choices(range(8), [7, 1, 1, 1, 1, 1, 1, 1], k=48)
    sent = [visitor(name, desk, number) for number, desk in enumerate(order)]
    rows = lesson.load.send(sent, sending(policy), users=8)
    rows = lesson.load.traced(rows, service)
    busier = rows["server"].value_counts().max()
    return {
        "prompt tokens computed": int(rows["computed"].sum()),
        "requests at the busier server": busier,
    }


# %% tags=["nbval-ignore-output"]
Own = runpy.run_path(f"{workdir.name}/policy.py")["Policy"]
policies = {"yours": Own(), "round robin": lesson.simulate.InTurn()}
some = lesson.simulate.Asked("Desk 1"), [lesson.simulate.ServerView(n) for n in "01"]
if Own().choose(*some) is None:
    print("Your choose() returns None, so round robin runs alone.")
    del policies["yours"]
try:
    with (
        progress.wait("Two servers, and both policies"),
        lesson.Replicas(engine_dir, **small) as service,
    ):
        rows = [served(policy, name) for name, policy in policies.items()]
    display(pd.DataFrame(rows, list(policies)))
except CourseError as error:
    print(error)

# %% [markdown]
# ## Exercise 12.2: one P95, through a restart
#
# *Core · importance 5/5 · difficulty 3/5 · 25 minutes*
#
# Prometheus has looked at the pages of a service a few times. Each look is a dict by server; a server that was dead has
# no page in it, and one that joined has none before. A page is a histogram: a dict from a bound in seconds to how many
# values up to it that server has counted since its start, in ascending order; the last bound is infinite. After a restart
# a server begins at zero.
#
# What is the P95 of all that was counted between the first look and the last? In the bucket in which 95 % are reached,
# go on in a straight line from its lower bound (0 for the first) to its upper one. Where 95 % are reached only beyond
# the last finite bound, that bound is the answer, as in Prometheus.


# %%
def one_p95(looks: list[dict[str, dict[float, int]]]) -> float | None:
    """The P95 of what all servers counted from the first look to the last."""
    # BEGIN SOLUTION
    # LAB: return None
    grown, latest = {}, dict(looks[0])
    for look in looks[1:]:
        for server, page in look.items():
            before = latest.get(server, {})
            if page[float("inf")] < before.get(float("inf"), 0):
                before = {}  # it has restarted
            for bound, count in page.items():
                more = count - before.get(bound, 0)
                grown[bound] = grown.get(bound, 0) + more
            latest[server] = page
    wanted, lower, below = 0.95 * grown[float("inf")], 0.0, 0
    for bound, count in grown.items():
        if count >= wanted:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    # END SOLUTION


# %%
check("12.2", one_p95)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <em>Watch both</em>: growth, then the sum, and the quantile last. A bucket is a counter.
# </details>
#
# <details><summary>How to begin</summary>
#
# Remember for each server the page that it had last, whether or not it is in the look before. How do you see that it
# has restarted since? Add what each bucket has grown to one histogram for all.
# </details>
#
# <details><summary>The error you see</summary>
#
# The hint names what you have computed: the sum first, a mean of P95s, all since the start, a restart that was not
# seen. A division by zero: interpolate only in the bucket in which 95 % are reached.
# </details>

# %% [markdown]
# ## Exercise 12.3: when to wake somebody
#
# *Core · importance 4/5 · difficulty 3/5 · 20 minutes*
#
# The lecture's alert, by hand. `minutes` has a pair for each minute: requests that ended whole, and requests that
# failed. Somebody is woken in each minute in which failures are too frequent both over the last 60 minutes and over the
# last five, this one included. They are too frequent if, with even traffic, an hour of them spends more than `share` of
# the error budget that `slo` leaves for `days`. Return the numbers of these minutes, from 0. At the beginning a window
# has the minutes that there are. Where nobody came, nothing fails.


# %%
def woken(minutes: list, slo: float, days: int, share: float) -> list[int] | None:
    """The minutes in which somebody is woken."""
    # BEGIN SOLUTION
    # LAB: return None
    most = share * days * 24 * (1 - slo)

    def failing(window):
        whole, failed = map(sum, zip(*window))
        return failed / max(1, whole + failed)

    found = []
    for end in range(1, len(minutes) + 1):
        hour, five = (failing(minutes[max(0, end - n) : end]) for n in (60, 5))
        if hour > most and five > most:
            found.append(end - 1)
    return found
    # END SOLUTION


# %%
check("12.3", woken)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture: at a burn rate of 14.4, an hour takes 2 % of a budget for 30 days. Where does 14.4 come from, and of what
# is it a multiple?
# </details>
#
# <details><summary>How to begin</summary>
#
# At a burn rate of 1 the budget lasts exactly all <code>days</code>. Which share of it does an hour spend at that rate,
# and how many requests fail? Then write the share of failed requests in one window.
# </details>
#
# <details><summary>The error you see</summary>
#
# The hint names what you have computed: one window alone, either of the two, a mean of the minutes' shares, a share
# without the window. A division by zero: nobody came.
# </details>

# %% [markdown]
# A day with a minute in which a fifth of the requests fail, half an hour in which a tenth do, and from minute 300 on one
# of a hundred. Which of these wakes somebody?

# %%
day = [(600, 0)] * 300 + [(594, 6)] * 180
day[100], day[200:230] = (480, 120), [(540, 60)] * 30
found = woken(day, slo=0.999, days=30, share=0.02) or []
print("Woken", f"from minute {min(found)} to {max(found)}" if found else "never")

# %% [markdown]
# The failures from minute 300 on spend the budget ten times as fast as allowed, and this rule sleeps. The
# [workbook's](https://sre.google/workbook/alerting-on-slos/) second, 6 over six hours, would not.

# %% [markdown]
# ## Exercise 12.4: a hash with a bound
#
# *Further · importance 4/5 · difficulty 4/5 · 25 minutes*
#
# Two routers share no memory, so a table of homes is of no use to them: both must compute the same home from the prefix
# alone. A digest of the prefix modulo the number of servers does, but with a third server two of three desks move. A
# hash that moves only what the new server takes is called *consistent*. The router's `consistent_hash` is one, and
# never looks at load. Write `home(prefix, under_way)`, which does. `under_way` has each server's requests under way,
# without this one.
#
# - A server that joins takes its share, and no prefix moves between the old ones.
# - No server gets more than its bound: 1.25 times (all requests under way, this one included) / servers, rounded up.
# - A prefix leaves its home only when that is full, and then for the same second one, if that has room.
# - What a full server sends away goes to all the others, not to one neighbour.
#
# Python's own `hash` of a text differs from process to process: take `hashlib`.


# %%
def home(prefix: str, under_way: dict[str, int]) -> str | None:
    """One of the servers: the same in every process, and for every order of them."""
    # BEGIN SOLUTION
    # LAB: return None
    import hashlib
    import math

    def score(server):
        return hashlib.sha256(f"{server} {prefix}".encode()).digest()

    bound = math.ceil(1.25 * (sum(under_way.values()) + 1) / len(under_way))
    return max((one for one in under_way if under_way[one] < bound), key=score)
    # END SOLUTION


# %%
check("12.4", home)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# Two names to look up: <em>hash ring</em> and <em>rendezvous hashing</em>. With a bound: <em>consistent hashing with
# bounded loads</em>.
# </details>
#
# <details><summary>How to begin</summary>
#
# Each prefix has an order of all servers. What decides it, so that a new server changes no old one's place before
# another? Then go through that order until somebody has room.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>Moved between the two old servers</em>: the number of servers is in your hash. <em>Smallest share</em>: one point
# on the ring for each server splits it unevenly; the router gives each 160. <em>Beyond the bound</em>: is the new request
# counted? <em>Second home</em>: the emptiest is not always the same server.
# </details>

# %% [markdown]
# ## Bonus
#
# 1. Let your policy forget a home that has not been asked for a while. What does the check's last row say?
# 2. `promtool test rules rules_test.yml` (Debian's package `prometheus`), in `inflight/lessons/replicas/`, plays two
#    kills, and a restart of the router between them. Write a rule that sums first and then takes the growth, and a test
#    of what it says in that restart.

# %% [markdown]
# ## Elsewhere
#
# The service moves. Which of these still holds?
#
# **1.** *To servers whose prompts share nothing.* "My policy beats round robin."
#
# <details><summary>Answer</summary>
#
# Not in tokens: there is nothing to find. In waiting, yes, where answers differ in length: it looks at load, and round
# robin does not.
# </details>
#
# **2.** *To two routers, each with half of the requests.* "`under_way` says how busy a server is."
#
# <details><summary>Answer</summary>
#
# Half of it: each router counts its own requests. Ask the servers (<code>vllm:num_requests_running</code> and
# <code>_waiting</code>).
# </details>
#
# **3.** *To an objective of 90 %.* "A burn rate of 14.4 wakes somebody."
#
# <details><summary>Answer</summary>
#
# Never: 14.4 times 10 % is more than all requests. With a large budget the highest burn rate is 10.
# </details>

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}.
