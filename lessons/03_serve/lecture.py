# %% [markdown]
# # {heading}
#
# {minutes} min, an estimate. Afterwards you will be able to
#
# - **write** a client for Triton with NVIDIA's `tritonclient`, for whole answers and for streamed ones;
# - **measure** what a user notices: time to first token, inter-token latency, end-to-end latency;
# - **end** an answer early, and show how much computing that saves.
#
# You need lessons 00 and 02: what a token, an ensemble and a `config.pbtxt` are. Engine, repository and server are made
# here. To begin in the middle, click a cell and choose *Run All Above Selected Cell* in the menu *Run*. A line under
# `# your line:` is for you: delete it, write it yourself, and compare with what is folded below.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Two teams send the same prompt to the same server. One reports: "It hangs, and then all the text appears at once." The
# other: "It starts writing immediately." The server's log shows the same answer for both, token for token.
#
# Both are right. What a user notices has three names, and this lesson measures each:
#
# - [TTFT](00_start_here.ipynb#TTFT), time to first token: from sending the request until the first token arrives.
# - [ITL](00_start_here.ipynb#ITL), inter-token latency: from one token to the next.
# - [End-to-end latency](00_start_here.ipynb#End-to-end-latency): from sending the request until the last token arrives.

# %%
import itertools
import os
import queue
import signal
import statistics
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pandas as pd
import tritonclient.grpc as triton
from IPython.display import Markdown, display
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from inflight import CourseError, engine
from inflight.checkpoint import fetch
from inflight.lessons import serve as lesson
from inflight.notebook import charts, progress, session, widgets
from inflight.triton import Client, OpenAIServer, Server, repository, telemetry

# %% [markdown]
# ## Predict
#
# One user asks, and waits for a whole answer. Then eight users ask at the same moment, each for just as many tokens. They
# share one model and the same CPU cores. Choose before you measure.

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "How many times as long as one user do the eight wait for their whole answers?",
    {
        "as long": 1,
        "about twice as long": 2,
        "about four times as long": 4,
        "about eight times as long": 8,
    },
    given=prediction,
)
assert guess.value == prediction
guess

# %% [markdown]
# ## Start the server
#
# `assemble` makes the repository of lesson 02. `decoupled_mode` is false for now: every request gets exactly one
# response. `iteration_log_path` names a file to which the engine adds a line per
# [iteration](00_start_here.ipynb#Iteration); you will read it below.

# %%
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine.cached(fetch()),
    decoupled_mode=False,
    iteration_log_path=log_path,
)
server = Server(repo)
with progress.wait("The server starts and loads its models"):
    server.start()
print("READY:", *sorted(model.name for model in server.models()))

# %% [markdown]
# ## A whole answer, by hand
#
# `tritonclient` is NVIDIA's client library. A request is a list of tensors, each with a name, a datatype and a shape. You
# need not guess them: the server describes its models.

# %%
connection = triton.InferenceServerClient(server.grpc_url)
config = connection.get_model_config("ensemble").config
required = [tensor.name for tensor in config.input if not tensor.optional]
print(f"The ensemble takes {len(config.input)} inputs. Required:", *required)
metadata = connection.get_model_metadata("ensemble", as_json=True)
pd.DataFrame(metadata["inputs"]).head(4)

# %% [markdown]
# All other inputs are options, such as stop words or a temperature. `BYTES` is Triton's datatype for text. The first
# dimension is the batch; we send a batch of one, so a single value has the shape `[1, 1]`. This is the whole client:


# %%
def tensor(name, datatype, value):
    """One value as an input of shape [1, 1]."""
    array = np.array([[value]], triton_to_np_dtype(datatype))
    return triton.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


question = "Name the capital of France."
request = [tensor("text_input", "BYTES", question), tensor("max_tokens", "INT32", 64)]
result = connection.infer("ensemble", request)
whole_text = result.as_numpy("text_output")[0].decode()
print(whole_text)

# %% [markdown]
# Over HTTP the same request needs no client library: Triton's endpoint `generate` takes a JSON object whose keys are the
# tensors' names. `server.http` is an ordinary `httpx` client with the server's address.

# %%
path = "/v2/models/ensemble/generate"
in_json = {"text_input": question, "max_tokens": 64}
reply = server.http.post(path, json=in_json, timeout=60).json()
print("The same text:", reply["text_output"] == whole_text)
assert reply["text_output"] == whole_text and "Paris" in whole_text

# %% [markdown]
# ## A streamed answer, by hand
#
# A model that may send several responses to one request is called [decoupled](00_start_here.ipynb#Decoupled), and its
# config says so. Change that value for the engine, load it again, and send the same request:

# %%
change = "model_transaction_policy { decoupled: true }"
print(repository.edit(repo, "tensorrt_llm", change))
server.load("tensorrt_llm")
try:
    connection.infer("ensemble", request)
except InferenceServerException as error:
    print("Refused:", error.message())

# %% [markdown]
# `ModelInfer` is what gRPC calls `infer`: one request, one response. But you changed the engine's config, and it is the
# *ensemble* that refuses. Ask the server what it now takes each model for:

# %%
for model in ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble"):
    policy = connection.get_model_config(model).config.model_transaction_policy
    print(f"{model:14}  decoupled: {policy.decoupled}")

# %% [markdown]
# The ensemble's own file says nothing about it. When Triton loads an ensemble, it looks at the steps: if one of them may
# answer several times, so may the ensemble. And when a step is loaded again, Triton also loads the ensemble again.
#
# A decoupled model is asked on a stream. You send a request on it; for each response `tritonclient` calls a function of
# yours, in a thread of its own. A queue brings the responses back to your thread:


# %%
def responses(request):
    """Yield each response to one request, on a stream of its own."""
    arrived = queue.Queue()
    with triton.InferenceServerClient(server.grpc_url) as stream:
        stream.start_stream(lambda result, error: arrived.put((result, error)))
        stream.async_stream_infer("ensemble", request, enable_empty_final_response=True)
        is_final = False
        while not is_final:
            result, error = arrived.get()
            if error is not None:
                raise error
            yield result
            parameters = result.get_response().parameters
            is_final = parameters["triton_final_response"].bool_param


# %% [markdown]
# How does the loop know the end? Triton marks the last response as final. With `enable_empty_final_response` it also sends
# one when no text is left; without that, this loop would wait for ever after the last token.


# %%
def stream_by_hand(prompt, max_tokens, *options):
    """Yield each piece of text, and the seconds from sending the request to it."""
    request = [
        tensor("text_input", "BYTES", prompt),
        tensor("max_tokens", "INT32", max_tokens),
        tensor("stream", "BOOL", True),
        *options,
    ]
    started = time.perf_counter()
    for result in responses(request):
        text = result.as_numpy("text_output")
        if text is not None:  # the final response may be empty
            yield text[0].decode(), time.perf_counter() - started


# %% [markdown]
# Ask twice. A `|` marks the end of each piece, which is one token.
#
# One line is yours: the ITL of an answer, from its arrival times `times_s`.

# %% tags=["nbval-ignore-output"]
for attempt in ("first", "second"):
    times_s = []
    for piece, after_s in stream_by_hand("What is a prime number?", 24):
        print(piece, end="|", flush=True)
        times_s.append(after_s)
    # your line: the median time from one token to the next, in milliseconds
    itl_ms = 1000 * statistics.median(np.diff(times_s))
    print(f"\n{attempt}: TTFT {1000 * times_s[0]:.0f} ms, ITL {itl_ms:.1f} ms,", end="")
    print(f" end-to-end {1000 * times_s[-1]:.0f} ms\n")
assert 0 < itl_ms < 1000 * times_s[-1]

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>itl_ms = 1000 * statistics.median(np.diff(times_s))</code>
# </details>
#
# Same prompt, and the TTFT of the first request is long? The engine's log says why. These are the iterations that
# computed the two prompts:

# %% tags=["nbval-ignore-output"]
log = telemetry.iterations(log_path)
prompts = log[log["context_tokens"] > 0].tail(2)
first_ms, second_ms = prompts["iteration_ms"]
print(f"The first took {first_ms / second_ms:.1f} times as long as the second.")
assert prompts["context_tokens"].nunique() == 1  # the same prompt
prompts[["context_tokens", "iteration_ms"]].round(1)

# %% [markdown]
# The engine had just been loaded, and a first iteration also does what is done only once, such as allocating memory and
# preparing kernels. That is why services send *warm-up* requests before they take traffic (vLLM does so before it reports
# ready), and why benchmarks leave the first requests out.
#
# From here on, the course's `Client` does this. It takes `infer` or a stream, whichever the model's config asks for,
# makes the tensors from keyword arguments, and turns the errors of three libraries into one sentence.

# %%
client = Client(server.grpc_url)


def streamed(prompt, max_tokens, **options):
    return client.stream(prompt, max_tokens, **options).read()


answer = streamed("What is a prime number?", 24)
by_hand = [piece for piece, _ in stream_by_hand("What is a prime number?", 24)]
print("the same pieces as by hand:", answer.pieces == by_hand)
assert answer.pieces == by_hand and len(answer.times_s) == len(by_hand)

# %% [markdown]
# ## Measure: whole and streamed, one user and eight
#
# Users who ask at the same moment are threads that send at the same moment. `end_id=-1` means that no token ends the answer,
# so that all answers have the same number of tokens (vLLM: `ignore_eos`).


# %%
class Run(NamedTuple):
    """The answers of users who ask at the same moment, and when that was."""

    answers: list
    started: float
    ended: float


def measure(send, num_users, num_tokens=32):
    def ask(_):
        return send("Explain how rain forms.", num_tokens, end_id=-1)

    with ThreadPoolExecutor(num_users) as users:
        started = time.time()
        answers = list(users.map(ask, range(num_users)))
    return Run(answers, started, time.time())


# %% [markdown]
# Each case runs once to warm up. Then the four take turns, three times, so that a moment in which the machine is busy
# does not hit one case alone.

# %% tags=["nbval-ignore-output"]
cases = {
    "one user, whole": (client.ask, 1),
    "one user, streamed": (streamed, 1),
    "eight users, whole": (client.ask, 8),
    "eight users, streamed": (streamed, 8),
}
for send, num_users in cases.values():
    measure(send, num_users, num_tokens=4)
rounds = [
    {case: measure(*how) for case, how in cases.items()}
    for _ in progress.over(range(3), "Round", lambda _: "all four cases")
]
spans = [{case: run.ended - run.started for case, run in one.items()} for one in rounds]
seconds = pd.DataFrame(spans, index=["round 1", "round 2", "round 3"]).T
assert all(len(a.pieces) == 32 for a in rounds[0]["eight users, streamed"].answers)
seconds.round(2)

# %% [markdown]
# Seconds until the last token of the last user. Compare the rounds with each other before you compare the cases.
#
# ## See
#
# The last round. Grey: nothing to read yet. A square: an answer that came whole. A tick: a token of a streamed answer.

# %% tags=["nbval-ignore-output"]
pieces = pd.DataFrame(
    [
        (case, user, time_s)
        for case, run in rounds[-1].items()
        for user, answer in enumerate(run.answers)
        for time_s in answer.times_s
    ],
    columns=["case", "user", "time_s"],
)
[whole] = rounds[-1]["one user, whole"].answers
[alone] = rounds[-1]["one user, streamed"].answers
crowd = rounds[-1]["eight users, streamed"].answers
itl_ms = [1000 * statistics.median(one.inter_token_s) for one in (alone, *crowd)]
summary = (
    "Time lines of answers of 32 tokens. One user sees nothing for "
    f"{whole.latency_s:.2f} s when the answer comes whole, and for "
    f"{alone.time_to_first_s:.2f} s when it is streamed; the last token arrives "
    f"after {alone.latency_s:.2f} s. From token to token it is "
    f"{itl_ms[0]:.0f} ms for one user and {max(itl_ms[1:]):.0f} ms for eight."
)
charts.show(lesson.token_timeline(pieces), summary)
display(Markdown(summary))

# %% [markdown]
# The two upper rows are the same work. Streaming hands out each token when it is made, so the grey shrinks to the TTFT. One
# of the two teams streams, the other does not.
#
# Now your prediction. It was about whole answers:

# %% tags=["nbval-ignore-output"]
ratios = seconds.loc["eight users, whole"] / seconds.loc["one user, whole"]
times_as_long = ratios.median()
print(f"{ratios.min():.1f} to {ratios.max():.1f} times as long in three rounds.")
print(guess.score(times_as_long))
print(f"Together they got {8 / times_as_long:.1f} times as many tokens per second.")
assert len(ratios) == 3

# %% [markdown]
# ## Who came first?
#
# Look at the left edge of the lowest block: the eight rows need not begin together. The engine's log has the reason. These
# are its first iterations of that run:

# %% tags=["nbval-ignore-output"]
together = rounds[-1]["eight users, streamed"]
log = telemetry.iterations(log_path)
ours = log[log["timestamp"].between(together.started, together.ended)]
firsts_ms = sorted(1000 * answer.time_to_first_s for answer in together.answers)
print("TTFT of the eight, in ms:", *(f"{first_ms:.0f}" for first_ms in firsts_ms))
assert ours["generation_tokens"].sum() == 8 * (32 - 1)
columns = ["context_tokens", "generation_tokens", "scheduled", "waiting"]
ours[[*columns, "iteration_ms"]].head(5).round(1).reset_index(drop=True)

# %% [markdown]
# Eight threads send at the same moment, but requests arrive one by one, and an idle engine waits for nobody. It starts with
# the prompts that are there (`scheduled`). Those that come meanwhile are `waiting`, and are taken in at the next
# iteration: all their prompts at once, so that one is long. Users who came first wait for it too, for their second token.
#
# After that, each iteration gives every user one token. Coming first shortens the TTFT, and nothing else. Lesson 04 is
# about who may start when.
#
# ## Explain
#
# A streamed answer of *n* tokens takes
#
# > end-to-end latency = TTFT + (*n* − 1) × ITL
#
# One iteration computes one token for every running user, so the ITL should be the length of an iteration, whatever the
# number of users. The log has that length as the engine measures it, without Triton and without your client:

# %% tags=["nbval-ignore-output"]
rows = []
for case in ("one user, streamed", "eight users, streamed"):
    run = rounds[-1][case]
    ours = log[log["timestamp"].between(run.started, run.ended)]
    iteration_ms = ours.loc[ours["context_tokens"] == 0, "iteration_ms"].median()
    ttft_ms = 1000 * statistics.median(answer.time_to_first_s for answer in run.answers)
    measured_ms = 1000 * statistics.median(answer.latency_s for answer in run.answers)
    # your line: the end-to-end latency of 32 tokens, from ttft_ms and iteration_ms
    predicted_ms = ttft_ms + (32 - 1) * iteration_ms
    rows.append((case, ttft_ms, iteration_ms, predicted_ms, measured_ms))
columns = ["case (all in ms)", "TTFT", "iteration", "predicted", "measured"]
explained = pd.DataFrame(rows, columns=columns).set_index("case (all in ms)")
one_ms, eight_ms = explained["iteration"]
print(f"With eight users an iteration takes {eight_ms / one_ms:.1f} times as long,")
print("and computes eight times as many tokens.")
assert explained.notna().all(axis=None)
explained.round(1)

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>predicted_ms = ttft_ms + (32 - 1) * iteration_ms</code>
# </details>
#
# An iteration reads the model's weights from memory once, however many users share it; only the arithmetic and the
# attention grow with each user. The formula counts nothing but iterations. Between them, tokens travel through Triton,
# `postprocessing` and your own threads, on the same cores; and a median leaves the slow iterations out.
#
# ## What streaming costs
#
# Streaming brings the first token earlier. Does it bring the last token later? Compare within each round:

# %% tags=["nbval-ignore-output"]
for users in ("one user", "eight users"):
    ratios = seconds.loc[f"{users}, streamed"] / seconds.loc[f"{users}, whole"]
    print(f"{users}: {ratios.min():.2f} to {ratios.max():.2f} times as late, ", end="")
    if ratios.min() > 1:
        print("later in all three rounds.")
    else:
        print("not later in every round, so this run shows no cost.")
assert (seconds > 0).all(axis=None)

# %% [markdown]
# Seconds depend on what else the machine does; counts do not. Triton counts the calls of `postprocessing`, a moment after
# an answer has left: `settled` waits until the count stands still.


# %%
def calls():
    counted = connection.get_inference_statistics("postprocessing")
    return counted.model_stats[0].execution_count


for how, send in {"whole": client.ask, "streamed": streamed}.items():
    before = telemetry.settled(calls)
    measure(send, num_users=8, num_tokens=16)
    print(f"Eight answers, {how}: {telemetry.settled(calls) - before} calls")

# %% [markdown]
# A whole answer passes `postprocessing` once, a streamed one once per token. Each call goes from process to process,
# then to you as a message of its own. Here that work uses the cores on which the engine computes.
#
# ## Stop early
#
# A user closes the tab. Does the server stop computing, or does it only stop sending? The engine's log tells: it counts the
# tokens of each iteration. An iteration with a prompt (`context_tokens`) gives a token as well.


# %%
ASKED, story = 96, "Tell me a long story about a river."
no_end = tensor("end_id", "INT32", -1)
ways = {
    "Client, to the end": (lambda: client.stream(story, ASKED, end_id=-1), ASKED),
    "by hand, left after 20": (lambda: stream_by_hand(story, ASKED, no_end), 20),
    "Client, left after 20": (lambda: client.stream(story, ASKED, end_id=-1), 20),
}


def num_iterations():
    return len(telemetry.iterations(log_path))


# %% tags=["nbval-ignore-output"]
rows = []
for way, (ask, most) in ways.items():
    since = telemetry.settled(num_iterations)
    read = len(list(itertools.islice(ask(), most)))  # then nobody reads on
    ours = telemetry.iterations(log_path)[since : telemetry.settled(num_iterations)]
    computed = ours["generation_tokens"].sum() + (ours["context_tokens"] > 0).sum()
    # your line: the percentage of the tokens asked for that was not computed
    saved = 100 * (1 - computed / ASKED)
    rows.append((way, read, computed, round(saved)))
columns = ["way", "read", "tokens computed", "saved (%)"]
stopped = pd.DataFrame(rows, columns=columns).set_index("way")
assert stopped["tokens computed"].tolist()[:2] == [ASKED, ASKED]
assert 20 <= stopped["tokens computed"].iloc[2] < ASKED
stopped

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>saved = 100 * (1 - computed / ASKED)</code>
# </details>
#
# By hand, leaving the loop saved nothing: the connection is closed in good order, which means that `tritonclient` waits for
# the rest, and the engine computes it for nobody. `Client` cancels the stream, and the engine computed what you read, and
# at most a few tokens more. The request's slot is free at once.
#
# How does the engine hear of it? There are two ways:
#
# - **Cancel the gRPC stream**, as `Client` does. Triton tells only those steps of an ensemble that begin afterwards. Here
#   `postprocessing` notices at the next token, and tells the engine. In the lab, your client does this.
# - **Send a second request** to `tensorrt_llm` with the same request id and the input `stop`: TensorRT-LLM's own way.
#
# ## Sampling
#
# By default this engine is greedy: it takes the likeliest token each time. `temperature` flattens the probabilities,
# `top_k` keeps the *k* likeliest tokens, `top_p` those that together reach that probability. `random_seed` fixes the
# random numbers.

# %% tags=["nbval-ignore-output"]
top_50 = {"temperature": 0.9, "top_k": 50}
settings = {
    "greedy": {},
    "temperature alone": {"temperature": 2.0},
    "seed 1": {**top_50, "random_seed": 1},
    "seed 1 again": {**top_50, "random_seed": 1},
    "seed 2": {**top_50, "random_seed": 2},
}
texts = {}
for name, options in settings.items():
    texts[name] = client.ask("Write a sentence about a cat.", 20, **options).text
    print(textwrap.fill(f"{name}: {texts[name]}", 88))
assert texts["greedy"] == texts["temperature alone"]
assert texts["seed 1"] == texts["seed 1 again"] != texts["seed 2"]

# %% [markdown]
# The same seed gives the same text. And a trap: `temperature` alone changed nothing. As long as neither `top_k` nor
# `top_p` is set, the engine stays greedy, as TensorRT-LLM's engine backend did. In vLLM `temperature` is enough.
#
# ## Bad input
#
# A good server refuses at once, in a sentence, and goes on serving:

# %%
mistakes = {
    "an empty prompt": {"text": ""},
    "no tokens wanted": {"text": "Hello", "max_tokens": 0},
    "a prompt of 3,000 words": {"text": "word " * 3000},
    "a misspelt option": {"text": "Hello", "temprature": 0.5},
}
for mistake, given in mistakes.items():
    try:
        client.ask(**given)
    except CourseError as error:
        print(f"{mistake}:\n{textwrap.indent(textwrap.fill(str(error), 84), '    ')}")
assert "Paris" in client.ask(question).text

# %% [markdown]
# The misspelt option never left your client. `preprocessing` refused the empty prompt; the engine refused the other two,
# before they took a slot.
#
# ## Read /metrics
#
# An operator does not see your notebook, but `/metrics`: a page of text that a Prometheus server collects
# ([Triton's list](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/metrics.html)).
# `telemetry.metrics` makes a table of it. **Counters** only grow: read them twice and subtract.
# **Gauges** show the moment: read them while something happens.


# %% tags=["nbval-ignore-output"]
def read_metrics():
    return telemetry.metrics(telemetry.page(server.metrics_url)).set_index("name")


def served():
    counters = read_metrics().loc["nv_inference_request_success"]
    return counters.set_index("model")["value"].astype(int).to_dict()


before = telemetry.settled(served)
with ThreadPoolExecutor(7) as users:
    others = [users.submit(streamed, story, 64, end_id=-1) for _ in range(7)]
    for number, _ in enumerate(client.stream(story, 64, end_id=-1)):
        if number == 40:
            during = read_metrics()  # in the middle of eight answers
after = telemetry.settled(served)
grown = {model: after[model] - before[model] for model in sorted(after)}
print("Requests served meanwhile:", grown)
assert grown["ensemble"] == 8 and grown["postprocessing"] == 8 * 64

# %% tags=["nbval-ignore-output"]
slots = during.loc["nv_trt_llm_request_metrics"].set_index("label")["value"]
blocks = during.loc["nv_trt_llm_kv_cache_block_metrics"].set_index("label")["value"]
print(
    f"In the middle, {slots['scheduled']:.0f} of {slots['max']:.0f} slots were taken, "
    f"{slots['waiting']:.0f} requests waited,\n"
    f"and {blocks['used']:.0f} of {blocks['max']:.0f} KV cache blocks were in use."
)
assert slots["max"] == 8

# %% [markdown]
# The engine refreshes its gauges every 100 ms (`stats_check_period_ms`). Only the iteration log has what came and went
# in between.
#
# ## Turn the knob
#
# The playground sends your prompt to the running server, and measures TTFT and ITL. Try, in this order:
#
# 1. **Run**, and Run again. Is the text the same? (The seed is.)
# 2. `top_k` 1, then `top_k` 200 with temperature 2. Does the TTFT change? Does the ITL?
# 3. A prompt of a hundred words. Which of the two changes now?
# 4. 400 tokens, and **Stop** in the middle.

# %%
playground = widgets.Playground(server)
assert playground.frame is None  # nothing is sent before you press Run
playground

# %% [markdown]
# ## The protocol that everybody's client speaks
#
# Most applications know no tensors: they speak OpenAI's protocol. `OpenAIServer` puts it in front of the running Triton,
# of which it takes the address, and the engine's folder; in a terminal, `inflight serve --openai-port 9000` does. Triton has such a front end as well, which the course does not use
# because it runs inside the server's process and needs NVIDIA's build of it.

# %%
messages = [{"role": "user", "content": question}]
in_openai = {"messages": messages, "max_tokens": 64, "temperature": 0}
with OpenAIServer(server.grpc_url, engine.cached(fetch())) as in_front:
    url = f"{in_front.url}/chat/completions"
    reply = httpx.post(url, json=in_openai, timeout=60).json()
print(reply["choices"][0], reply["usage"], sep="\n")
assert reply["choices"][0]["message"]["content"] == whole_text

# %% [markdown]
# It is the text of your first request. `OpenAIServer` applies the chat template, turns the text into tokens, asks `tensorrt_llm`
# on a stream, and counts. `finish_reason` is `stop` when the model ended the answer, and `length` when `max_tokens` did.
#
# ## Elsewhere
#
# Names and tensors here are those of TensorRT-LLM's engine backend, which was removed in July 2026: your client fits the
# containers up to then. Today's Triton container serves a model called `llmapi`, without an ensemble and with other names,
# such as `sampling_param_max_tokens` for `max_tokens`; `inflight serve --contract llmapi` does so here. vLLM's server speaks
# OpenAI's protocol.
# [How to start the first two on a GPU](../assets/lab-gpu/README.md).
#
# | | Here | `llmapi` | vLLM |
# |---|---|---|---|
# | Ready? | `/v2/health/ready` | the same | `/health` |
# | Whole | `generate` | `generate` | `/v1/completions` |
# | Streamed | decoupled, each piece new | decoupled, each piece has all so far | `"stream": true` |
# | Stop early | cancel, or `stop` | the same | close the connection |
# | Who waits | gauge `waiting` | count at the client | `num_requests_waiting` |
#
# ## What breaks
#
# The worst moment for a server to die is the middle of an answer. Start a second one, and kill it there, as the
# system does when memory runs out:

# %%
victim = Server(repo)
with progress.wait("A second server starts"):
    victim.start()
dying = Client(victim.grpc_url).stream(story, ASKED, end_id=-1)
try:
    for _ in dying:
        if len(dying.answer.pieces) == 10:
            os.kill(victim.pid, signal.SIGKILL)
except CourseError as error:
    message = str(error).replace(victim.grpc_url, "HOST:PORT")
    print(textwrap.fill(message, 88))
assert 10 <= len(dying.answer.pieces) < ASKED

# %% [markdown]
# The error comes at once, not after a time-out, and what you had read is still in `dying.answer`. To try again you must
# send the whole request: the KV cache died with the server.
#
# ## Recap
#
# - A client of Triton sends tensors with `infer`, or on a stream if the model is decoupled. An ensemble is decoupled if one
#   of its steps is.
# - Streaming shows each token when it is made, so the wait shrinks to the TTFT. It costs one call of `postprocessing`
#   per token.
# - End-to-end latency = TTFT + (tokens − 1) × ITL, and the ITL is the length of an iteration, which all users share.
# - Leaving the loop is not cancelling. A request that is cancelled frees its slot, and its remaining tokens are never
#   computed.
# - Counters say what a server has done, gauges what it is doing, the iteration log how long each step took.
#
# Three questions to answer without running anything:
#
# <details><summary>1. An answer of 101 tokens has a TTFT of 200 ms and an ITL of 15 ms. When does its last token
# arrive?</summary>
#
# After 200 ms + 100 × 15 ms = 1.7 s.
# </details>
#
# <details><summary>2. Your client cancels a <i>whole</i> answer of the ensemble, not a streamed one. What does the engine
# hear of it?</summary>
#
# Nothing before its end: Triton tells a cancellation only to steps that begin afterwards, and <code>postprocessing</code>
# begins when the answer is complete. A request with the same id and <code>stop</code> reaches the engine, or
# <code>allotted_time_ms</code> bounds the request from the start.
# </details>
#
# <details><summary>3. TTFT doubles, ITL stays as it was. What do you look at first?</summary>
#
# At the queue: the gauge <code>waiting</code>, in vLLM <code>vllm:num_requests_waiting</code>. A request that waits for a slot
# has no first token yet, and those that have a slot do not notice. Longer prompts are the other candidate.
# </details>
#
# Now [do the lab]({lab}). Next comes {next}: who may start, and when.
#
# ## What runs
#
# The first server still runs, for the playground. It ends with the notebook's kernel.

# %% tags=["nbval-ignore-output"]
session.running()
