# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **start** a Triton server and read its state, its models and its metrics;
# - **measure** what a user feels of an answer: time to first token, inter-token latency, end-to-end latency;
# - **end** an answer early and show how much work that saved.
#
# You need nothing but what lessons 01 and 02 left behind: an engine and a model repository. Both are made here if
# they are missing.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Two teams send the same prompt to the same server. One says: "It hangs, and then a wall of text falls on us." The
# other says: "It starts to write at once." The server's log shows the same answer and the same number of tokens for
# both.
#
# Both are right. What a user feels has three names, and this lesson measures each:
#
# - [TTFT](00_start_here.ipynb#TTFT), time to first token: from sending the request to the first word.
# - [ITL](00_start_here.ipynb#ITL), inter-token latency: from one token to the next.
# - [End-to-end latency](00_start_here.ipynb#End-to-end-latency): from sending the request to the last word.

# %% [markdown]
# ## Predict
#
# One user asks, and the whole answer takes one unit of time. Now eight users ask at the same moment, each for as many
# tokens. There are two CPU cores or so, and one model. Commit yourself before you measure.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import progress, widgets

guess = widgets.predict(
    "Eight users ask at once. "
    "How many times as long as a lone user does each of them wait for a whole answer?",
    {"about as long": 1, "about twice as long": 2, "about eight times as long": 8},
)
guess

# %% [markdown]
# ## Start the server
#
# The repository comes from lesson 02's `assemble`. One value differs from its defaults: `decoupled_mode` is true, so
# that the engine may send many responses to one request; such a model is called
# [decoupled](00_start_here.ipynb#Decoupled). Without that nothing can stream. `iteration_log_path` names a file in
# which the engine notes each of its iterations; you will read it below.

# %%
import tempfile
from pathlib import Path

from inflight import engine
from inflight.checkpoint import fetch
from inflight.triton import repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
engine_dir = engine.cached(fetch())
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    decoupled_mode=True,
    iteration_log_path=log_path,
)
print(*repository.models(repo))

# %% [markdown]
# `start` returns when every model is ready. It takes free ports on 127.0.0.1, and tells you each change of a model's
# state.

# %% tags=["nbval-ignore-output"]
from inflight.triton import Server

server = Server(repo, on_state=lambda model: print(f"{model.name:15} {model.state}"))
server.start()
print(f"HTTP {server.http_url} · gRPC {server.grpc_url} · metrics {server.metrics_url}")

# %% [markdown]
# The three parts load side by side. The ensemble comes last: it is only ready when all its parts are.
#
# ## Ask what it serves
#
# Three questions that every Triton answers before you send any text: are you ready, which models, which tensors?

# %%
import pandas as pd

from inflight import CourseError
from inflight.triton import Client

client = Client(server.grpc_url)
tensors = pd.DataFrame(client.metadata()["inputs"])
print(
    "ready:",
    client.is_ready(),
    "·",
    *(f"{model.name} {model.state}" for model in server.models()),
)
print(f"The ensemble has {len(tensors)} inputs; the first two are required:")
tensors.head(4)

# %% [markdown]
# A shape begins with -1, the batch. A client needs no more than these names, datatypes and shapes, so one that is
# written for TensorRT-LLM's ensemble works here if it sends and reads what this one has: lesson 02 compares the releases.
#
# ## One request
#
# First over gRPC, with the course's client.

# %% tags=["nbval-ignore-output"]
answer = client.ask("Name the capital of France.")
print(answer.text)
print(
    f"The whole answer was there after {answer.latency_s * 1000:.0f} ms; "
    "a server's first request is its slowest."
)

# %% [markdown]
# Then over HTTP with no client library at all: one JSON object to `generate`. The keys are the ensemble's tensor
# names.

# %%
import httpx

request = {"text_input": "Name the capital of France.", "max_tokens": 64}
reply = httpx.post(
    f"{server.http_url}/v2/models/ensemble/generate",
    json=request,
    headers=server.headers,
).json()
print("keys:", *sorted(reply))
print("the same text over gRPC and HTTP:", reply["text_output"] == answer.text)
print("Paris in it:", "Paris" in answer.text)

# %% [markdown]
# ## Streamed
#
# With `stream` set, the answer arrives piece by piece, each as soon as the engine has made it. A `|` shows where one
# piece ends.

# %% tags=["nbval-ignore-output"]
stream = client.stream("Why is the sky blue?", max_tokens=24)
for piece in stream:
    print(piece, end="|", flush=True)
print(
    f"\n{len(stream.answer.pieces)} pieces; "
    f"the first after {stream.answer.time_to_first_s * 1000:.0f} ms, "
    f"the last after {stream.answer.latency_s * 1000:.0f} ms."
)

# %% [markdown]
# The course's own clock is in `stream.answer`: `times_s` has, for each piece, the seconds since the request was sent.
#
# ## Measure: whole and streamed, one user and eight
#
# The function below sends the same request for several users at the same moment, each from a thread of its own.
# `end_id=-1` means that no token ends the answer, so that every answer has the same number of tokens.
#
# The first request of each kind pays for things that are done once (memory, threads), so each kind runs once
# unmeasured. After that, each runs three times, in turns, and the middle one counts: a machine that does other things
# too is never quite the same for long.

# %% tags=["nbval-ignore-output"]
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

NUM_TOKENS = 48


def measure(send, num_users):
    """Answers of users who ask at the same moment, and when that was."""
    with ThreadPoolExecutor(num_users) as users:
        started = time.time()
        answers = list(
            users.map(
                lambda _: send("Explain how rain forms.", NUM_TOKENS, end_id=-1),
                range(num_users),
            )
        )
    return answers, started, time.time()


for num_users in (1, 8):
    warm_up = measure(client.ask, num_users)[0]
print(f"warmed up: {len(warm_up)} answers")


# %% tags=["nbval-ignore-output"]
def streamed(*arguments, **options):
    return client.stream(*arguments, **options).read()


cases = {
    "one user, whole": (client.ask, 1),
    "one user, streamed": (streamed, 1),
    "eight users, whole": (client.ask, 8),
    "eight users, streamed": (streamed, 8),
}
rounds = [
    {case: measure(*how) for case, how in cases.items()}
    for _ in progress.over((1, 2, 3), "All four cases, round")
]
runs = {
    case: sorted((one[case] for one in rounds), key=lambda run: run[2] - run[1])[1]
    for case in cases
}
rows = [
    (case, user, time_s)
    for case, (answers, _, _) in runs.items()
    for user, answer in enumerate(answers)
    for time_s in answer.times_s
]
pieces = pd.DataFrame(rows, columns=["case", "user", "time_s"])
print(f"{len(pieces)} pieces, from the middle run of each of the {len(cases)} cases")

# %% [markdown]
# ## See
#
# Grey: nothing to read yet. A square: an answer given whole. A tick: one piece of a streamed answer.

# %% tags=["nbval-ignore-output"]
from IPython.display import Markdown, display

from inflight.notebook import charts

whole, alone, crowd = (
    runs[case][0]
    for case in ("one user, whole", "one user, streamed", "eight users, streamed")
)
whole, alone, slowest = whole[0], alone[0], max(answer.latency_s for answer in crowd)
summary = (
    f"Time lines of answers of {NUM_TOKENS} tokens. "
    f"A lone user sees nothing for {whole.latency_s:.2f} s when the answer comes "
    f"whole, and for {alone.time_to_first_s:.2f} s when it is streamed; "
    f"the last token comes after {alone.latency_s:.2f} s. "
    "With eight users at once the ticks lie farther apart, "
    f"and the last token of the slowest comes after {slowest:.2f} s."
)
charts.show(charts.token_timeline(pieces), summary)
display(Markdown(summary))

# %% [markdown]
# Read the two upper rows first. Both answers take the same work, token for token: streaming makes nothing faster, and
# where the two ends differ, that is the noise of the machine. Streaming gives each token away when it is made, and
# the grey shrinks to the TTFT. So both teams were right: one of them does not stream.
#
# Then compare with the two lower blocks, and with your prediction:

# %% tags=["nbval-ignore-output"]
times_as_long = (
    statistics.median(answer.latency_s for answer in crowd) / alone.latency_s
)
more_tokens = 8 / times_as_long
print(f"Measured: {times_as_long:.1f} times as long. {guess.score(times_as_long)}")
print(
    f"Eight answers in {times_as_long:.1f} times the time of one: "
    f"{more_tokens:.1f} times as many tokens a second."
)

# %% [markdown]
# ## Explain
#
# A streamed answer of *n* tokens arrives like this:
#
# > end-to-end = TTFT + (*n* − 1) × ITL
#
# The engine computes one token for every running user in one [iteration](00_start_here.ipynb#Iteration). So the ITL is
# the length of an iteration, however many users share it. The iteration log has those lengths, measured inside the
# engine, without Triton and without you:

# %% tags=["nbval-ignore-output"]
from inflight.triton import telemetry

log = telemetry.iterations(log_path)
rows = []
for case in ("one user, streamed", "eight users, streamed"):
    answers, started, ended = runs[case]
    ours = log[log["timestamp"].between(started, ended)]
    prompts, decoding = (
        ours[ours["context_tokens"] > 0],
        ours[ours["context_tokens"] == 0],
    )
    iteration_s = decoding["iteration_ms"].median() / 1000
    predicted = prompts["iteration_ms"].sum() / 1000 + (NUM_TOKENS - 1) * iteration_s
    measured = statistics.median(answer.latency_s for answer in answers)
    rows.append(
        (
            case,
            len(ours),
            iteration_s * 1000,
            predicted,
            measured,
            100 * predicted / measured,
        )
    )
columns = [
    "case",
    "iterations",
    "an iteration (ms)",
    "predicted (s)",
    "measured (s)",
    "predicted / measured (%)",
]
table = pd.DataFrame(rows, columns=columns).set_index("case")
table.round(
    {
        "an iteration (ms)": 1,
        "predicted (s)": 2,
        "measured (s)": 2,
        "predicted / measured (%)": 0,
    }
)

# %% tags=["nbval-ignore-output"]
one, eight = (table["an iteration (ms)"].iloc[row] for row in (0, 1))
print(
    f"An iteration for eight users takes {eight / one:.1f} times as long "
    "as one for a lone user, not 8 times:"
)
print("the weights are read from memory once an iteration, whoever shares it.")
print(
    "From the engine's own times alone, the prediction reaches "
    f"{table.iloc[0, 4]:.0f} % and {table.iloc[1, 4]:.0f} % of what you measured."
)

# %% [markdown]
# The rest is what lies around the engine: the way through Triton, one call of `postprocessing` for each piece, and
# your own threads, which share the same cores. Slow iterations count too: the prediction takes the median, and the
# sum has them all.
#
# ## Stop early
#
# Users leave. A tab that is closed, a Stop button, a word that was waited for: each ends a request before
# `max_tokens`. What is it worth? Below, three requests ask for the same number of tokens. The first runs to its end.
# The second is stopped by the clock (`stop_after_s`). The third is left in the middle of the loop.

# %% tags=["nbval-ignore-output"]
ASKED, prompt = 160, "Tell me a long story about a river."
to_the_end = client.stream(prompt, ASKED, end_id=-1)
by_the_clock = client.stream(prompt, ASKED, end_id=-1, stop_after_s=0.4)
left = client.stream(prompt, ASKED, end_id=-1)
for stream in (to_the_end, by_the_clock):
    stream.read()
for piece in left:
    if len(left.answer.pieces) == 20:
        left.cancel()
        break
read = [len(stream.answer.pieces) for stream in (to_the_end, by_the_clock, left)]
print(f"You read {read[0]}, {read[1]} and {read[2]} pieces.")

# %% [markdown]
# Fewer pieces than asked for. But did the server stop, or did it only stop telling you? The iteration log knows: it
# lists which request computed how many tokens. One more short request comes first, so that all before it is in the
# log.

# %% tags=["nbval-ignore-output"]
client.ask("Thank you!", 1)
computed = telemetry.last_requests(telemetry.iterations(log_path), 4).iloc[:-1]
computed.index = ["to the end", "stopped by the clock", "left in the loop"]
computed["asked for"] = ASKED
computed["read"] = read
computed["saved (%)"] = (100 * (1 - computed["iterations"] / ASKED)).round()
computed

# %% [markdown]
# One iteration is one token. The two that ended early computed as many tokens as you read, or a few more: an
# iteration that is under way is not broken off. The rest was never computed, and their slots were free at once.
#
# How does the word get through? The client sends a second request to `tensorrt_llm`, with the **same request id** and
# with the input `stop` set. The engine looks the id up and ends that request. That is TensorRT-LLM's own way, and
# `stop_after_s` does the same on a lab GPU.
#
# ## Sampling
#
# Without options the engine is greedy: it takes the likeliest token, each time. `temperature` flattens the choice,
# `top_k` limits it to the *k* likeliest, `top_p` to those that together have that probability. `random_seed` fixes
# the dice.

# %% tags=["nbval-ignore-output"]
import textwrap

dice = {"temperature": 0.9, "top_k": 50}
settings = [
    {},
    {},
    {**dice, "random_seed": 1},
    {**dice, "random_seed": 1},
    {**dice, "random_seed": 2},
    {"temperature": 2.0, "top_k": 200, "random_seed": 1},
]
texts = [
    client.ask("Write one sentence about a cat in the rain.", 28, **options).text
    for options in settings
]
for options, text in zip(settings, texts):
    print(
        options or "greedy", textwrap.indent(textwrap.fill(text, 100), "    "), sep="\n"
    )

# %%
print("greedy twice, the same text:", texts[0] == texts[1])
print("the same seed twice, the same text:", texts[2] == texts[3])
print("another seed, the same text:", texts[2] == texts[4])

# %% [markdown]
# The seed is 0 unless you give one, so a request that samples is as repeatable as a greedy one. Careful with one
# trap: `temperature` alone changes nothing. As long as `top_k` and `top_p` are both 0, the engine is greedy, here as
# in TensorRT-LLM.
#
# ## Bad input
#
# A good server refuses at once, in a sentence, and goes on. Read what your users will read:

# %%
mistakes = {
    "an empty prompt": lambda: client.ask(""),
    "no tokens wanted": lambda: client.ask("Hello", max_tokens=0),
    "a prompt of 3,000 words": lambda: client.ask("word " * 3000),
    "a temperature that is no number": lambda: client.ask(
        "Hello", temperature=float("nan")
    ),
    "a misspelt option": lambda: client.ask("Hello", temprature=0.5),
    "text that is not UTF-8": lambda: client.ask(b"\xff\xfe"),
    "a token id that the model does not have": lambda: client.ask_tokens(
        [1, 999_999], 4
    ),
    "a model that is not there": lambda: Client(server.grpc_url, model="gpt5").ask(
        "Hello"
    ),
}
for mistake, send in mistakes.items():
    try:
        send()
    except CourseError as error:
        print(
            f"{mistake}:",
            textwrap.indent(textwrap.fill(str(error), 100), "    "),
            sep="\n",
        )

# %%
print(
    "Paris in the next answer:",
    "Paris" in client.ask("Name the capital of France.").text,
)

# %% [markdown]
# Who refused? The misspelt option never left your client. The empty prompt and the bytes that are no text stopped in
# `preprocessing`, the model's name in Triton itself, all others in the engine, before they took a slot. There are no
# half-answers: a request is refused whole, and the next one is served.
#
# ## Read /metrics
#
# An operator does not see your notebook. An operator sees `/metrics`, a page of text that a Prometheus server
# collects. `telemetry.metrics` makes a table of it. **Counters** only grow: subtract two readings. **Gauges** show
# the moment: read them while something happens.


# %% tags=["nbval-ignore-output"]
def read_metrics():
    return telemetry.metrics(telemetry.page(server.metrics_url))


before = read_metrics()
with ThreadPoolExecutor(7) as users:
    others = [users.submit(streamed, prompt, 80, end_id=-1) for _ in range(7)]
    for number, _ in enumerate(client.stream(prompt, 80, end_id=-1)):
        if number == 40:
            during = read_metrics()  # in the middle of eight answers
pieces_of_others = sum(len(other.result().pieces) for other in others)
after = read_metrics()
print(
    f"While you read one stream, seven others brought {pieces_of_others} pieces; "
    f"a reading has {len(after)} samples."
)


# %% tags=["nbval-ignore-output"]
def served(reading):
    return reading[reading["name"] == "nv_inference_request_success"].set_index(
        "model"
    )["value"]


grown = (served(after) - served(before)).astype(int)
print(
    "Requests served meanwhile:",
    ", ".join(f"{model} {count}" for model, count in grown.sort_index().items()),
)
gauges = during[
    during["name"].isin(
        ["nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"]
    )
]
gauges = gauges.set_index(["name", "label"])["value"].sort_index()
gauges.to_frame()

# %% tags=["nbval-ignore-output"]
slots, blocks = (
    gauges["nv_trt_llm_request_metrics"],
    gauges["nv_trt_llm_kv_cache_block_metrics"],
)
print(
    f"In the middle, {slots['scheduled']:.0f} of {slots['max']:.0f} slots were taken, "
    f"{slots['waiting']:.0f} requests waited, "
    f"and {blocks['used']:.0f} of {blocks['max']:.0f} KV cache blocks were in use."
)
print(
    f"The ensemble served {grown['ensemble']} requests, "
    f"postprocessing {grown['postprocessing']}: one for each piece."
)

# %% [markdown]
# That last figure is the price of streaming: text is made for every token apart. With a slow tokenizer this step, not
# the model, sets the ITL.
#
# The engine refreshes its gauges every 100 ms (`stats_check_period_ms`); what comes and goes in between is in the
# iteration log, and not here.
#
# ## Turn the knob
#
# The playground sends what you type to the running server. Try, in this order:
#
# 1. **Run** as it is, then Run again: the same text, for the seed is the same.
# 2. `top_k` 1, then `top_k` 200 with a temperature of 2. Does the TTFT change? Does the ITL?
# 3. 400 tokens, and **Stop** in the middle. The slot is free at once.
#
# It needs the server: play before you run the last cell, which stops it. If it has run already, run the notebook
# again up to here.

# %% tags=["nbval-ignore-output"]
playground = widgets.Playground(server)
playground

# %% [markdown]
# ## On the lab GPU
#
# Triton is the same there, and so are the ports, the URLs and the tensors' names. The repository was filled with
# `decoupled_mode` `True`. Then `lab.sh launch`, and `lab.sh ready`, for the launcher comes back at once and a large engine
# takes minutes:
#
# ```bash
# {{function.launch}}
#
# {{function.inside_on_its_own}}
#
# {{function.ready}}
# ```
#
# The launcher starts one process for each GPU: with `GPUS=2`, `--world_size 2`; the first serves all models, and all ports.
# Then ask, and in the end stop it:
#
# ```bash
# {{function.query}}
#
# {{function.stop}}
# ```
#
# | Step | Here | With TensorRT-LLM |
# |---|---|---|
# | Start | `Server(repo).start()`, or `inflight serve` | `lab.sh launch` |
# | Ready? | `client.is_ready()` | `{{line.is_ready}}` |
# | Tensors | `client.metadata()` | `{{line.tensors}}` |
# | Whole | `client.ask("…", 64)` | `lab.sh query "…" 64` |
# | Streamed, HTTP | `Client(server.http_url).stream("…", 64)` | `lab.sh stream "…" 64`, which is `{{line.stream}}` |
# | Streamed, text, gRPC | `client.stream("…", 64)` | `{{line.text_client_streaming}}` |
# | Streamed, tokens | `client.stream_tokens(ids, 64)` | `{{line.token_client}}` |
# | Stop early | `stop_after_s=0.4` | `{{line.stop_by_id}}` |
# | Cancel | `stream.cancel()` | `{{line.stop_by_cancel}}` |
# | Metrics | `server.metrics_url` | `{{line.metrics}}` |
#
# The `curl` lines work against your server too: take its port from the cell that started it. What to know there:
#
# - `--stop-after-ms` needs `--request-id`. Without an id the backend answers "Trying to stop a request but request ID
#   is not provided".
# - The ensemble has no `stop` input, there as here: `end_to_end_grpc_client.py` has no option to stop early. Since
#   version 0.16 a cancelled request gives an empty result.
# - `--exclude-input-in-output`: the text client of 0.18 says "no" where it is missing, and the answer begins with the
#   prompt.
# - `generate` on a decoupled model works as long as the answer is one response. With `"stream": true` use
#   `generate_stream`.
# - The gauge `waiting` is another number there: requests that have a seat and were not in this iteration. Those who
#   wait *for* a seat are in no gauge. Count them at the client: sent, not answered, not `active`.
#
# {{name.tried}}
#
# ## What breaks
#
# **A plain call to a decoupled model.** `infer`, the request that every other Triton model takes, expects exactly one
# response:

# %%
inputs = [
    {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["Hello"]},
    {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [4]},
]
model_url = f"{server.http_url}/v2/models/ensemble"
print(
    httpx.post(
        f"{model_url}/infer", json={"inputs": inputs}, headers=server.headers
    ).json()["error"]
)
stream_by_generate = {"text_input": "Hello", "max_tokens": 4, "stream": True}
print(
    httpx.post(
        f"{model_url}/generate", json=stream_by_generate, headers=server.headers
    ).json()["error"]
)

# %% [markdown]
# Fix: a gRPC stream, or `generate_stream`. The course's client asks the server whether a model is decoupled and picks
# the right call; that is why `client.ask` worked all along.
#
# **A server that dies.** The worst moment is the middle of an answer. Kill it there, as the system does when memory
# runs out:

# %%
import os
import signal

dying = client.stream(prompt, ASKED, end_id=-1)
try:
    for piece in dying:
        if len(dying.answer.pieces) == 10:
            os.kill(server.pid, signal.SIGKILL)
except CourseError as error:
    print(str(error).replace(server.grpc_url, "HOST:PORT"))
print("some pieces, but not all:", 10 <= len(dying.answer.pieces) < ASKED)

# %% [markdown]
# The error comes at once, not after a time-out, and what you had read is still yours, in `dying.answer`. Whoever
# retries must send the whole request again: the KV cache died with the server.
#
# ## Recap
#
# - Streaming makes no answer faster. It shows each token when it is made: what you wait for shrinks from the
#   end-to-end latency to the TTFT.
# - End-to-end latency = TTFT + (tokens − 1) × ITL, and the ITL is the length of the engine's iterations.
# - Several users share an iteration. It gets longer, but far less than they get more: that is why batching pays.
# - A request that ends early frees its slot, and its tokens are never computed. Stop or cancel what nobody reads.
# - Counters tell what a server has done, gauges what it does now, and the iteration log why it took so long.
#
# Three questions to answer without running anything:
#
# <details><summary>1. An answer of 101 tokens has a TTFT of 200 ms and an ITL of 15 ms. When is its last token
# there?</summary>
#
# 200 ms + 100 × 15 ms = 1.7 s, streamed or not.
# </details>
#
# <details><summary>2. Your client closes the connection in the middle of an ensemble request. What else must happen
# so that the engine stops?</summary>
#
# The engine must hear of it: by a second request with the same id and <code>stop</code> set, or, where the client
# talks to
# <code>tensorrt_llm</code> itself, by Triton's cancellation, which the model looks for every
# <code>cancellation_check_period_ms</code>. In an ensemble Triton tells it only to steps that begin afterwards: with a
# stream that is <code>postprocessing</code> at the next token, and ours tells the engine. A whole answer has no such
# step before its end; <code>allotted_time_ms</code> bounds it.
# </details>
#
# <details><summary>3. TTFT doubles, ITL stays as it was. What do you look at first?</summary>
#
# At the queue: the gauge <code>waiting</code> here; with TensorRT-LLM what your clients have sent, less what is answered
# and <code>active</code>. Whoever waits for a slot has no first token yet, and those who sit do not notice. Longer prompts
# are the other candidate.
# </details>
#
# Now [do the lab]({lab}). Next comes {next}: who may sit down, and when.
#
# ## What runs
#
# The server belongs to this notebook, and so the widgets above go on working. It ends with the notebook's kernel, or when
# you stop it here. After a restarted kernel, or where a widget reads *model not found*, run the notebook again.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
