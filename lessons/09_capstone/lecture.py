# %% [markdown]
# # {heading}
#
# {minutes} min, an estimate. Afterwards you will be able to
#
# - **tune** a deployment to a contract, and say what each setting bought;
# - **rehearse** a setting before you measure it, and say what a rehearsal leaves out;
# - **decide** what happens on the day when twice as many requests come.
#
# You need lessons 04 and 05: slots, the blocks of the KV cache, reuse, the two policies. Engine, repository and server
# are made here. To begin in the middle, click a cell and choose *Run All Above Selected Cell* in the menu *Run*. A line
# under `# your line:` is for you: delete it, write it yourself, and compare with what is folded below.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A railway shows short news on the screens of its stations. An editor pastes an article, and two sentences come back.
# You are given the default deployment, and a contract:
#
# > At this load, at least 90 % of all requests are in time: the first token comes within a limit, and the ITL stays
# > within another. The KV cache takes at most 64 MiB.
#
# Tokens per second do not count here. What counts is *goodput*: the requests per second
# that are in time. A late answer is worth nothing, since the traveller has left the platform.

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import plotly.express as px

from inflight import CourseError
from inflight.lessons import capstone as lesson
from inflight.lessons.capstone import service, tuning_board
from inflight.notebook import charts, parts, progress, widgets

# %% [markdown]
# ## Predict
#
# Every prompt begins with the same house rules; the article after them is always a new one. You may turn one knob of
# the default deployment. Commit yourself:

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %%
knobs = {
    "more slots": {"max_batch_size": 16},
    "fewer bytes per token": {"kv_cache_quant_algo": "INT8"},
    "rules computed once": {"enable_kv_cache_reuse": True},
    "pauses": {"batch_scheduler_policy": "max_utilization"},
}
guess = widgets.predict(
    "Which knob alone brings the most requests in time?",
    [f"{name}: {next(iter(setting))}" for name, setting in knobs.items()],
    given=prediction,
)
guess

# %% [markdown]
# ## The contract on this machine
#
# A load that is hard for a laptop is nothing for a GPU. So the contract is written for one machine, and scaled to
# yours. What matters of a machine are three prices: what an iteration costs by itself, what each answer in it adds, and
# what each token of a prompt adds. `service.prices` sends eight requests at once, twice, and reads all three from the
# iteration log, as lesson 04 does.

# %% tags=["nbval-ignore-output"]
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
with progress.wait("The default deployment starts, and its prices are measured"):
    server = service.start(f"{workdir.name}/repo", log_path)
    prices = service.prices(server, log_path)
brief = service.BRIEF.at(prices)
print(f"An iteration {prices.iteration_ms:.1f} ms, each answer {prices.answer_ms:.2f},")
print(f"each token of a prompt {prices.prompt_token_ms:.2f}.\n\n{brief}")
assert brief.memory_mib == 64

# %% [markdown]
# ## On paper
#
# What do users ask for, and how many requests per second can the engine serve at most?

# %%
asked = pd.DataFrame(service.requests(brief, seed=1, number=100))
rules = len(service.tokenizer().encode(service.HOUSE_RULES))
prompt, answer = asked["input_len"].mean(), asked["max_tokens"].mean()
print(
    f"A prompt has {prompt:.0f} tokens, {rules} of them rules; an answer {answer:.0f}."
)
# your line: how many tokens of KV cache fit into the contract's memory
room = brief.memory_mib * 2**20 // service.BYTES_PER_TOKEN[None]
slots = room / (prompt + answer)
print(
    f"{room:.0f} tokens of cache: blocks for {slots:.1f} requests at a time on average."
)
assert slots < 8

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>room = brief.memory_mib * 2**20 // service.BYTES_PER_TOKEN[None]</code>
# </details>
#
# So the engine has eight slots, and blocks for half of them. A request takes engine time in two ways. Each token of its
# prompt is computed. And for each token of its answer there is an iteration, whose price it shares with those beside
# it.


# %% tags=["nbval-ignore-output"]
def at_most_per_s(computed):
    """Requests per second, where `computed` tokens of each prompt are computed."""
    in_prompt_ms = computed * prices.prompt_token_ms
    # your line: the milliseconds of its answer, where `slots` requests share iterations
    in_answer_ms = answer * (prices.iteration_ms / slots + prices.answer_ms)
    return 1000 / (in_prompt_ms + in_answer_ms)


print(f"default:             at most {at_most_per_s(prompt):.2f} per second")
print(f"rules computed once: at most {at_most_per_s(prompt - rules):.2f}")
print(f"the contract:                {brief.rate:.2f}")
assert at_most_per_s(prompt - rules) > at_most_per_s(prompt)

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>in_answer_ms = answer * (prices.iteration_ms / slots + prices.answer_ms)</code>
# </details>
#
# When more requests come than can be served, the queue grows for as long as they come, and so does the TTFT. But even
# below that limit a request may wait: for a burst to pass, or for blocks that are promised to others. The formula knows
# nothing of that.
#
# ## Rehearse
#
# A *rehearsal* does. The engine's own scheduler and KV cache play the requests, and a clock adds up the prices. No
# model runs and nobody waits. A seed stands for other articles at other times; a setting is judged over three, with 100
# requests each.


# %% tags=["nbval-ignore-output"]
def rehearse(settings, load=1, seeds=(1, 2, 3), number=100):
    trial = replace(brief, rate=load * brief.rate)
    return service.rehearse(settings, trial, seeds, number)


played = {
    name: rehearse(setting)
    for name, setting in progress.over(
        {"default": {}, **knobs}.items(), "Rehearse", "{0[0]}".format
    )
}
assert all(len(each.requests) == 300 for each in played.values())
pd.DataFrame({name: each.row() for name, each in played.items()}).T

# %% tags=["nbval-ignore-output"]
best = max(knobs, key=lambda name: played[name].met)
kept = [name for name, each in played.items() if each.keeps]
print(guess.score(best))
print("These keep the contract:", *(kept or ["none"]))

# %% [markdown]
# Read each row as a diagnosis. *First token late*: the request waited, for a slot, for blocks, or for the engine's work
# on others. *ITL too high*: too much was computed in the iterations that it shared, prompts of others above all. Here
# is each request of two rows:

# %% tags=["nbval-ignore-output"]
two = {name: played[name] for name in ("default", "fewer bytes per token")}
charts.show(lesson.requests_in_time(two, brief), lesson.in_words(two))

# %% [markdown]
# Each mark is a request. Those in the shaded corner are in time; to the right of it the first token was late, above it
# the ITL was too high. With fewer bytes per token more requests find blocks, so fewer wait. But more of them share each
# iteration, and the work is the same. A knob moves what is short, and then something else is short.
#
# ## See
#
# How much load does a setting bear? Rehearse both at several loads:

# %% tags=["nbval-ignore-output"]
rows = []
ways = [(name, load) for name in ("default", best) for load in (0.5, 0.75, 1, 1.5, 2)]
for name, load in progress.over(ways, "Rehearse", "{0[0]} at {0[1]} times".format):
    share = rehearse(knobs.get(name, {}), load).share
    rows.append((name, load * brief.rate, 100 * share))
curves = pd.DataFrame(rows, columns=["setting", "load", "in time"])
assert len(curves) == 10

# %% tags=["nbval-ignore-output"]
figure = px.line(curves, x="load", y="in time", color="setting", markers=True)
corner = {"x0": brief.rate, "x1": 2.1 * brief.rate, "y0": 90, "y1": 102}
figure.add_shape(
    type="rect", **corner, layer="below", fillcolor="#DDF1EA", line_color="#009E73"
)
figure.update_layout(xaxis_title="load (requests/s)", yaxis_title="in time (%)")
figure.update_yaxes(range=[0, 102])
summary = (
    "Share of requests in time against the load, rehearsed, a line per setting. "
    + ("; ".join(f"{name} at {x:.2f} per second: {y:.0f} %" for name, x, y in rows))
)
charts.show(figure, summary)

# %% [markdown]
# The shaded corner is the contract: this load or more, and at least 90 % in time. A setting keeps it if its line passes
# through the corner. Along the upper edge of all lines you can have more load or more in time, but not both: that edge
# is the *Pareto front*. Tuning moves it up and to the right.
#
# ## Run
#
# Now for real. The dashboard edits the deployment, loads it, and sends the service's requests, each run with other
# articles at other times. First the default and the best knob, each once.

# %% tags=["nbval-ignore-output"]
number = 16
board = tuning_board.TuningBoard(server, brief, number, parts.part("scheduler"))
for setting in progress.over(({}, knobs[best]), "Run", str):
    board.set(setting).run()
board

# %% tags=["nbval-ignore-output"]
for name, run in zip(("default", best), board.runs):
    print(f"{name}: {run.met} of {number} in time")
assert [len(run.requests) for run in board.runs[:2]] == [number] * 2

# %% [markdown]
# How could this mislead? Sixteen requests make steps of 6 %, so such a run cannot tell 90 % from 80 %. And it ends
# after seconds, when an overload has hardly begun. It can show that a setting fails, or that the rehearsal is wrong.
#
# **Try in the dashboard:** `INT8` alone, and look at the ITL; the same with chunked context and a `max_num_tokens` of
# 128; `mine` as the scheduler. Then run your best setting again: does it stay where it was?
#
# ## Explain
#
# How near was the rehearsal? Play the same two runs, with the same articles at the same times, and compare:

# %% tags=["nbval-ignore-output"]
rows = []
for seed, run in enumerate(board.runs[:2], tuning_board.FIRST_SEED):
    again = rehearse(run.deployment, 1, [seed], number)
    for way, each in (("measured", run), ("rehearsed", again)):
        medians = each.requests[["ttft_ms", "itl_ms"]].median().round()
        rows.append((str(run.deployment), way, each.met, *medians))
columns = ["settings", "way", "in time", "median TTFT (ms)", "median ITL (ms)"]
assert len(rows) == 4
pd.DataFrame(rows, columns=columns).set_index("settings")

# %% [markdown]
# A rehearsal leaves out the models for text, the messages between processes, the client on the same cores, and whatever
# else your machine does. Its prices come from two bursts. So use it to compare settings, and say that it was a
# rehearsal when you report its figures.
#
# ## What is short?
#
# Take one limit away at a time, in rehearsal. The limit that helps is the one that was short:

# %% tags=["nbval-ignore-output"]
once = knobs["rules computed once"]
trials = {
    "as it is": (once, brief),
    "twice the slots": (once | {"max_batch_size": 16}, brief),
    "four times the memory": (once, replace(brief, memory_mib=256)),
    "twice as fast": (once, replace(brief, prices=prices.times(0.5))),
}
in_time = {}
for name in progress.over(trials, "Rehearse"):
    setting, trial = trials[name]
    in_time[name] = service.rehearse(setting, trial, (1, 2, 3), 100).met
pd.Series(in_time, name="in time, of 300")

# %% [markdown]
# Nobody gives you four times the memory, or a machine that is twice as fast. But there are knobs that act like it.
# Fewer bytes per token, or a policy that promises fewer blocks, are like more memory. Computing less of each prompt is
# like a faster machine. Which of them go together, you find out in the lab.
#
# ## Twice the load
#
# On Monday twice as many requests come, more than any setting here can serve. So some of them fail, and you choose
# which:
#
# - **Queue**: all are let in, and wait.
# - **Shed**: `max_queue_size` bounds the queue. A request that finds it full is refused at once.
# - **Time out**: `allotted_time_ms` bounds the whole request, its wait included. One that takes longer is ended.

# %% tags=["nbval-ignore-output"]
# After this time, in milliseconds, nobody wants the answer any more.
too_late = round(2 * brief.objective.ttft_ms)
ways = {
    "queue": once,
    "shed": once | {"max_queue_size": 2},
    "time out": once | {"allotted_time_ms": too_late},
}
crowded = {
    name: rehearse(setting, load=2)
    for name, setting in progress.over(ways.items(), "Rehearse", "{0[0]}".format)
}
pd.DataFrame({name: each.row() for name, each in crowded.items()}).T

# %% tags=["nbval-ignore-output"]
two = {name: crowded[name] for name in ("queue", "shed")}
charts.show(lesson.requests_in_time(two, brief), lesson.in_words(two))

# %% [markdown]
# With an unlimited queue every request is answered, and the queue grows as long as the load lasts: the marks wander off
# to the right. Shedding keeps the wait short for those that are let in; the others hear at once, and can try elsewhere.
# A time-out ends requests on which the engine has already spent work.
#
# Measured once, with shedding, at twice the load:

# %% tags=["nbval-ignore-output"]
with progress.wait("A run at twice the load"):
    board.set(ways["shed"], load=2.0).run()
monday = board.runs[-1]
print(f"{monday.met} of {number} in time:", monday.row())
assert len(monday.requests) == number

# %% [markdown]
# Before a service goes live, close its control API and decide what to watch: [both are on a page of their
# own](../assets/going-live.md), with an attack that you can try.
#
# ## Elsewhere
#
# | | Here | TensorRT-LLM with engines | vLLM |
# |---|---|---|---|
# | Slots | `max_batch_size` of the engine | the same | `--max-num-seqs` |
# | Tokens in an iteration | `max_num_tokens` of the engine | the same | `--max-num-batched-tokens` |
# | Fewer bytes per token | `kv_cache_quant_algo="INT8"` | a checkpoint with `--kv_cache_dtype int8` or `fp8` | `--kv-cache-dtype fp8` |
# | Rules computed once | `enable_kv_cache_reuse` | the same; built with `--use_paged_context_fmha enable` | prefix caching, on by default |
# | Memory | `max_tokens_in_paged_kv_cache` | the same | `--gpu-memory-utilization` |
# | Shed | `max_queue_size` | the same | `--max-num-queued-reqs`, since July 2026; it counts running requests, too |
# | Time out | `allotted_time_ms` | its executor's `allottedTimeMs`, per request | the client disconnects |
#
# Triton has a `default_timeout_microseconds` in its queue policies. It bounds the wait in Triton's own queue, which an
# LLM backend empties at once, so it does not help here.
#
# ## What breaks
#
# A wrong setting is refused before anything is loaded, and the server goes on with what it had:

# %%
for settings in (
    {"max_batch": 16},
    {"max_num_tokens": 128},
    {"kv_cache_quant_algo": "FP8"},
):
    try:
        rehearse(settings)
    except CourseError as error:
        print(error)

# %% [markdown]
# ## Recap
#
# - Goodput counts the requests that are in time. A server above its limit may have much throughput, and hardly any
#   goodput.
# - Find out what is short before you turn a knob: work, slots or blocks. When one is no longer short, another is.
# - A late first token means waiting. A high ITL means that too much is computed in shared iterations.
# - A rehearsal compares settings over many requests. A measurement shows whether it can be trusted.
# - A queue without a limit makes everybody late. Shedding keeps the wait short for those that are let in.
#
# Three questions to answer without running anything:
#
# <details><summary>1. Requests miss the contract, and only by their ITL. Which knob first, and which one makes it
# worse?</summary>
#
# Less must be computed in each iteration: chunked context with a smaller <code>max_num_tokens</code>, or fewer slots.
# More slots make it worse. </details>
#
# <details><summary>2. Somebody puts the time, with minutes, in front of the house rules. What happens at this
# load?</summary>
#
# Reuse finds blocks of the same minute only: each minute the rules are computed again, by everybody who comes before
# the first has finished them. With the user's name in front there is no reuse at all, and the deployment is where it
# began. </details>
#
# <details><summary>3. A colleague raised <code>max_queue_size</code> from 4 to 400 because "users saw errors". What
# will users see now?</summary>
#
# Under too much load, late answers in place of early errors: the queue fills, and everybody waits for all of it.
# </details>
#
# Now [do the lab]({lab}): there the contract is to be kept.
#
# The server ends with this notebook's kernel (*Kernel → Shut Down Kernel*). Until then the dashboard goes on working.
