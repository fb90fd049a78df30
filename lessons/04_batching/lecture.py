# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **predict** from the lengths of the answers how many iterations a way of batching needs;
# - **switch** a running server between static and in-flight batching, and show which request had which slot;
# - **decide** when the switch is worth nothing, and name who pays for it.
#
# You need nothing but this notebook: engine, repository and server are made here.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Your engine has eight slots: its `max_batch_size`. Forty-eight requests wait for them, like guests at the door of a
# small restaurant. Most ask for eight tokens, a few for sixteen, some for two hundred and fifty-six. The engine works
# in rounds: one [iteration](00_start_here.ipynb#Iteration) gives each request in a slot one token.
#
# When may the next request start? There are two answers:
#
# - **Static batching** (`gpt_model_type: V1`): eight start together, and the next eight when the last of them has
#   finished.
# - **In-flight batching** (`inflight_fused_batching`; others say *continuous batching*): a slot that gets free is
#   taken in the next iteration.
#
# TensorRT-LLM calls both by these names
# ([its batch manager](https://github.com/NVIDIA/TensorRT-LLM/blob/2a115dae84f13daaa54727534daa837c534eceb4/docs/source/advanced/batch-manager.md)).

# %% [markdown]
# ## Predict
#
# Requests, slots and model are the same both times. Commit yourself:

# %% tags=["setup"]
from inflight.notebook import progress, widgets

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["setup"]
guess = widgets.predict(
    "In-flight batching makes how many times as many tokens a second "
    "as static batching?",
    {"about 1.2 times": 1.2, "about 1.8 times": 1.8, "about 3 times": 3},
    given=prediction,
)
guess

# %% [markdown]
# ## Who comes
#
# A *trace* is a list of requests: a text each, the tokens of its answer, and when it is sent. `workload.trace` makes
# the same one each time for the same seed. Every answer will be exactly as long as `max_tokens` says.

# %% tags=["setup"]
from inflight import engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer

engine_dir = engine.cached(fetch())
tokenizer = load_tokenizer(engine_dir)
slots = engine.read(engine_dir).build_config.max_batch_size
requests = workload.trace("skewed", tokenizer, seed=0)
lengths = [request.max_tokens for request in requests]
for length in sorted(set(lengths)):
    print(f"{lengths.count(length):3} requests for {length:3} tokens")
print(f"{len(requests)} requests, {sum(lengths)} tokens, {slots} slots")
print("The first:", requests[0].text)

# %% [markdown]
# ## On paper first
#
# Nothing has run yet, and the lengths alone already tell the number of iterations. Here is a whole scheduler that
# knows nothing else. Look for the line in which the two ways differ:

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("04", "On paper first")


def play(lengths, slots, rule):
    """How many requests are computed in each iteration."""
    waiting, running, computed = list(lengths), [], []
    while waiting or running:
        if rule == "in-flight" or not running:
            # An idle engine does not wait for company: the first starts alone.
            room = slots if computed else 1
            while waiting and len(running) < room:
                running.append(waiting.pop(0))
        computed.append(len(running))
        running = [left - 1 for left in running if left > 1]  # a token each
    return computed


# %% [markdown]
# It is the `if`: static batching starts requests only when nobody runs.

# %% tags=["setup"]
on_paper = {rule: play(lengths, slots, rule) for rule in ("static", "in-flight")}
for rule, computed in on_paper.items():
    used = sum(computed) / (len(computed) * slots)
    print(
        f"{rule:9} {len(computed):4} iterations for {sum(computed)} tokens: "
        f"{100 * used:.0f} % of the slots' time used"
    )
fewer_on_paper = len(on_paper["static"]) / len(on_paper["in-flight"])
print(f"In-flight batching needs {fewer_on_paper:.1f} times fewer iterations.")

# %% [markdown]
# A static batch lasts as long as its longest answer. In flight, all slots are busy until nobody waits: that takes
# about all tokens over the slots, and a tail.
#
# `engine.schedule` is the same in the package. It also notes who has which slot, and the picture asks it again
# whenever you move a slider. Which requests make the difference? Shorten the longest answers, or take a single slot,
# and look for the trace with which static batching loses nothing.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.engine import schedule
from inflight.lessons import batching as lesson

for rule, name in (("static", "V1"), ("in-flight", "inflight_fused_batching")):
    assert len(on_paper[rule]) == len(schedule(lengths, slots, name).iterations)
picture = lesson.slots_on_paper(lengths, slots)
picture

# %% [markdown]
# Is that the gain, then? Hold on to the figure.
#
# ## Static: run it
#
# The repository is assembled with `V1`, and the engine notes each iteration in a log.

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("04", "Static: run it")
import tempfile
from pathlib import Path

from inflight.bench import trace_run
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
client = Client(server.grpc_url, timeout_s=600)

# %% [markdown]
# `trace_run.run` sends the trace and waits for the last answer. It gives one row a request, as the clients saw it, and
# one row an iteration, as the engine noted it. A fresh engine's first request is its slowest, so one goes ahead that is
# not counted.

# %% tags=["setup", "long", "nbval-ignore-output"]
trace_run.run(client, requests[:1], log_path)
with progress.wait(f"{len(requests)} requests, static"):
    static = trace_run.run(client, requests, log_path)
assert static.requests["output_len"].tolist() == lengths
print(f"static: {len(static.log)} iterations, {static.tokens_per_s:.0f} tokens/s")

# %% [markdown]
# ## Switch
#
# The type is one parameter of one model. `repository.edit` changes it in the file and shows what it did;
# `server.load` has the running server read the file again. The other models go on as they are.

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("04", "Switch")
print(repository.edit(repo, "tensorrt_llm", gpt_model_type="inflight_fused_batching"))
server.load("tensorrt_llm")

# %% tags=["setup", "long", "nbval-ignore-output"]
trace_run.run(client, requests[:1], log_path)
with progress.wait(f"{len(requests)} requests, in flight"):
    in_flight = trace_run.run(client, requests, log_path)
assert len(in_flight.log) < len(static.log) / 2
print(
    f"in flight: {len(in_flight.log)} iterations, {in_flight.tokens_per_s:.0f} tokens/s"
)

# %% [markdown]
# ## See
#
# Each row is a slot, each bar a request, grey an empty slot. Both pictures are drawn from the iteration log, on one
# scale.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("04", "See")
from IPython.display import Markdown, display

from inflight.notebook import charts

stays = {"static (V1)": static.stays, "in-flight": in_flight.stays}
summary = lesson.slot_map_summary(stays, slots)
charts.show(lesson.slot_map(stays, slots), summary)
display(Markdown(summary))

# %% [markdown]
# Above, one long answer keeps seven empty slots waiting, again and again. Below, each slot is taken as soon as it is free,
# and only the tail is empty.

# %% tags=["nbval-ignore-output"]
counted = {"V1": len(static.log), "inflight_fused_batching": len(in_flight.log)}
picture.measured(
    [{"type": name, "iterations": number} for name, number in counted.items()],
    requests=len(lengths),
    slots=slots,
    longest=max(lengths),
)
fewer = counted["V1"] / counted["inflight_fused_batching"]
assert fewer > 0.5 * fewer_on_paper
faster = in_flight.tokens_per_s / static.tokens_per_s
print(f"Iterations on paper: {[len(each) for each in on_paper.values()]},")
print(f"counted: {list(counted.values())}, {fewer:.1f} times fewer,")
print(f"but {faster:.2f} times as many tokens a second.")
print(guess.score(faster))

# %% [markdown]
# The iterations came out as on paper, or a few fewer: on paper the first request starts alone, and the engine may find
# several when it begins. (The picture there shows the counts now, as diamonds.) But they were not the gain. What did
# the paper miss?
#
# ## What an iteration costs
#
# An iteration with eight answers in it costs more than one with two, and static batching has mostly the cheap kind:
# its slots are empty. So measure the price: send 1, 2, … 8 requests side by side, and let the log tell how long their
# iterations take.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("04", "What an iteration costs")
from dataclasses import replace

import pandas as pd

alike = replace(requests[0], max_tokens=96, at_s=0.0)
logs = []
for number in progress.over(range(1, slots + 1), "Answers side by side"):
    logs.append(trace_run.run(client, [alike] * number, log_path).log)
log = pd.concat(logs)

# %% [markdown]
# Iterations without a prompt give the price by the number of answers. What those with prompts take beyond it is the
# price of a prompt's tokens. Medians, so that one slow iteration does not count:

# %%
has_prompt = log["context_tokens"] > 0
answers_ms = log[~has_prompt].groupby("scheduled")["iteration_ms"].median()
beyond_ms = log["iteration_ms"] - log["scheduled"].map(answers_ms)
prompt_token_ms = (beyond_ms / log["context_tokens"])[has_prompt].median()
assert answers_ms.index.tolist() == list(range(1, slots + 1))
print(f"An iteration with one answer takes {answers_ms[1]:.1f} ms,")
print(f"one with all slots taken {answers_ms[slots]:.1f} ms,")
print(f"and a token of a prompt another {prompt_token_ms:.2f} ms.")

# %% tags=["nbval-ignore-output"]
from inflight.lessons import batching as lesson
from inflight.notebook import charts

summary = (
    "The time of an iteration against the number of answers in it: "
    f"{answers_ms[slots] / answers_ms[1]:.1f} times as long for {slots} answers as for "
    f"one, where paying in full were {slots} times."
)
charts.show(lesson.iteration_cost(answers_ms), summary)
print(summary)

# %% [markdown]
# Now put both together: the iterations from the paper, each at its price, and the prompts on top, which are the same
# for both. No run of the trace is in this prediction.

# %% tags=["nbval-ignore-output"]
prompts_s = sum(request.input_len for request in requests) * prompt_token_ms / 1000
predicted_s = {
    rule: sum(answers_ms[number] for number in computed) / 1000 + prompts_s
    for rule, computed in on_paper.items()
}
for rule, run in (("static", static), ("in-flight", in_flight)):
    measured_s = run.requests["last_s"].max()
    print(f"{rule:9} predicted {predicted_s[rule]:.1f} s, measured {measured_s:.1f} s")
faster = in_flight.tokens_per_s / static.tokens_per_s
expected = predicted_s["static"] / predicted_s["in-flight"]
print(f"Prompts take {prompts_s:.1f} s of both.")
print(f"Gain: predicted {expected:.2f} times, measured {faster:.2f} times.")

# %% [markdown]
# A single run of each comes no nearer on a machine that does other things too. `engine.iteration_cost` reads the same
# prices from any log, and `inflight bench compare` uses them: it takes turns and gives ratios with their spread.
#
# ## Who pays?
#
# Tokens a second are the operator's figure. Whoever asks cares about two others: when the answer is complete, and the
# time from one of its tokens to the next, the ITL. With static batching no client sees that pace, for the answer comes
# whole. So `itl_ms` reads it from the log: the time from the end of an answer's first iteration to the end of its last,
# divided by the tokens in between.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("04", "Who pays?")
from IPython.display import Markdown, display

from inflight.notebook import charts

paid = {
    name: run.requests.assign(itl_ms=run.itl_ms)
    for name, run in (("static", static), ("in flight", in_flight))
}
assert all(rows["itl_ms"].notna().all() for rows in paid.values())
charts.show(lesson.who_pays(paid), lesson.who_pays_summary(paid))
display(Markdown(lesson.who_pays_summary(paid)))

# %% [markdown]
# Each mark is a request; above the line it pays. In the lower picture most do: fuller iterations take
# longer, and each prompt that joins holds up those who run. Short answers get that back many times over, since they no
# longer wait for a long neighbour to finish. Long ones do not always: with static batching, whoever was among the first
# had the engine almost alone once the short neighbours were done. In flight they share it to the end.
#
# So nobody gains for nothing. In-flight batching takes time from the long answers of those who came first, and gives
# it to everybody behind them.
#
# ## When is there no gain?
#
# Two cases. **Equal lengths**: a static batch ends for all at once. **Empty slots**: with fewer requests than slots
# nobody waits. And what of the case that benchmarks like, news articles to be summarized? Look at the lengths:

# %%
from inflight.notebook import catch_up

catch_up("04", "When is there no gain?")
articles = workload.from_dataset(workload.read_dataset(), tokenizer)
summaries = [article.max_tokens for article in articles]
mild = [request.max_tokens for request in workload.trace("mild", tokenizer)]
cases = {
    "skewed, the trace above": (lengths, slots),
    "mild": (mild, slots),
    "articles": (summaries, slots),
    "articles, 64 slots": (summaries, 64),
    "all equal": ([64] * 48, slots),
    "fewer requests than slots": ([64, 16, 256, 8], slots),
}
for name, (case, room) in cases.items():
    before, after = (len(play(case, room, rule)) for rule in ("static", "in-flight"))
    print(
        f"{name:25} {min(case):3} to {max(case):3} tokens: {before:4} against "
        f"{after:4} iterations, {before / after:.2f} times fewer"
    )

# %% [markdown]
# In those two cases a little is left: an idle engine does not wait for company, so the first static batch is a single
# request, and the others wait for its whole answer.
#
# Summaries are not "all of similar length", as one often reads: the longest asks for several times the tokens of the
# shortest, and on paper there is something to gain. With 64 slots it is a little less: the tail is a larger part.
#
# Traffic is rarely even, and an answer may end long before its `max_tokens`, which nobody knows in advance. That is why
# every LLM engine batches in flight today.
#
# ## Summaries, with an engine and without
#
# Where did we come from? `llama-python` is what one writes first: the checkpoint in Hugging Face's pipeline, in the same
# server, for the same request. It has no slots: one request after the other, its weights in 16 bits. The
# [workshop](https://github.com/scaleway/ai-pulse-nvidia-trt-llm) that this course follows sent its four shortest
# articles to both, on one H100. Here are four again, of 32 tokens of answer each. The engine gets them twice: one after
# the other, then all at once.

# %%
from inflight.notebook import catch_up

catch_up("04", "Summaries, with an engine and without")
from dataclasses import replace

from inflight import engine, machine
from inflight.models import huggingface

with progress.wait("The checkpoint, as llama-python reads it"):
    checkpoint_dir = huggingface.folder(fetch())
no_engine = repository.assemble(
    Path(workdir.name) / "no_engine",
    models=("llama-python",),
    checkpoint_dir=checkpoint_dir,
)

# %%
articles = workload.from_dataset(workload.read_dataset(), tokenizer)
shortest = sorted(articles, key=lambda article: article.input_len)[:4]
four = [replace(one, max_tokens=32) for one in shortest]  # llama-python is slow
computes_on = {
    "llama-python": machine.device_name(),
    "ensemble": machine.device_name(engine.read(engine_dir).device),
}
rows = []
with (
    progress.wait("Four articles, with an engine and without"),
    Server(no_engine) as second,
    Client(second.grpc_url, timeout_s=600) as to_python,
):
    for way, to, model, users in (
        ("llama-python, one after the other", to_python, "llama-python", 1),
        ("engine, one after the other", client, "ensemble", 1),
        ("engine, all at once", client, "ensemble", 4),
    ):
        trace_run.run(to, [replace(four[0], max_tokens=2)], log_path, model)
        run = trace_run.run(to, four, log_path, model, concurrency=users)
        rows.append((way, run.tokens_per_s, computes_on[model]))
        print(f"{way}: {run.tokens_per_s:.0f} tokens/s, on {computes_on[model]}")
        assert run.requests["output_len"].tolist() == [32] * 4

# %% tags=["nbval-ignore-output"]
import pandas as pd
from IPython.display import Markdown, display

from inflight.lessons import batching as lesson
from inflight.notebook import charts

baseline = pd.DataFrame(rows, columns=["way", "tokens_per_s", "device"])
python, in_turn_rate, at_once_rate = baseline["tokens_per_s"]
summary = (
    f"Four articles: {at_once_rate / python:.1f} times as many tokens a second from "
    f"the engine as from llama-python. {in_turn_rate / python:.1f} times are the "
    f"engine's own, and {at_once_rate / in_turn_rate:.1f} times that from sharing "
    f"iterations. llama-python ran on {computes_on['llama-python']}, the engine on "
    f"{computes_on['ensemble']}."
)
charts.show(lesson.against_the_baseline(baseline), summary)
display(Markdown(summary))

# %% [markdown]
# The workshop reported 1,998 ms from Python and 659 ms from the engine: 3 times. There, both had 16-bit weights, on a
# GPU that spends little time on Python. Here the engine's weights have 4 bits, so that on a CPU a token reads a quarter
# of the memory; and no Python runs between its layers.
#
# It then sent 98 articles, static and in flight: 334 and 436 tokens a second, 31 % more. That is less than the lengths
# above allow on paper, and the cost of an iteration says why: a request there had 800 tokens of prompt for 41 of answer, and
# no way of batching computes a prompt for less.
#
# `llama-python` beside an engine is for comparing, never for production: the two take each other's memory and cores, it
# makes the fourth request wait for the three before it, and nothing bounds its queue.
#
# ## Turn the knob
#
# The dashboard edits the config, loads the model again, and draws the slots while the requests run. The run before
# stays above, on the same scale. Try:
#
# 1. `V1`, then `inflight_fused_batching`, with the skewed trace: the picture of this lesson, live.
# 2. The same with `mild`. Where has the grey gone?
# 3. `equal`: is there any grey to win back?

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("04", "Turn the knob")
board = lesson.board(server, engine_dir, log_path)
board.controls["trace"].value = "mild"
for gpt_model_type in progress.over(("V1", "inflight_fused_batching"), "Run"):
    board.controls["gpt_model_type"].value = gpt_model_type
    board.run()
assert "before: V1, mild" in board.frame.alt
board

# %% [markdown]
# ## On the lab GPU
#
# The parameter and its values are TensorRT-LLM's own, and one engine serves both. What differs is the age of the
# software: static batching was [removed in TensorRT-LLM 0.20](https://github.com/NVIDIA/TensorRT-LLM/releases), so this
# lesson needs a container up to 25.05; `scheduler_config: {capacity_scheduler_policy: STATIC_BATCH}` is its heir.
#
# | Step | Here | With TensorRT-LLM |
# |---|---|---|
# | Static | `assemble(…, batching_strategy="V1")` | `batching_strategy:V1` when filling |
# | In flight | `gpt_model_type="inflight_fused_batching"` | `batching_strategy:inflight_fused_batching` |
# | Names | `V1`, `inflight_batching`, `inflight_fused_batching` | the same; the last two are one since 0.10 |
# | Slots | `max_batch_size` of the engine | the same, when building |
# | Switch | `server.load("tensorrt_llm")` | stop, fill, launch |
# | Send a trace | `inflight bench load --dataset FILE` | the same command |
# | See it work | the iteration log | a line of JSON an iteration in the verbose log |
#
# - The 50,000 are microseconds for which Triton gathers requests, so that they reach the engine together. Without them
#   the first static batch is a single request, as here.
# - All requests of a static batch need the same `end_id`, `pad_id`, `beam_width` and set of optional fields; otherwise
#   all of them get an error.
# - A line of that log is one iteration in flight, but one whole batch with `V1`.
#
# The course's own engine on a GPU, as it was recorded, beside the gain that you measured:

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("04", "On the lab GPU")
import pandas as pd

from inflight.bench import recorded
from inflight.notebook import charts

faster = in_flight.tokens_per_s / static.tokens_per_s
here = pd.DataFrame({"ratio": ["throughput"], "median": [faster]})
lab = recorded.table("compare-V1-inflight_fused_batching", "ratios", gpus_only=True)
summary = charts.lab_results_summary(here, lab, "ratio", "median")
charts.show(
    charts.lab_results(here, lab, "ratio", "median", "in-flight over static"), summary
)
assert lab.empty or "throughput" in set(lab["ratio"])

# %% [markdown]
# ## What breaks
#
# **Streaming from a static batch.** Its answers leave together, when the last has finished. So a stream has one piece,
# the whole answer; a warning in the log says so. TensorRT-LLM does the same:

# %%
from inflight.notebook import catch_up

catch_up("04", "What breaks")
streaming = repository.assemble(
    Path(workdir.name) / "V1", engine_dir, batching_strategy="V1", decoupled_mode=True
)
with (  # a server of its own: the dashboard above keeps the other one
    progress.wait("A second server starts and answers"),
    Server(streaming) as its_own,
    Client(its_own.grpc_url) as to_it,
):
    pieces = to_it.stream("Tell me a story.", 24, end_id=-1).read().pieces
print("pieces of the stream:", len(pieces))

# %% [markdown]
# **A type that does not exist.** The config editor and `repository.edit` refuse it before anything is written.
# Whoever writes the file by hand hears it from the server, which goes on with what it has loaded:

# %%
from inflight import CourseError

try:
    repository.edit(streaming, "tensorrt_llm", gpt_model_type="static")
except CourseError as error:
    print(error)

# %% [markdown]
# ## Recap
#
# - Static batching waits for the longest answer of each batch; in-flight batching fills each slot as it gets free.
# - The lengths alone give the iterations: the sum of each batch's longest, against all tokens over the slots and a
#   tail.
# - Time needs the price of an iteration: it grows with the answers in it, but far less than they do. Prompts cost
#   the same either way.
# - In flight, tokens come more slowly. Short answers gain all the same, for they wait less; long ones that came first
#   may lose.
# - The gain belongs to the trace: none with equal lengths or slots to spare. Name the trace, and let both sides take
#   turns in the same run.
#
# Three questions to answer without running anything:
#
# <details><summary>1. Four slots; answers of 10, 10, 10 and 100 tokens, again and again, all waiting from the start.
# How many iterations do a hundred such groups take, static and in flight, about?</summary>
#
# Static: 100 × 100 = 10,000. In flight: 100 × 130 / 4 = 3,250, and a tail of at most 100.
# </details>
#
# <details><summary>2. Your in-flight server has eight slots, and <code>scheduled</code> in <code>/metrics</code> is
# never above 3. What would static batching cost you?</summary>
#
# Little throughput, but latency. Five slots are always free, so a newcomer starts at once in flight. With static
# batching it waits for the running batch to end.
# </details>
#
# <details><summary>3. A colleague reports "in-flight batching gives 1.3 times". What do you ask first?</summary>
#
# The lengths of prompts and answers, the number of slots, and how many requests waited. The gain belongs to the trace,
# not to the engine.
# </details>
#
# Now [do the lab]({lab}): there you write both rules, and the running engine obeys them. Or go on with {next}: what if
# there is a slot, but no memory?
#
# ## What runs
#
# The server belongs to this notebook, and so the widgets above go on working. It ends with the notebook's kernel. After
# the kernel was restarted, a widget says so, or reads *model not found*: run its section again.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
