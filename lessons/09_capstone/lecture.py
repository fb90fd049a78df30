# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **tune** a deployment to a promise, and say which setting bought what;
# - **rehearse** a setting before you spend an hour on it, and know what a rehearsal leaves out;
# - **decide** what happens on the day when twice as many users come.
#
# You need nothing but this notebook. Your own scheduler joins in, if it has passed its check.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A railway shows short news on its stations' screens. Whoever is on duty pastes an article, and two sentences come
# back. There is a contract: so many requests a second, first tokens and gaps within limits, and a piece of memory. You
# get the default deployment, and the evening.
#
# Everything you have learned is a knob now. What counts is no longer tokens a second but **goodput**: the requests a
# second whose answer kept every limit. A late answer is worth nothing here, for the train has left.

# %% tags=["setup"]
import tempfile
from dataclasses import replace
from pathlib import Path

from inflight import CourseError
from inflight.notebook import progress

with progress.wait("Libraries, and the engine, which the first time is built"):
    import pandas as pd

    from inflight.checkpoint import load_tokenizer
    from inflight.lessons import capstone as lesson
    from inflight.lessons.capstone import service
    from inflight.notebook import charts, widgets

    tokenizer = load_tokenizer(service.engine_of(service.Deployment()))

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% [markdown]
# ## Predict
#
# All prompts begin with the same house rules; then comes an article that nobody has sent before. You may turn one knob
# of the default deployment, the memory stays as it is. Commit yourself:

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("09", "Predict")
knobs = {
    "more slots": {"max_batch_size": 16},
    "fewer bytes a token": {"kv_cache_quant_algo": "INT8"},
    "house rules once": {"enable_kv_cache_reuse": True},
    "pauses": {"batch_scheduler_policy": "max_utilization"},
}
guess = widgets.predict(
    "Which knob alone brings the most goodput?",
    [f"{name}: {next(iter(setting))}" for name, setting in knobs.items()],
    given=prediction,
)
guess

# %% [markdown]
# ## The brief
#
# Load and limits are written down for one machine. `service.pace` sends eight requests, three times, and says from the
# fastest how many times slower or faster yours is; `at` scales the brief, so that it is as hard for you. A lab GPU gets
# a larger load by the same line.

# %% tags=["setup", "long", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("09", "The brief")
workdir = tempfile.TemporaryDirectory()
with progress.wait("The default deployment starts, and its pace is taken"):
    server = service.start(f"{workdir.name}/repo")
    pace = service.pace(server, tokenizer)
brief = service.BRIEF.at(pace)
number = brief.number_in(seconds=8)
print(f"pace {pace:.2f}: {brief}")

# %% tags=["setup", "long"]
asked = service.requests(tokenizer, brief, seed=1)
rules = len(tokenizer.encode(service.HOUSE_RULES))
lengths = [request.input_len for request in asked]
answers = [request.max_tokens for request in asked]
print(
    f"prompts of {min(lengths)} to {max(lengths)} tokens, {rules} of them house rules"
)
print(f"answers of {min(answers)} to {max(answers)} tokens")
assert max(lengths) <= service.LONGEST_PROMPT and max(answers) <= service.LONGEST_ANSWER

# %% [markdown]
# ## On paper
#
# An iteration costs something by itself, something for each answer in it, and something for each token of a prompt.
# You read those prices from a log in lesson 04. They give the most requests a second that anybody could serve:

# %%
from inflight.notebook import catch_up

catch_up("09", "On paper")
from inflight.lessons.capstone import rehearsal

prices = rehearsal.PRICES
prompt, answer = sum(lengths) / len(asked), sum(answers) / len(asked)


def at_most_per_s(computed_tokens, slots):
    """Requests a second of an engine whose slots are always taken."""
    one_round_ms = prices.iteration_ms + slots * prices.answer_ms
    prompt_ms = computed_tokens * prices.prompt_token_ms
    return 1000 / (prompt_ms + answer * one_round_ms / slots)


room = service.BRIEF.memory_mib * 2**20 / service.BYTES_PER_TOKEN[None]
slots = room / (prompt + answer)
print(f"{room:.0f} tokens of cache: {slots:.1f} of 8 slots can be taken")
for name, computed in (("default", prompt), ("house rules once", prompt - rules)):
    print(f"{name}: at most {at_most_per_s(computed, slots):.2f} requests a second")
print(f"{service.BRIEF.rate:.2f} come")

# %% [markdown]
# The default is hopeless before it starts: more come than it could ever serve. But such a line knows nothing of slots that
# fill and empty, of bursts, or of blocks that are promised. So **rehearse**: the engine's own scheduler and cache play
# the requests, and a clock adds up the prices. No model runs, nobody waits, and the same seed gives the same figures on
# any machine.


# %% tags=["setup"]
def rehearse(settings, seed=1, number=100, brief=service.BRIEF):
    return service.rehearse(
        service.deployment(settings), replace(brief, number=number), tokenizer, seed
    )


one_knob = {
    name: rehearse(setting)
    for name, setting in progress.over(
        {"default": {}, **knobs}.items(), "Rehearse", "{0[0]}".format
    )
}
for name, served in one_knob.items():
    print(f"{name:20} {served.met:3} of 100 in time, keeps it: {served.keeps}")
assert not any(served.keeps for served in one_knob.values())

# %%
best = max(knobs, key=lambda name: one_knob[name].goodput)
print(guess.score(best))

# %% [markdown]
# Half of the work is gone when half of each prompt is found in the cache. Yet no knob keeps the promise alone: something
# else is short as soon as the first thing is not. P99 is about the worst minute, and in a burst the *slots* run out.
#
# ## Run
#
# Now for real. The dashboard edits the deployment, loads it, sends the service's requests, each run with other articles
# at other times, and adds a point. Pointing at it names the settings.

# %% tags=["setup", "long", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("09", "Run")
from inflight.lessons.capstone import tuning_board
from inflight.notebook import mine

scheduler = mine.part("scheduler")
board = tuning_board.TuningBoard(server, brief, {"mine": scheduler}, number)
print(repr(scheduler))

# %% tags=["nbval-ignore-output"]
both = knobs["house rules once"] | knobs["fewer bytes a token"]
tried = {"as it is": {}, "house rules once, fewer bytes a token": both}
for _, setting in progress.over(tried.items(), "Run", lambda item: item[0]):
    board.set(setting).run()
board

# %%
before, after = board.points[:2]
assert len(before.run.requests) == len(after.run.requests) == number
print("runs measured:", len(board.points))

# %% [markdown]
# The corner is the contract: P99 of TTFT within its limit, and nine of ten requests in time. Circles keep it, crosses do
# not. The line joins the runs that no other run beats in both. A run here is short, so that you can try many: when it
# ends, an overload has hardly begun, and the defaults may look better than they did on paper.
#
# **Try in the dashboard:** reuse with `max_utilization`; a `max_num_tokens` of 128 with chunked context (look at ITL);
# `mine` as scheduler; a `max_queue_size` of 4 without anything else. Then run your best setting once more:
# does it stay where it was? A setting that was lucky once is not tuned.
#
# ## Explain
#
# How near was the rehearsal to what you measured, on the same articles at the same times?

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("09", "Explain")
rows = []
for seed, served in enumerate(board.points, tuning_board.FIRST_SEED):
    played = service.rehearse(served.deployment, brief, tokenizer, seed, number)
    for way, run in (("measured", served), ("rehearsed", played)):
        rows.append({"settings": str(run.deployment), "way": way, "in time": run.met})
        rows[-1] |= {"TTFT P99 (ms)": run.ttft_p99_ms, "ITL P99 (ms)": run.itl_p99_ms}
assert len(rows) == 2 * len(board.points)
charts.table(pd.DataFrame(rows), decimals=0)

# %% [markdown]
# A rehearsal leaves out the text models, messages, the client on the same cores, and whatever else your machine does.
# So it is an optimist. It tells which of two settings is better, and why; how good a setting is, only a run tells.
# Whoever reports a rehearsal as a measurement deceives somebody, first of all themselves.
#
# ## A notebook as an experiment
#
# Clicking is for finding out. What you want to show others must run again without you. `deployment.ipynb` (in
# `assets/experiments`) has one deployment as its parameter. papermill runs it for each set of settings: each run leaves
# a notebook with all that it printed, and a result; one that fails leaves its error.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("09", "A notebook as an experiment")
from pathlib import Path

import papermill

from inflight.notebook import progress

EXPERIMENT = "../assets/experiments/deployment.ipynb"
once = knobs["house rules once"]
experiments = {
    "reuse, pauses": once | knobs["pauses"],
    "reuse, INT8, 16 slots": once | knobs["fewer bytes a token"] | knobs["more slots"],
    "more memory than there is": once | {"cache_tokens": 8192},
}
points, errors = list(board.points), []
for place, chosen in enumerate(progress.over(experiments.values(), "Experiment")):
    result = Path(workdir.name) / f"experiment-{place}.json"
    copy = result.with_suffix(".ipynb")
    given = {"settings": chosen, "result": str(result), "pace": pace, "number": number}
    try:
        papermill.execute_notebook(EXPERIMENT, copy, given, progress_bar=False)
        points.append(service.from_json(result.read_text()))
    except papermill.PapermillExecutionError as error:
        errors.append(error.evalue.splitlines()[0])
charts.show(lesson.pareto(points, brief), lesson.pareto_summary(points, brief))

# %%
assert len(points) == len(board.points) + 2 and len(errors) == 1
print(*errors)

# %% [markdown]
# Pointing at a mark names its settings; `board.set(experiments["reuse, pauses"])`
# takes those of an experiment over into its controls.
#
# Two very different settings do it: one pays with tokens computed twice, the other with precision of the cache. A third
# way is left to your scheduler: users share the blocks of the house rules, yet `guaranteed_no_evict` promises those
# blocks to each user anew.
#
# ## Before it goes live
#
# **What limits it now?** Take one limit away at a time, in rehearsal, under a load that is too much. What helps is what
# was short:

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("09", "Before it goes live")
tuned = {
    "enable_kv_cache_reuse": True,
    "kv_cache_quant_algo": "INT8",
    "max_batch_size": 16,
}
twice = replace(service.BRIEF, rate=2 * service.BRIEF.rate)

# %%
crowd = rehearse(tuned, brief=twice).goodput
trials = {
    "twice the slots": (tuned | {"max_batch_size": 32}, twice),
    "four times the memory": (tuned, replace(twice, memory_mib=256)),
    "prices halved": (tuned, replace(twice, pace=0.5)),
}
for name in progress.over(trials, "Rehearse"):
    settings, trial = trials[name]
    gain = rehearse(settings, brief=trial).goodput / crowd
    print(f"{name}: {gain:.1f} times the goodput")

# %% [markdown]
# Neither slots nor memory: work. More memory even does harm: more users share each iteration, and their ITL breaks its
# limit. From here on only a faster machine helps, or another one beside it.
#
# **What happens at twice the load?** Somebody is let down; you choose who, and how they hear of it. *Queue*: all wait,
# longer and longer. *Shed*: who finds a long queue is refused at once. *Time out*: who has waited too long is given up.


# %% tags=["setup"]
def ways(brief):
    limit_ms = round(2 * brief.objective.ttft_ms)
    return {
        "queue": tuned,
        "shed": tuned | {"max_queue_size": 2},
        "time out": tuned | {"allotted_time_ms": limit_ms},
    }


# %% tags=["nbval-ignore-output"]
crowded = replace(brief, rate=2 * brief.rate)
rows = []
for name, setting in progress.over(
    ways(brief).items(), "Twice the load", "{0[0]}".format
):
    served = service.serve(server, service.deployment(setting), crowded, 7, 2 * number)
    turned_away = len(served.run.requests) - len(served.run.answered)
    rows.append({"way": name, "in time": served.met, "without answer": turned_away})
    rows[-1] |= {"TTFT P99 of the others (ms)": served.ttft_p99_ms}
charts.table(pd.DataFrame(rows), decimals=0)

# %%
played = {
    name: rehearse(setting, brief=twice)
    for name, setting in progress.over(
        ways(service.BRIEF).items(), "Rehearse", "{0[0]}".format
    )
}
for name, served in played.items():
    print(f"{name}: {served.met} of 100 in time, {len(served.run.answered)} answered")
assert played["shed"].met > played["queue"].met

# %% [markdown]
# The rehearsal with a hundred requests shows where it leads. With a queue for everybody all answers come, most of them
# too late. A time-out spends work on answers that nobody reads. Shedding serves most of those whom it lets in, and in
# time; the others should try again later, not at once. Even so one limit is still broken: the lab is about that.
#
# **Attack your own server.** Triton's control API loads models, and a model is code. `open_control=True` leaves it
# open, as many tutorials do. You are now another user of this machine, with nothing but the port:

# %% tags=["nbval-ignore-output"]
import base64
import json

from inflight.triton import Server, repository


def attack(target, proof):
    """Load a "model" whose code is ours, and say what the server answered."""
    code = f"open({str(proof)!r}, 'w').write('your user ran this')\n"
    code += "class TritonPythonModel:\n    def execute(self, requests): ...\n"
    load = {
        "config": json.dumps({"backend": "python", "max_batch_size": 0}),
        "file:1/model.py": base64.b64encode(code.encode()).decode(),
    }
    path = "/v2/repository/models/guest/load"
    return target.http.post(path, json={"parameters": load}, timeout=60).status_code


small = repository.assemble(f"{workdir.name}/small", models=("running-sum",))
open_proof, closed_proof = Path(workdir.name, "open"), Path(workdir.name, "closed")
with Server(small, private=False, open_control=True) as open_server:
    print("open control:", attack(open_server, open_proof))
with Server(small, private=False) as closed_server:
    print("with its key:", attack(closed_server, closed_proof))

# %%
assert open_proof.exists() and not closed_proof.exists()
print("open control:", open_proof.read_text())

# %% [markdown]
# The flags that end it, all of which `Server` sets unless you tell it not to:
#
# | Flag | What it closes |
# |---|---|
# | `--http-restricted-api=model-repository,…:KEY=VALUE` | loading over HTTP, for those without the key |
# | `--grpc-restricted-protocol=model-repository,…:KEY=VALUE` | the same over gRPC: forget it, and the door beside is open |
# | `--model-control-mode=none` | loading on request altogether, for a server that never changes |
# | `--http-address=127.0.0.1`, `--grpc-address=127.0.0.1` | the network |
#
# **What to watch.** Five metrics, and when somebody's telephone rings:
#
# | Metric | Alert when | It means |
# |---|---|---|
# | `nv_trt_llm_request_metrics`, `waiting` | above the slots for a minute | more come than are served |
# | `nv_trt_llm_kv_cache_block_metrics`, `fraction` | above 0.95 for ten minutes | blocks, not slots, are short |
# | `nv_inference_request_failure` of the ensemble | half of it rises by 1 % of the requests | refused, timed out, or broken: Triton counts each twice there |
# | `nv_trt_llm_general_metrics`, `iteration_counter` | stands still while `active` is above 0 | the engine hangs |
# | TTFT at P99, as a client measures it | above its limit for five minutes | the promise is broken |
#
# The last one is no metric of the server: it does not know when a request was *due*. Let a small client ask once a
# second, all day.

# %% tags=["nbval-ignore-output"]
from inflight.triton import telemetry

page = telemetry.metrics(telemetry.page(server.metrics_url))
watched = {
    "nv_trt_llm_request_metrics": ["active", "waiting", "max"],
    "nv_trt_llm_kv_cache_block_metrics": ["fraction"],
    "nv_trt_llm_general_metrics": ["iteration_counter"],
}
rows = [
    (
        name,
        label,
        page[(page["name"] == name) & (page["label"] == label)]["value"].max(),
    )
    for name, labels in watched.items()
    for label in labels
]
failed = page[page["name"] == "nv_inference_request_failure"]
failures = failed[failed["model"] == "ensemble"]["value"].sum()
rows.append(("nv_inference_request_failure", "ensemble", failures))
charts.table(pd.DataFrame(rows, columns=["metric", "label", "now"]), decimals=2)

# %% [markdown]
# ## On the lab GPU
#
# The brief scales itself: `service.pace` comes out far below 1 there, and the load is as many times higher.
#
# | Step | Here | With TensorRT-LLM |
# |---|---|---|
# | Bytes a token of cache | `kv_cache_quant_algo="INT8"` | a checkpoint quantized with `--kv_cache_dtype int8` or `fp8` |
# | Rules once | `enable_kv_cache_reuse` | the same key; build with `--use_paged_context_fmha enable` |
# | Slots | `max_batch_size` | the same build flag, and `triton_max_batch_size` of the config |
# | Memory | `max_tokens_in_paged_kv_cache` | the same key; a large GPU is never short, so cap it |
# | Shed | `max_queue_size` | the same key |
# | Time out | `allotted_time_ms` | `default_timeout_microseconds` of a queue policy |
# | Load | `service.serve` | `inflight bench sweep --url …`, from another machine |
#
# What to know there: a server that you attach keeps its own engine, so build options need a build there; and the load's
# client should not share the server's cores.
#
# ## What breaks
#
# A setting that is wrong is told before anything is loaded, and the server goes on with what it had:

# %%
from inflight.notebook import catch_up

catch_up("09", "What breaks")
for settings in ({"max_batch": 16}, {"cache_tokens": 100_000}, {"cache_tokens": 256}):
    try:
        rehearse(settings)
    except CourseError as error:
        print(error)

# %% [markdown]
# ## Recap
#
# - Goodput counts kept promises. Over the limit a server may have much throughput and hardly any goodput.
# - First find out what is short: work, slots or memory. Each has its own knob, and the next one is short soon after.
# - Rehearse to compare, measure to know, and measure in turns with other articles: luck does not come twice.
# - A queue without a limit breaks its promise to everybody; shedding keeps it for those who are let in.
# - An open control API is a shell for every user of the machine. Close both doors, HTTP and gRPC.
#
# Three questions to answer without running anything:
#
# <details><summary>1. Goodput is far below the arrivals, and the P99 of ITL is the only limit that is broken. Which knob
# first, and which one makes it worse?</summary>
#
# Less must be computed in each iteration: chunked context with a smaller <code>max_num_tokens</code>, or fewer slots. More
# slots make it worse.
# </details>
#
# <details><summary>2. The house rules get today's date as their first word. What happens at this load?</summary>
#
# For a day, nothing: the date is the same for all. If it is the time with minutes, reuse ends each minute; if it is the
# user's name, at once, and the deployment is over its limit again.
# </details>
#
# <details><summary>3. A colleague raised <code>max_queue_size</code> from 4 to 400 because "users saw errors". What will users see
# now?</summary>
#
# Under too much load, late answers instead of early errors: the queue fills, and everybody waits for all of it.
# </details>
#
# Now [do the lab]({lab}): the deployment is yours, and the trace is hidden.
#
# ## What runs
#
# The server belongs to this notebook, and so the dashboard goes on working. It ends with the notebook's kernel.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
