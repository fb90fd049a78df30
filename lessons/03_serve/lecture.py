# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **write** a client for Triton with NVIDIA's `tritonclient` alone, whole answers and streamed ones;
# - **measure** what a user feels of an answer: time to first token, inter-token latency, end-to-end latency;
# - **end** an answer early and show how much work that saved.
#
# You need nothing but this notebook: engine and model repository, as in lessons 01 and 02, are made here.
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
# One user asks, and waits for the whole answer. Now eight users ask at the same moment, each for as many tokens. There are
# two CPU cores or so, and one model. Commit yourself before you measure.

# %% tags=["setup"]
from inflight.notebook import progress, widgets

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["setup", "nbval-ignore-output"]
guess = widgets.predict(
    "Eight users ask at once. "
    "How many times as long as a lone user does each of them wait for a whole answer?",
    {"about as long": 1, "about twice as long": 2, "about eight times as long": 8},
    given=prediction,
)
assert guess.value == prediction
guess

# %% [markdown]
# ## Start the server
#
# The repository comes from lesson 02's `assemble`. `decoupled_mode` is false for now: every request gets exactly one
# response. `iteration_log_path` names a file in which the engine notes each of its
# [iterations](00_start_here.ipynb#Iteration); you will read it below.

# %% tags=["setup"]
import tempfile
from pathlib import Path

from inflight import engine
from inflight.checkpoint import fetch
from inflight.notebook import catch_up
from inflight.triton import Server, repository

catch_up("03", "Start the server")
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
# `start` runs the `tritonserver` that you started by hand in lesson 02, and waits until every model is ready. It has three
# ports on 127.0.0.1: for HTTP, for gRPC, for the metrics.
#
# ## A whole answer, by hand
#
# NVIDIA's `tritonclient` is what most services use to talk to Triton. A request is a list of tensors, each with a name,
# a datatype and a shape. Nobody has to guess these: the server tells them.

# %% tags=["setup"]
import pandas as pd
import tritonclient.grpc as triton

from inflight.notebook import catch_up

catch_up("03", "A whole answer, by hand")
with triton.InferenceServerClient(server.grpc_url) as connection:
    metadata = connection.get_model_metadata(
        "ensemble", headers=server.headers, as_json=True
    )
tensors = pd.DataFrame(metadata["inputs"])
print(f"The ensemble has {len(tensors)} inputs; the first two are required:")
tensors.head(4)

# %% [markdown]
# The -1 in front is the batch; ours is a batch of one, so a single value has the shape `[1, 1]`. `BYTES` is Triton's
# word for text. This is the whole client:

# %% tags=["setup"]
import numpy as np
from tritonclient.utils import triton_to_np_dtype


def tensor(name, datatype, value):
    """One value as an input of shape [1, 1]."""
    array = np.array([[value]], triton_to_np_dtype(datatype))
    made = triton.InferInput(name, array.shape, datatype)
    made.set_data_from_numpy(array)
    return made


question = "Name the capital of France."
request = [tensor("text_input", "BYTES", question), tensor("max_tokens", "INT32", 64)]
with triton.InferenceServerClient(server.grpc_url) as connection:
    result = connection.infer("ensemble", request, headers=server.headers)
whole_text = result.as_numpy("text_output")[0].decode()
print(whole_text)

# %% [markdown]
# `headers` carry the key, which loading a model takes and a request ignores. The same request needs no library at
# all: over HTTP, here by httpx, it is one JSON object, whose keys are the tensors' names.

# %%
path = "/v2/models/ensemble/generate"
in_json = {"text_input": question, "max_tokens": 64}
reply = server.http.post(path, json=in_json, timeout=60).json()
print("keys:", *sorted(reply))
assert reply["text_output"] == whole_text and "Paris" in whole_text

# %% [markdown]
# The same text, and both times you waited for all of it.
#
# ## A streamed answer, by hand
#
# A model that may answer a request several times is called [decoupled](00_start_here.ipynb#Decoupled), and its config says
# so. Change that one value, load the engine again, and send the same request:

# %% tags=["setup"]
from tritonclient.utils import InferenceServerException

from inflight.notebook import catch_up

catch_up("03", "A streamed answer, by hand")
config_path = repo / "tensorrt_llm" / "config.pbtxt"
config = repository.read_config(config_path)
config.model_transaction_policy.decoupled = True
repository.write_config(config, config_path)
server.load("tensorrt_llm")
try:
    with triton.InferenceServerClient(server.grpc_url) as connection:
        connection.infer("ensemble", request, headers=server.headers)
except InferenceServerException as error:
    print(error.message())

# %% [markdown]
# "ModelInfer" is `infer`: one request, one response. A decoupled model wants a stream, into which you put requests and
# out of which responses come, in a thread of tritonclient's own:

# %% tags=["setup"]
import queue
import time


def stream_by_hand(prompt, max_tokens):
    """Yield each piece of the answer, and the seconds until it was there."""
    arrived, started = queue.Queue(), time.perf_counter()
    request = [
        tensor("text_input", "BYTES", prompt),
        tensor("max_tokens", "INT32", max_tokens),
        tensor("stream", "BOOL", True),
    ]
    with triton.InferenceServerClient(server.grpc_url) as connection:
        connection.start_stream(
            lambda result, error: arrived.put((result, error)), headers=server.headers
        )
        connection.async_stream_infer(
            "ensemble", request, enable_empty_final_response=True
        )
        is_final = False
        while not is_final:
            result, error = arrived.get()
            if error is not None:
                raise error
            parameters = result.get_response().parameters
            is_final = parameters["triton_final_response"].bool_param
            text = result.as_numpy("text_output")
            if text is not None:
                yield text[0].decode(), time.perf_counter() - started


# %% [markdown]
# How does the loop know the end? Triton marks the last response as final, and sends an empty one where there is no
# text left; without `enable_empty_final_response` the loop would wait for ever. A `|` shows where a piece ends.

# %%
pieces = []
for piece, after_s in stream_by_hand("What is a prime number?", 24):
    pieces.append((piece, after_s))
    print(piece, end="|", flush=True)
print(
    f"\n{len(pieces)} pieces; the first after {pieces[0][1] * 1000:.0f} ms, "
    f"the last after {pieces[-1][1] * 1000:.0f} ms."
)

# %% [markdown]
# Now the course's client, which has the same in it:

# %% tags=["setup"]
from inflight.triton import Client, telemetry

client = Client(server.grpc_url)


def streamed(prompt, max_tokens, **options):
    return client.stream(prompt, max_tokens, **options).read()


answer = streamed("What is a prime number?", 24)
by_hand = [piece for piece, _ in stream_by_hand("What is a prime number?", 24)]
print("the same pieces as by hand:", answer.pieces == by_hand)
assert answer.pieces == by_hand and len(answer.times_s) == len(by_hand)

# %% [markdown]
# What it saves you, besides the typing:
#
# | By hand | `Client` |
# |---|---|
# | `infer` or a stream, as the model's config wants it | asks the server, and takes the right one |
# | every option a tensor of its type | `temperature=0.9`; a misspelt name is refused before it is sent |
# | an error from three libraries, or no end at all | one sentence, also when the server dies or does not answer |
# | leaving the loop waits for the rest of the answer | leaving the loop ends the request in the engine |
#
# Triton's own pages say more of [decoupled models](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/decoupled_models.html)
# and of the [client libraries](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/client/README.html).
#
# ## Measure: whole and streamed, one user and eight
#
# `measure` sends the same request for several users at the same moment, each from a thread of its own.
# `end_id=-1` means that no token ends the answer, so that every answer has the same number of tokens.
#
# The first request of each kind pays for what is done once (memory, threads), so each kind runs once unmeasured. Then
# each runs three times, taking turns, and the middle one counts: a machine that does other things too is never quite the same.

# %% tags=["setup"]
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from inflight.notebook import catch_up

catch_up("03", "Measure: whole and streamed, one user and eight")
NUM_TOKENS = 48


class Run(NamedTuple):
    """The answers of users who ask at the same moment, and when that was."""

    answers: list
    started: float
    ended: float


def measure(send, num_users):
    def ask(_):
        return send("Explain how rain forms.", NUM_TOKENS, end_id=-1)

    with ThreadPoolExecutor(num_users) as users:
        started = time.time()
        answers = list(users.map(ask, range(num_users)))
    return Run(answers, started, time.time())


# %% tags=["setup", "long", "nbval-ignore-output"]
cases = {
    "one user, whole": (client.ask, 1),
    "one user, streamed": (streamed, 1),
    "eight users, whole": (client.ask, 8),
    "eight users, streamed": (streamed, 8),
}


def duration_s(run):
    return run.ended - run.started


rounds = []
for _ in progress.over(
    ("to warm up", "1", "2", "3"), "All four cases", "round {}".format
):
    rounds.append({case: measure(*how) for case, how in cases.items()})
del rounds[0]  # the one to warm up
runs = {
    case: sorted((one[case] for one in rounds), key=duration_s)[1] for case in cases
}
for case, run in runs.items():
    print(f"{case:22} {duration_s(run):.2f} s until the last word")
streams = [run.answers for case, run in runs.items() if "streamed" in case]
assert {len(answer.pieces) for run in streams for answer in run} == {NUM_TOKENS}

# %% [markdown]
# ## See
#
# Grey: nothing to read yet. A square: an answer given whole. A tick: one piece of a streamed answer.

# %% tags=["nbval-ignore-output"]
from IPython.display import Markdown, display

from inflight.lessons import serve as lesson
from inflight.notebook import catch_up, charts

catch_up("03", "See")
pieces = pd.DataFrame(
    [
        (case, user, time_s)
        for case, run in runs.items()
        for user, answer in enumerate(run.answers)
        for time_s in answer.times_s
    ],
    columns=["case", "user", "time_s"],
)
[whole], [alone] = (runs[f"one user, {how}"].answers for how in ("whole", "streamed"))
crowd = runs["eight users, streamed"].answers
slowest_s = max(answer.latency_s for answer in crowd)
summary = (
    f"Time lines of answers of {NUM_TOKENS} tokens. "
    f"A lone user sees nothing for {whole.latency_s:.2f} s when the answer comes "
    f"whole, and for {alone.time_to_first_s:.2f} s when it is streamed; "
    f"the last token comes after {alone.latency_s:.2f} s. "
    "With eight users at once the ticks lie farther apart, "
    f"and the last token of the slowest comes after {slowest_s:.2f} s."
)
charts.show(lesson.token_timeline(pieces), summary)
display(Markdown(summary))

# %% [markdown]
# The two upper rows: the same work, token for token. Streaming gives each token away when it is made, and the grey
# shrinks to the TTFT. So both teams were right: one of them does not stream.
#
# Compare with the two lower blocks, and with your prediction:

# %% tags=["nbval-ignore-output"]
crowd_s = statistics.median(answer.latency_s for answer in crowd)
times_as_long = crowd_s / alone.latency_s
print(f"Measured: {times_as_long:.1f} times as long. {guess.score(times_as_long)}")
print(
    f"Eight answers in {times_as_long:.1f} times the time of one: "
    f"{8 / times_as_long:.1f} times as many tokens a second."
)
assert len(crowd) == 8 and len(alone.pieces) == NUM_TOKENS

# %% [markdown]
# ## One of eight is first
#
# Look at the left edge of the lowest block: one user reads long before the other seven. Is that user served better?
# The engine's log has what happened, iteration by iteration. These are the first five of that run:

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("03", "One of eight is first")
together = runs["eight users, streamed"]
log = telemetry.iterations(log_path)
ours = log[log["timestamp"].between(together.started, together.ended)]
assert ours["generation_tokens"].sum() == 8 * (NUM_TOKENS - 1)
first, *others = sorted(answer.time_to_first_s * 1000 for answer in together.answers)
gaps_ms = [
    1000 * statistics.median(answer.inter_token_s) for answer in together.answers
]
print(f"The first word after {first:.0f} ms for one user,")
print(f"after {others[0]:.0f} to {others[-1]:.0f} ms for the others;")
print(f"from word to word {min(gaps_ms):.0f} to {max(gaps_ms):.0f} ms for all eight.")
columns = [
    "context_tokens",
    "generation_tokens",
    "scheduled",
    "waiting",
    "iteration_ms",
]
ours[columns].head(5).round(1).reset_index(drop=True)

# %% [markdown]
# Eight threads send at the same moment, but their requests arrive one by one, and the engine waits for nobody. With the
# first in its hands it begins an iteration: one prompt in `context_tokens`, the others in `waiting`. They are taken in
# at the next, all their prompts at once, and that is a long one. The early user pays for it too: the second tick of
# that row comes only when the long iteration is over.
#
# From then on every iteration gives each of them one token. So what you see is the order of arrival, and it shows in the
# TTFT alone. Lesson 04 asks who may sit down, and when.
#
# ## Explain
#
# A streamed answer of *n* tokens arrives like this:
#
# > end-to-end = TTFT + (*n* − 1) × ITL
#
# The engine computes one token for every running user in one iteration. So the ITL is the length of an iteration,
# however many share it. The log has those lengths, measured inside the engine, without Triton and without you:

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("03", "Explain")
log = telemetry.iterations(log_path)
rows = []
for case in ("one user, streamed", "eight users, streamed"):
    ours = log[log["timestamp"].between(runs[case].started, runs[case].ended)]
    prompts = ours[ours["context_tokens"] > 0]
    tokens = ours[ours["context_tokens"] == 0]
    token_ms = tokens["iteration_ms"].median()
    predicted_s = (prompts["iteration_ms"].sum() + (NUM_TOKENS - 1) * token_ms) / 1000
    measured_s = np.median([answer.latency_s for answer in runs[case].answers])
    rows.append((case, token_ms, predicted_s, measured_s, predicted_s / measured_s))
columns = [
    "case",
    "an iteration (ms)",
    "predicted (s)",
    "measured (s)",
    "predicted / measured",
]
explained = pd.DataFrame(rows, columns=columns).set_index("case")
one_ms, eight_ms = explained["an iteration (ms)"]
print(f"An iteration of eight takes {eight_ms / one_ms:.1f} times as long as of one:")
print("the weights are read from memory once an iteration, whoever shares it.")
assert len(log) >= NUM_TOKENS and explained.notna().all(axis=None)
explained.round(2)

# %% [markdown]
# The prediction uses the engine's times alone. The rest lies around the engine: the way through Triton,
# `postprocessing`, and your own threads, which share its cores. And it takes the median of the iterations, where the sum
# has the slow ones too. So the formula errs on the early side, and the more so the busier the machine.
#
# ## What streaming costs
#
# Streaming gives the first word early. Does it make the last word late? Count before you judge: Triton's statistics
# say how often `postprocessing` was called, the log how long an iteration was.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("03", "What streaming costs")


def executions():
    return telemetry.statistics(server.http_url, "postprocessing").executions


rows = []
for case in progress.over(cases, "Once more"):
    send, num_users = cases[case]
    before = telemetry.settled(executions)
    counted = measure(send, num_users)
    calls = telemetry.settled(executions) - before
    log = telemetry.iterations(log_path)
    ours = log[log["timestamp"].between(counted.started, counted.ended)]
    last_word_s = statistics.median(duration_s(one[case]) for one in rounds)
    rows.append((case, calls, ours["iteration_ms"].median(), last_word_s))
    assert calls == sum(len(answer.pieces) for answer in counted.answers)
columns = ["case", "postprocessing calls", "an iteration (ms)", "last word (s)"]
price = pd.DataFrame(rows, columns=columns).set_index("case")
price.round(2)

# %% tags=["nbval-ignore-output"]
for users in ("one user", "eight users"):
    times_as_late = sorted(
        duration_s(one[f"{users}, streamed"]) / duration_s(one[f"{users}, whole"])
        for one in rounds
    )
    least, middle, most = times_as_late
    print(f"{users}: the last word {middle:.2f} times as late when streamed,")
    print(f"    {least:.2f} to {most:.2f} in three rounds", end="")
    print("." if middle > 1 else ": the machine has other things to do. Run it again.")

# %% [markdown]
# A whole answer passes through `postprocessing` once. A streamed one does so token by token, and each piece is a call
# from Triton into another process, a message to you, and a wake-up of your thread. That work wants the cores on which the
# engine computes: its iterations get longer, and the last word later. With one user it is little; eight have eight times
# as many pieces in an iteration. Where the engine has a GPU, the cores are free for them.
#
# ## Stop early
#
# A tab that is closed, a Stop button, a word that was waited for: each ends a request before
# `max_tokens`. What is it worth? Three requests ask for the same number of tokens. The first runs to its end.
# The second is stopped by the clock (`stop_after_s`), after half that time. The third is left in the middle of the loop.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.lessons import serve as lesson
from inflight.notebook import catch_up

catch_up("03", "Stop early")
ASKED, prompt = 160, "Tell me a long story about a river."
to_the_end = client.stream(prompt, ASKED, end_id=-1)
half_s = to_the_end.read().latency_s / 2
by_the_clock = client.stream(prompt, ASKED, end_id=-1, stop_after_s=half_s)
by_the_clock.read()
left = client.stream(prompt, ASKED, end_id=-1)
for piece in left:
    if len(left.answer.pieces) == 20:
        left.cancel()
        break
read = [len(stream.answer.pieces) for stream in (to_the_end, by_the_clock, left)]
print(f"You read {read[0]}, {read[1]} and {read[2]} pieces.")

# %% [markdown]
# Fewer pieces than asked for. But did the server stop, or did it only stop telling you? The iteration log knows which
# request computed how many tokens. One more short request comes first, so that all before it is in the log.

# %% tags=["nbval-ignore-output"]
client.ask("Thank you!", 1)
computed = lesson.last_requests(telemetry.iterations(log_path), 4).iloc[:3]
computed.index = ["to the end", "stopped by the clock", "left in the loop"]
computed["asked for"] = ASKED
computed["read"] = read
computed["saved (%)"] = (100 * (1 - computed["iterations"] / ASKED)).round()
assert computed["iterations"].iloc[0] == ASKED > computed["iterations"].iloc[2] >= 20
computed

# %% [markdown]
# One iteration is one token. The two that ended early computed as many tokens as you read, or a few more: an
# iteration that is under way is not broken off. The rest was never computed, and their slots were free at once.
#
# How does the word get through? There are two ways:
#
# - A second request to `tensorrt_llm` with the **same request id** and with the input `stop` set. The engine looks the id
#   up and ends that request. That is TensorRT-LLM's own way, and what `Client` does.
# - gRPC's own cancellation of the stream. Triton tells it to the steps that begin afterwards: `postprocessing` hears of it at
#   the next token, and tells the engine. In the lab your client does this.
#
# ## Sampling
#
# Without options the engine is greedy: it takes the likeliest token, each time. `temperature` flattens the choice,
# `top_k` limits it to the *k* likeliest, `top_p` to those that together have that probability. `random_seed` fixes
# the dice.

# %% tags=["nbval-ignore-output"]
import textwrap

from inflight.notebook import catch_up

catch_up("03", "Sampling")
dice = {"temperature": 0.9, "top_k": 50}
settings = {
    "greedy": {},
    "greedy again": {},
    "seed 1": {**dice, "random_seed": 1},
    "seed 1 again": {**dice, "random_seed": 1},
    "seed 2": {**dice, "random_seed": 2},
}
texts = {}
for name, options in settings.items():
    sentence = client.ask("Write a sentence about a cat in the rain.", 28, **options)
    texts[name] = sentence.text
    print(textwrap.fill(f"{name}: {sentence.text}", 88), "\n")
assert texts["greedy"] == texts["greedy again"]
assert texts["seed 1"] == texts["seed 1 again"] != texts["seed 2"]

# %% [markdown]
# The seed is 0 unless you give one, so a request that samples is as repeatable as a greedy one. A trap: `temperature`
# alone changes nothing. While `top_k` and `top_p` are both 0, the engine is greedy, here as in TensorRT-LLM.
#
# ## Bad input
#
# A good server refuses at once, in a sentence, and goes on:

# %%
import textwrap

from inflight import CourseError
from inflight.notebook import catch_up

catch_up("03", "Bad input")
mistakes = {
    "an empty prompt": {"text": ""},
    "no tokens wanted": {"text": "Hello", "max_tokens": 0},
    "a prompt of 3,000 words": {"text": "word " * 3000},
    "a temperature that is no number": {"text": "Hello", "temperature": float("nan")},
    "a misspelt option": {"text": "Hello", "temprature": 0.5},
    "text that is not UTF-8": {"text": b"\xff\xfe"},
}
for mistake, given in mistakes.items():
    try:
        client.ask(**given)
    except CourseError as error:
        print(f"{mistake}:\n{textwrap.indent(textwrap.fill(str(error), 84), '    ')}")
assert "Paris" in client.ask(question).text

# %% [markdown]
# Who refused? The misspelt option never left your client. The empty prompt and the bytes that are no text stopped in
# `preprocessing`, the others in the engine, before they took a slot.
#
# ## Read /metrics
#
# An operator does not see your notebook. An operator sees `/metrics`, a page of text that a Prometheus server
# collects ([Triton's list](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/metrics.html)).
# `telemetry.metrics` makes a table of it. **Counters** only grow: subtract two readings. **Gauges** show
# the moment: read them while something happens.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("03", "Read /metrics")


def read_metrics():
    return telemetry.metrics(telemetry.page(server.metrics_url))


def served():
    """Requests that each model has answered, from the counters."""
    now = read_metrics()
    counters = now[now["name"] == "nv_inference_request_success"]
    return counters.set_index("model")["value"].astype(int).to_dict()


before = telemetry.settled(served)
with ThreadPoolExecutor(7) as users:
    others = [users.submit(streamed, prompt, 80, end_id=-1) for _ in range(7)]
    for number, _ in enumerate(client.stream(prompt, 80, end_id=-1)):
        if number == 40:
            during = read_metrics()  # in the middle of eight answers
after = telemetry.settled(served)
grown = {model: after[model] - before[model] for model in after}
print("Requests served meanwhile:", grown)
assert grown["ensemble"] == 8 and grown["postprocessing"] == 8 * 80

# %% tags=["nbval-ignore-output"]
names = ["nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"]
gauges = during[during["name"].isin(names)]
gauges = gauges.set_index(["name", "label"])["value"].sort_index()
slots, blocks = (gauges[name] for name in names)
print(
    f"In the middle, {slots['scheduled']:.0f} of {slots['max']:.0f} slots were taken, "
    f"{slots['waiting']:.0f} requests waited, "
    f"and {blocks['used']:.0f} of {blocks['max']:.0f} KV cache blocks were in use."
)
gauges.to_frame()

# %% [markdown]
# The engine refreshes its gauges every 100 ms (`stats_check_period_ms`); what comes and goes in between, only the
# iteration log has.
#
# ## Turn the knob
#
# The playground sends what you type to the running server, and says TTFT and ITL of what came. Try, in this order:
#
# 1. **Run** as it is, then Run again: the same text, for the seed is the same.
# 2. `top_k` 1, then `top_k` 200 with a temperature of 2. Does the TTFT change? Does the ITL?
# 3. A prompt of a hundred words: which of the two changes now?
# 4. 400 tokens, and **Stop** in the middle. The slot is free at once.

# %%
from inflight.notebook import catch_up

catch_up("03", "Turn the knob")
playground = widgets.Playground(server)
assert playground.frame is None  # nothing is sent before you press Run
playground

# %% [markdown]
# ## On the lab GPU
#
# Triton is the same there, and so are the ports, the URLs and the tensors' names, up to the last containers with
# engines; your twenty lines work unchanged where the repository was filled with `decoupled_mode` `True`.
# [Its page](../assets/lab-gpu/README.md) has every command. Today's model, `llmapi`, takes text and has other names
# (`sampling_param_max_tokens` for `max_tokens`).
#
# | Step | Here | With TensorRT-LLM |
# |---|---|---|
# | Ready? | `client.is_ready()` | `curl -fs localhost:8000/v2/health/ready` |
# | Tensors | `client.metadata()` | `curl -s localhost:8000/v2/models/ensemble` |
# | Streamed, HTTP | `stream` of `Client(server.http_url)` | `…/v2/models/ensemble/generate_stream`, the same |
# | Streamed, text, gRPC | `client.stream("…", 64)` | `end_to_end_grpc_client.py --streaming` |
# | Streamed, tokens | `client.stream_tokens(ids, 64)` | `inflight_batcher_llm_client.py --streaming` |
# | Stop early | `stop_after_s=0.4` | the same client with `--stop-after-ms 400 --request-id 1` |
# | Metrics | `server.metrics_url` | `curl -s localhost:8002/metrics` |
#
# One gauge means something else there: `waiting` counts requests that have a slot and were not in this iteration. Who
# waits *for* a slot is in none. Count at the client: sent, not answered, not `active`.
#
# ## What breaks
#
# The worst moment for a server to die is the middle of an answer. Kill it there, as the system does when memory runs
# out:

# %%
import os
import signal

from inflight import CourseError
from inflight.notebook import catch_up

catch_up("03", "What breaks")
dying = client.stream(prompt, ASKED, end_id=-1)
try:
    for piece in dying:
        if len(dying.answer.pieces) == 10:
            os.kill(server.pid, signal.SIGKILL)
except CourseError as error:
    print(str(error).replace(server.grpc_url, "HOST:PORT"))
assert 10 <= len(dying.answer.pieces) < ASKED

# %% [markdown]
# The error comes at once, not after a time-out, and what you had read is still yours, in `dying.answer`. Whoever
# retries must send the whole request again: the KV cache died with the server.
#
# ## Recap
#
# - A client of Triton puts tensors into `infer`, or into a stream where the model is decoupled; the rest is comfort.
# - Streaming shows each token when it is made: the wait shrinks to the TTFT. It costs a call of `postprocessing` a token, and
#   so some of the engine's time.
# - End-to-end latency = TTFT + (tokens − 1) × ITL, and the ITL is the length of the engine's iterations. Users share them:
#   they get longer, but far less than users get more.
# - A request that ends early frees its slot, and its tokens are never computed. Cancel what nobody reads.
# - Counters tell what a server has done, gauges what it does now, and the iteration log why it took so long.
#
# Three questions to answer without running anything:
#
# <details><summary>1. An answer of 101 tokens has a TTFT of 200 ms and an ITL of 15 ms. When is its last token
# there?</summary>
#
# 200 ms + 100 × 15 ms = 1.7 s.
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
# You have killed the server; *Run* in the playground starts it again. What runs ends with the notebook's kernel.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
