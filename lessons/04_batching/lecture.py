# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **predict** from the lengths of the answers what in-flight batching gains, before you measure anything;
# - **switch** a running server between static and in-flight batching, and show who sat where;
# - **decide** when the switch is worth nothing, and name who pays for it.
#
# You need nothing but this notebook: engine, repository and server are made here.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Your engine has eight seats, which the field calls slots: its `max_batch_size`. Forty-eight guests wait at the door.
# Most take eight bites, a few sixteen, some two hundred and fifty-six. A bite is a token, and the table is served in
# rounds: one [iteration](00_start_here.ipynb#Iteration) gives each seated guest one token.
#
# There are two answers:
#
# - **Static batching** (`gpt_model_type: V1`): eight sit down together, and the next eight when the last of them has
#   finished.
# - **In-flight batching** (`inflight_fused_batching`): a seat that gets free is taken in the next iteration.

# %% [markdown]
# ## Predict
#
# The guests, the seats and the model are the same both times. Commit yourself:

# %% tags=["nbval-ignore-output"]
from inflight.notebook import progress, widgets

guess = widgets.predict(
    "In-flight batching makes how many times as many tokens a second "
    "as static batching?",
    {"about 1.2 times": 1.2, "about 1.8 times": 1.8, "about 3 times": 3},
)
guess

# %% [markdown]
# ## Who comes
#
# `workload.trace` makes the guest list, the same one each time for the same seed. `max_tokens` is the length of the
# answer, and every answer will be exactly that long.

# %%
from inflight import engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer

engine_dir = engine.cached(fetch())
slots = engine.read(engine_dir).build_config.max_batch_size
requests = workload.trace("skewed", load_tokenizer(engine_dir), seed=0)
lengths = [request.max_tokens for request in requests]
for length in sorted(set(lengths)):
    print(f"{lengths.count(length):3} guests take {length:3} tokens")
print(
    f"{len(requests)} guests, {sum(lengths)} tokens, {slots} slots; the first: "
    f"{requests[0].text!r}"
)

# %% [markdown]
# ## On paper first
#
# Nothing has run yet, and the lengths alone already tell the number of iterations. With static batching a batch lasts
# as long as its longest guest. In flight, all seats are busy until the guests run out: about all tokens over the
# seats, and a tail.
#
# One detail: the engine is idle when the first guest comes, and it does not wait for more. So the first batch is a
# party of one.

# %%
from inflight.engine import schedule

paper = {
    "V1": schedule(lengths, slots, "V1"),
    "in-flight": schedule(lengths, slots, "inflight_fused_batching"),
}
batches = [
    lengths[:1],
    *(lengths[start : start + slots] for start in range(1, len(lengths), slots)),
]
print(
    "longest of each batch:", *map(max, batches), "→ together", sum(map(max, batches))
)
print(f"all tokens over the slots: {sum(lengths) / slots:.0f}, and the tail")
for name, plan in paper.items():
    print(
        f"{name:9} {len(plan.iterations):4} iterations, "
        f"{100 * plan.occupancy:.0f} % of the slots' time used"
    )

# %%
iterations = {name: len(plan.iterations) for name, plan in paper.items()}
print(
    "In-flight batching needs "
    f"{iterations['V1'] / iterations['in-flight']:.1f} times fewer iterations."
)

# %% [markdown]
# Which guests make the difference? Shorten the longest answers, or put a single slot there, and look for the list with
# which static batching loses nothing.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import explorables

on_paper = explorables.slots_on_paper(lengths, slots)
on_paper

# %% [markdown]
# Is that the gain, then? Hold on to the figure.
#
# ## Static: run it
#
# First `V1`. The repository is assembled with it, and the engine notes each iteration in a log.

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    batching_strategy="V1",
    iteration_log_path=log_path,
)
server = Server(repo).start()
client = Client(server.grpc_url)
print("ready:", client.ask("Name the capital of France.").text)

# %% [markdown]
# `trace_run.run` sends all guests at once and waits for the last answer. It gives one row a request, as the clients saw
# it, and one row an iteration, as the engine noted it.

# %% tags=["nbval-ignore-output"]
import pandas as pd

from inflight.bench import trace_run

with progress.wait(f"{len(requests)} requests, static"):
    static = trace_run.run(client, requests, log_path)
print(
    f"static: {len(static.log)} iterations, {static.tokens_per_s:.0f} tokens a second"
)
static.requests[["input_len", "output_len", "latency_ms"]].describe().loc[
    ["mean", "min", "max"]
].round()

# %% [markdown]
# ## Switch
#
# The type is one parameter of one model. `repository.edit` changes it in the protobuf and shows what it did;
# `server.load` has the running server read the file again. The other models go on as they are.

# %%
print(repository.edit(repo, "tensorrt_llm", gpt_model_type="inflight_fused_batching"))
server.load("tensorrt_llm")

# %% tags=["nbval-ignore-output"]
trace_run.run(
    client, requests[:1], log_path
)  # a fresh engine's first request is its slowest: not counted
with progress.wait(f"{len(requests)} requests, in flight"):
    inflight = trace_run.run(client, requests, log_path)
print(
    f"in-flight: {len(inflight.log)} iterations, "
    f"{inflight.tokens_per_s:.0f} tokens a second"
)

# %% [markdown]
# ## See
#
# Each row is a seat, each bar a guest, grey an empty seat. Both pictures are drawn from the iteration log, on one
# scale.

# %% tags=["nbval-ignore-output"]
from IPython.display import Markdown, display

from inflight.notebook import charts

measured = {"static (V1)": static.stays, "in-flight": inflight.stays}
summary = charts.slot_map_summary(measured, slots)
charts.show(charts.slot_map(measured, slots), summary)
display(Markdown(summary))

# %% [markdown]
# Above, one long answer keeps seven empty seats waiting, again and again. Below, every seat is taken as it gets free,
# and only the tail is empty.

# %% tags=["nbval-ignore-output"]
counted = {"V1": len(static.log), "inflight_fused_batching": len(inflight.log)}
on_paper.measured(
    [{"type": kind, "iterations": number} for kind, number in counted.items()],
    guests=len(lengths),
    slots=slots,
    longest=max(lengths),
)
fewer = counted["V1"] / counted["inflight_fused_batching"]
faster = inflight.tokens_per_s / static.tokens_per_s
print(
    f"On paper {iterations['V1']} and {iterations['in-flight']} iterations; "
    f"counted {' and '.join(map(str, counted.values()))}."
)
print(
    f"{fewer:.1f} times fewer iterations, but {faster:.2f} times as many tokens "
    "a second."
)
print(guess.score(faster))

# %% [markdown]
# The arithmetic of iterations was right (the picture under *On paper first* has the counts now, as diamonds), and it was
# not the gain. What did it miss?
#
# ## Explain: an iteration for eight is not free
#
# An iteration with eight answers in it costs more than one with two, and static batching has mostly the cheap kind:
# its seats are empty. So measure what an iteration costs, with 1, 2, … 8 answers in it. Prompts come on top, by the
# token. An iteration also reads the past of each answer, so `calibrate` sends answers that are as long as those of the
# trace, each token counted alike.

# %% tags=["nbval-ignore-output"]
from inflight.bench import calibrate
from inflight.engine import iteration_cost

with progress.wait("What an iteration costs", slots) as line:
    logs = calibrate(client, requests, slots, log_path, line)
cost = iteration_cost(pd.concat(logs))
one, all_slots = cost.answers_ms[1], cost.answers_ms[slots]
summary = (
    "The time of an iteration against the number of answers in it: "
    f"{one:.1f} ms with one, {all_slots:.1f} ms with {slots}, "
    f"which is {all_slots / one:.1f} times as much for {slots} times the tokens."
)
charts.show(charts.iteration_cost(cost.answers_ms), summary)
display(
    Markdown(
        f"{summary} A token of a prompt costs another {cost.prompt_token_ms:.2f} ms."
    )
)

# %% [markdown]
# Now put both together: the schedule from the lengths, each iteration at its price. No run of the trace is in this
# prediction.

# %% tags=["nbval-ignore-output"]
prompt_tokens = sum(request.input_len for request in requests) / len(requests)
rows = []
for name, plan, run in (
    ("static (V1)", paper["V1"], static),
    ("in-flight", paper["in-flight"], inflight),
):
    answers_s, all_s = (
        cost.seconds(plan, prompt_tokens=0),
        cost.seconds(plan, prompt_tokens),
    )
    rows.append(
        (name, answers_s, all_s - answers_s, all_s, run.requests["last_s"].max())
    )
predicted = pd.DataFrame(
    rows,
    columns=["type", "answers (s)", "prompts (s)", "predicted (s)", "measured (s)"],
)
charts.table(predicted, decimals=2)

# %% tags=["nbval-ignore-output"]
expected = predicted["predicted (s)"].iloc[0] / predicted["predicted (s)"].iloc[1]
print(
    f"Predicted gain {expected:.2f}, measured {faster:.2f}: "
    f"{100 * (faster / expected - 1):+.0f} %."
)

# %% [markdown]
# That is as near as a single run of each comes on a machine that does other things too. The table shows where the
# gain went: both types compute the same prompts, and no kind of batching makes those fewer.
#
# ## Who pays?
#
# Nobody gains for nothing. Look at short and long answers apart, at the middle one (P50) and at the slowest (P99).

# %% tags=["nbval-ignore-output"]
runs = {"static": static.requests, "in-flight": inflight.requests}
fig = charts.who_pays(runs)
mean = {name: rows["latency_ms"].mean() / 1000 for name, rows in runs.items()}
summary = (
    "Static and in-flight side by side. The mean end-to-end latency falls "
    f"from {mean['static']:.1f} s to {mean['in-flight']:.1f} s, "
    f"{mean['in-flight'] / mean['static']:.2f} times as long."
)
charts.show(fig, summary)
display(Markdown(summary))

# %% [markdown]
# The short ones win most: with static batching a guest of eight bites leaves when the guest of two hundred and
# fifty-six beside them has finished, and everybody at the door waits for that too. A long answer shares its
# iterations with seven others all the time, so each of its tokens takes a little longer: what it wins is the shorter
# queue.
#
# ## When is there no gain?
#
# Two cases. **Equal lengths**: a static batch ends for all at once, and nobody waits for anybody. **Empty seats**:
# with fewer guests than seats nobody waits at all. On paper:

# %%
cases = {
    "skewed (yours)": lengths,
    "mild": [r.max_tokens for r in workload.trace("mild", load_tokenizer(engine_dir))],
    "all equal": [64] * 48,
    "fewer guests than slots": [8, 16, 256, 8],
}
for name, case in cases.items():
    count = {
        kind: len(
            schedule(case, slots, kind, at_the_start=min(len(case), slots)).iterations
        )
        for kind in ("V1", "inflight_fused_batching")
    }
    print(
        f"{name:24} {count['V1']:4} against {count['inflight_fused_batching']:4} "
        f"iterations: {count['V1'] / count['inflight_fused_batching']:.1f} times fewer"
    )

# %% [markdown]
# Real traffic is skewed: some ask for a word and some for a page, and an answer may end before `max_tokens`, which
# nobody knows in advance. That is why every LLM engine batches in flight today.
#
# ## Without an engine
#
# Where did we come from? `llama-python` is what one writes first: the same checkpoint in Hugging Face's pipeline,
# inside the same server, with the same request. It has no seats at all: one request after the other, and PyTorch
# computes it in 16-bit floating point. It stands beside the others to be compared with, in one repository: do not build
# a service so. The two would share memory and cores, and the baseline is nothing for production anyway.

# %% tags=["nbval-ignore-output"]
from inflight.models import huggingface

both = (*repository.PIPELINE, "llama-python")
server.stop()
repo = repository.assemble(
    Path(workdir.name) / "both",
    engine_dir,
    models=both,
    checkpoint_dir=huggingface.folder(fetch()),
    iteration_log_path=log_path,
)
server = Server(repo).start()
client = Client(server.grpc_url)
few = [request for request in requests if request.max_tokens < 256][:8]
rows = []
for model in progress.over(("llama-python", "ensemble"), "The same requests"):
    trace_run.run(client, few[:1], log_path, model)
    rows.append((model, trace_run.run(client, few, log_path, model).tokens_per_s))
baseline = pd.DataFrame(rows, columns=["model", "tokens_per_s"])

# %% tags=["nbval-ignore-output"]
python, ensemble = baseline["tokens_per_s"]
summary = (
    f"{len(few)} short requests at once: "
    f"{python:.0f} tokens a second from llama-python, "
    f"{ensemble:.0f} from the engine behind the ensemble, "
    f"{ensemble / python:.0f} times as many."
)
charts.show(charts.against_the_baseline(baseline), summary)
display(Markdown(summary))

# %% [markdown]
# The engine wins three times: its weights have 4 bits instead of 16, so an iteration reads a quarter of the memory;
# it has no Python between its layers; and eight requests share each iteration.
#
# ## Keep the figures
#
# A benchmark that leaves no file was never run. `report` writes what colleagues can open: one row a request as CSV,
# one line a run in the columns of TensorRT-LLM's own client, and a trace for [ui.perfetto.dev](https://ui.perfetto.dev),
# which shows requests and iterations on one time line.

# %% tags=["nbval-ignore-output"]
import json

from inflight.bench import report

files = {
    name: Path(workdir.name) / name
    for name in ("requests.csv", "statistics.csv", "trace.json")
}
report.write(files["requests.csv"], report.requests_csv(inflight.run))
report.write(
    files["statistics.csv"], report.with_op_stats(files["statistics.csv"], inflight.run)
)
report.write(files["trace.json"], json.dumps(report.trace(inflight.run, inflight.log)))
for name, file in files.items():
    print(
        f"{name:15} {len(file.read_text().splitlines()):3} lines, "
        f"{file.stat().st_size / 1000:.0f} kB"
    )
pd.read_csv(files["statistics.csv"]).T.set_axis(["in-flight"], axis=1).round(1)

# %% [markdown]
# The same from the command line, with a progress bar; `compare` takes turns and gives ratios with their spread:
#
# ```
# inflight bench load --dataset mild --csv requests.csv --perfetto trace.json
# inflight bench compare V1 inflight_fused_batching --rounds 5
# inflight bench compare llama-python ensemble --dataset dataset --requests 16
# ```
#
# ## Turn the knob
#
# The dashboard edits the config, loads the model again, and draws the seats while the requests run. The picture of
# the run before stays above, on the same scale. Try:
#
# 1. `V1`, then `inflight_fused_batching`, with the skewed trace: the picture of this lesson, live.
# 2. The same with `mild`. Where has the grey gone?
# 3. `equal`: is there any grey to win back?

# %% tags=["nbval-ignore-output"]
from inflight.notebook import boards

board = boards.batching(server, engine_dir, log_path)
for gpt_model_type in progress.over(("V1", "inflight_fused_batching"), "Run"):
    board.controls["gpt_model_type"].value = gpt_model_type
    board.run()
board

# %% tags=["nbval-ignore-output"]
charts.show(
    *board.frame
)  # what the dashboard shows last, for those who read this page without a kernel

# %% [markdown]
# ## On the lab GPU
#
# The parameter and its values are TensorRT-LLM's own, and one engine serves both. What differs is the age of the software:
# static batching was [removed in TensorRT-LLM 0.20](https://github.com/NVIDIA/TensorRT-LLM/releases), so this lesson needs a
# container up to {{name.last_with_v1}}; the course's is {{name.version}}.
#
# {{name.tried}}
#
# | Step | Here | With TensorRT-LLM |
# |---|---|---|
# | Static | `assemble(…, batching_strategy="V1")` | `lab.sh fill V1 guaranteed_no_evict False 50000` |
# | In flight | `gpt_model_type="inflight_fused_batching"` | `lab.sh fill inflight_fused_batching guaranteed_no_evict False` |
# | Names | `V1`, `inflight_batching`, `inflight_fused_batching` | the same; the last two are one since 0.10 |
# | Seats | `max_batch_size` of the engine | the same: `SLOTS=8 lab.sh build` |
# | Switch | `server.load("tensorrt_llm")` | `lab.sh stop`, fill, `lab.sh launch`; or, started by `lab.sh serve`, `{{line.load}}` |
# | Send a trace | `inflight bench load --dataset FILE` | `lab.sh measure` |
# | See it work | the iteration log | `lab.sh iterations`; `/metrics`: `request_type="scheduled"` above 1 |
#
# ```bash
# {{function.measure}}
#
# {{function.iterations}}
# ```
#
# What to know there:
#
# - The 50,000 are microseconds of `max_queue_delay_microseconds`: Triton gathers requests, so that they reach the engine
#   together. Without it the first static batch is a party of one, as here.
# - All requests of a static batch need the same `end_id`, `pad_id` and `beam_width`, and must give the same optional
#   fields, whatever their values. Otherwise the whole batch gets an error. So let a client send one fixed set.
# - One line of `lab.sh iterations` is one iteration in flight, and one whole batch with `V1`: its tokens are those that
#   were asked for. The seats of `V1` cannot be drawn from it; draw each request's life from the client's own clock.
# - `measure` calls `tensorrt_llm` with `infer`, so `decoupled_mode` must be `False`, and it needs the network for three
#   packages of Python, once.
# - Prefer the restart: it is not known whether the old engine's memory is free before the new one loads.
#
# What did others see? A public workshop on one H100 (Llama-2-7B, 16 bit, 98 prompts of CNN/DailyMail) reported 334.5
# tokens a second with `V1` and 436.5 in flight: 31 % more. Yours differs because the trace does: summaries of news
# are all of similar length, which is the mild case.
#
# The course's own engine on a GPU, without a server around it, as it was recorded, beside the gain that you measured:

# %% tags=["nbval-ignore-output"]
from inflight.bench import recorded

here = pd.DataFrame({"ratio": ["throughput"], "median": [faster]})
lab = recorded.table(
    "compare-in-process-V1-inflight_fused_batching", "ratios", gpus_only=True
)
summary = charts.lab_results_summary(here, lab, "ratio", "median")
charts.show(
    charts.lab_results(here, lab, "ratio", "median", "in-flight over static"), summary
)

# %% [markdown]
# ## What breaks
#
# **Streaming from a static batch.** Its answers leave together, when the last has finished. So a stream has one piece,
# the whole answer; a warning in the log says so. TensorRT-LLM does the same:

# %%
from inflight import CourseError

server.stop()
repo = repository.assemble(
    Path(workdir.name) / "V1", engine_dir, batching_strategy="V1", decoupled_mode=True
)
server = Server(repo).start()
client = Client(server.grpc_url)
pieces = client.stream("Tell me a story.", 24, end_id=-1).read().pieces
print("pieces of the stream:", len(pieces))

# %% [markdown]
# **A type that does not exist.** The config editor and `repository.edit` refuse it before anything is written. Who
# writes the file by hand hears it from the server, which goes on with what it has loaded:

# %%
try:
    repository.edit(repo, "tensorrt_llm", gpt_model_type="static")
except CourseError as error:
    print(error)

# %% [markdown]
# ## Recap
#
# - Static batching seats a batch and waits for its longest answer; in-flight batching fills each seat as it gets free.
# - Iterations follow from the lengths alone: the sum of each batch's longest, against all tokens over the seats and a
#   tail.
# - Time needs the price of an iteration: it grows with the answers in it, but far less than they do. Prompts cost
#   the same either way.
# - Short answers gain most, for they no longer wait for long ones. With equal lengths, or with seats to spare, there
#   is nothing to gain.
# - A ratio counts when both sides took turns on the same trace in the same run, and the trace is named with it.
#
# Three questions to answer without running anything:
#
# <details><summary>1. Four seats; answers of 10, 10, 10 and 100 tokens, again and again, all waiting from the start.
# How many iterations do a hundred such groups take, static and in flight, about?</summary>
#
# Static: 100 × 100 = 10,000. In flight: 100 × 130 / 4 = 3,250, and a tail of at most 100.
# </details>
#
# <details><summary>2. Your in-flight server has eight seats, and <code>scheduled</code> in <code>/metrics</code> is
# never above 3. What would static batching cost you?</summary>
#
# Little. Five seats are always free: a newcomer never waits for a seat in flight. With static batching a newcomer
# waits for the running batch to end, so latency suffers, but throughput hardly.
# </details>
#
# <details><summary>3. A colleague reports "in-flight batching gives 1.3 times". What do you ask first?</summary>
#
# The lengths of the answers, and how many requests waited. The gain belongs to the trace, not to the engine.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: what if there is a seat, but no memory?
#
# ## What runs
#
# The server belongs to this notebook, and so the widgets above go on working. It ends with the notebook's kernel, or when
# you stop it here. After a restarted kernel, or where a widget reads *model not found*, run the notebook again.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
