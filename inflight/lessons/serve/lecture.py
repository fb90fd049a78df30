# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **write** a streaming client, over HTTP with server-sent events and over gRPC with Triton's tensors;
# - **measure** what a user notices: TTFT, TPOT, ITL and end-to-end latency, with percentiles;
# - **end** an answer early, and show how much computing that saves.
#
# **What you will use elsewhere:** the protocol of the first half is spoken by vLLM, SGLang, `trtllm-serve` and most
# paid services; the four figures are those of every benchmark of LLM servers. Only the tensors are Triton's own.
#
# You need lessons 00 and 02: what a token, an ensemble and a `config.pbtxt` are. {navigation}

# %% [markdown]
# ## {question}
#
# Two teams send the same prompt to the same server. One reports: "It hangs, and then all the text appears at once." The
# other: "It starts writing immediately." The server's log shows the same answer for both, token for token.
#
# Both are right. And on Monday mornings, when everybody asks at once, both say that it has become slow. How slow?

# %%
import json
import os
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from queue import Queue

import httpx
import numpy as np
import openai
import pandas as pd
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from inflight import engine
from inflight.checkpoint import fetch
from inflight.lessons import serve as lesson
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.openai import OpenAIServer
from inflight.triton import Server, repository, telemetry

folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
session.others()

# %% [markdown]
# ## Predict
#
# One user asks, and waits for a whole answer. Then eight users ask at the same moment, each for just as many tokens. They
# share one model and the same CPU cores. Choose before you measure.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "How many times as long as one user do the eight wait for their whole answers?",
    {
        "about as long": 1,
        "one and a half to four times as long": 2.4,
        "about eight times as long": 8,
        "far more than eight times as long": 24,
    },
)
guess

# %% [markdown]
# ## Server-sent events, by hand
#
# `assemble` makes the repository of lesson 02. With `decoupled_mode` the engine may send several responses to one
# request; `iteration_log_path` names a file to which it adds a line per [iteration](glossary.md#Iteration).
# `OpenAIServer` puts OpenAI's protocol in front of the running Triton, as `inflight serve --openai-port 9000` does in a
# terminal. It tokenizes in a thread of this notebook and asks `tensorrt_llm` itself; the ensemble comes in the second half.

# %%
log_path = Path(folder.name) / "iterations.jsonl"
engine_dir = engine.cached(fetch())
repo = repository.assemble(
    Path(folder.name) / "repo",
    engine_dir,
    decoupled_mode=True,
    iteration_log_path=log_path,
)
stack = ExitStack()
with progress.wait("The server starts and loads its models"):
    server = Server(repo).start()
    in_front = stack.enter_context(OpenAIServer(server.grpc_url, engine_dir))
http = httpx.Client(base_url=in_front.url, timeout=60)
print("READY:", *sorted(model.name for model in server.models()))

# %% [markdown]
# A request is a JSON object. With `"stream": true` the reply is not one object but a text that grows. This is all of it, as
# it comes:


# %% tags=["nbval-ignore-output"]
def body_of(prompt, max_tokens, **options):
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "tensorrt_llm", "messages": messages, "max_tokens": max_tokens}
    return {**body, "temperature": 0, **options}


body = body_of("Name the capital of France.", 2, stream=True)
with http.stream("POST", "/chat/completions", json=body) as reply:
    print(reply.headers["content-type"])
    for line in reply.iter_lines():
        print(line)

# %% [markdown]
# These are *server-sent events*: here each is a line that begins with `data: `, and an empty line ends it. The first has the
# role, each of the next a piece of text in `delta`, then one has the `finish_reason` (`length`: `max_tokens` ended the
# answer). `[DONE]` is OpenAI's own mark of the end, and is not JSON.


# %%
def text_of(line):
    """The piece of text in a line of the stream; blank where it has none."""
    if not line.startswith("data: {"):
        return ""
    # your line: return the text of the event
    return json.loads(line[len("data: ") :])["choices"][0]["delta"].get("content", "")


# %% tags=["nbval-ignore-output"]
def stream(prompt, max_tokens, **options):
    """Yield each piece of text, and the seconds from sending the request to it."""
    body = body_of(prompt, max_tokens, stream=True, **options)
    started = time.perf_counter()
    with http.stream("POST", "/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if text := text_of(line):
                yield text, time.perf_counter() - started


by_hand = list(stream("What is a prime number?", 24))
print(*(text for text, _ in by_hand), sep="|")
print(f"First piece after {1000 * by_hand[0][1]:.0f} ms,", end=" ")
print(f"last after {1000 * by_hand[-1][1]:.0f} ms")

# %% [markdown]
# The field's client is the `openai` package. It does what your lines do, with types, retries and errors of their own. Any
# server of this protocol is one `base_url` away:

# %%
client = openai.OpenAI(base_url=in_front.url, api_key="none")
events = client.chat.completions.create(
    model="tensorrt_llm",
    messages=[{"role": "user", "content": "What is a prime number?"}],
    max_tokens=24,
    temperature=0,
    stream=True,
)
texts = [event.choices[0].delta.content for event in events]
print("The same pieces:", [text for text in texts if text] == [t for t, _ in by_hand])

# %% [markdown]
# ## Four figures
#
# Let $t_1 … t_n$ be the seconds from sending the request to each of its *n* tokens. Benchmarks name four figures, and not
# all name them alike:
#
# | | | `vllm bench serve` | AIPerf |
# |---|---|---|---|
# | [TTFT](glossary.md#TTFT) | $t_1$ | TTFT | Time to First Token |
# | [ITL](glossary.md#ITL) | $t_{i+1} - t_i$: *n* − 1 numbers an answer | ITL | Inter *Chunk* Latency |
# | [TPOT](glossary.md#TPOT) | $(t_n - t_1) / (n - 1)$: one number an answer | TPOT | Inter *Token* Latency |
# | [E2E](glossary.md#End-to-end-latency) | $t_n$ | E2EL | Request Latency |
#
# Mind the third row: what [AIPerf](https://docs.nvidia.com/aiperf/reference/ai-perf-metrics-reference) calls inter
# token latency is vLLM's [TPOT](https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py). From the
# definitions follows, without measuring: E2E = TTFT + (*n* − 1) × TPOT.


# %%
def tpot(times_s):
    """Seconds per output token after the first, from the arrival of each token."""
    # your line: return it
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1)


# %% [markdown]
# Here each piece is one token. A server may also send two tokens in one event, or none while half a character waits for
# its rest: then *n* comes from `usage`, for which one asks with `"stream_options": {"include_usage": true}`. (The event
# with `usage` has no `choices`: your `text_of` must look first.) Both tools measure the second row between chunks,
# which are tokens only where each chunk brings one.
#
# ## See: one user and eight
#
# Users who ask at the same moment are threads that send at the same moment. `ignore_eos` lets no token end the answer (the
# name is vLLM's), so that all answers have the same number of tokens.


# %%
def streamed(prompt, max_tokens):
    return [after_s for _, after_s in stream(prompt, max_tokens, ignore_eos=True)]


def whole(prompt, max_tokens):
    started = time.perf_counter()
    body = body_of(prompt, max_tokens, ignore_eos=True)
    http.post("/chat/completions", json=body).raise_for_status()
    return [time.perf_counter() - started]


# %%
def measure(send, users, tokens=32):
    """The arrival times of each user's answer; the engine's iterations meanwhile."""
    started = time.time()
    with ThreadPoolExecutor(users) as pool:
        asked = [
            pool.submit(send, "Tell me a long story.", tokens) for _ in range(users)
        ]
        answers = [answer.result() for answer in asked]
    return answers, (started, time.time())


# %% [markdown]
# Each case runs once to warm up, because an engine's first requests are slow. Then the four take turns, five times, so that
# a moment in which the machine is busy does not hit one case alone.

# %%
cases = {
    "one user, whole": (whole, 1),
    "one user, streamed": (streamed, 1),
    "eight users, whole": (whole, 8),
    "eight users, streamed": (streamed, 8),
}
for send, users in cases.values():
    measure(send, users)

# %% tags=["nbval-ignore-output"]
rounds = [
    {case: measure(*how) for case, how in cases.items()}
    for _ in progress.over(range(5), "Round", lambda _: "all four cases")
]
last_s = pd.DataFrame(  # when the last token of the last user came
    [{case: max(a[-1] for a in run[0]) for case, run in one.items()} for one in rounds]
)
last_ms = (1000 * last_s.T).round(0).astype(int)
last_ms.columns = [f"round {number + 1}" for number in last_ms.columns]
charts.table(last_ms.reset_index(names="milliseconds"))

# %% [markdown]
# Milliseconds until the last token of the last user. The picture draws the median round of each case. Grey: nothing to read
# yet. A square: an answer that came whole. A tick: a token of a streamed answer.

# %% tags=["nbval-ignore-output"]
median = {case: rounds[last_s[case].argsort().iloc[2]][case] for case in cases}
pieces = pd.DataFrame(
    [
        (case, user, time_s)
        for case, (answers, _) in median.items()
        for user, times_s in enumerate(answers)
        for time_s in times_s
    ],
    columns=["case", "user", "time_s"],
)
summary = lesson.token_timeline_summary(pieces)
charts.show(lesson.token_timeline(pieces), summary)
print(summary)

# %% [markdown]
# The two upper rows are the same work. Streaming hands out each token when it is made, so the grey shrinks to the TTFT. One
# of the two teams streams. Does streaming bring the *last* token later?

# %% tags=["nbval-ignore-output"]
for users in ("one user", "eight users"):
    told = told_apart(
        last_s[f"{users}, streamed"], last_s[f"{users}, whole"], "later", "earlier"
    )
    print(f"{users}, the last token streamed against whole: {told}")
ratios = last_s["eight users, whole"] / last_s["one user, whole"]
print(f"Eight users wait {ratios.min():.1f} to {ratios.max():.1f} times as long.")
print(guess.score(ratios.median(), "the median of 5 rounds"))
print(f"Together they get {8 / ratios.median():.1f} times as many tokens a second.")

# %% [markdown]
# *Not told apart* is not *equal*: these rounds would hide whatever lies inside the interval. *Earlier* or *later* would be
# about the way back to you, where a stream is many small messages: the engine's work is the same.
#
# A mean would hide who waited. A percentile says for how many a figure holds: of all gaps, 99 % are no longer than P99. Over
# the five rounds:

# %% tags=["nbval-ignore-output"]
rows = []
for case in ("one user, streamed", "eight users, streamed"):
    answers = [times_s for one in rounds for times_s in one[case][0]]
    figures = {
        "TTFT": [times_s[0] for times_s in answers],
        "TPOT": [tpot(times_s) for times_s in answers],
        "ITL": np.concatenate([np.diff(times_s) for times_s in answers]),
        "E2E": [times_s[-1] for times_s in answers],
    }
    for name, found in figures.items():
        percentiles = 1000 * np.percentile(found, [50, 90, 99, 100])
        rows.append((case, name, len(found), *percentiles))
columns = ["case", "figure", "numbers", "P50 (ms)", "P90", "P99", "longest"]
charts.table(pd.DataFrame(rows, columns=columns))

# %% tags=["remove-cell"]
assert {len(times_s) for run in median.values() for times_s in run[0]} == {1, 32}
assert [row[2] for row in rows] == [5, 5, 155, 5, 40, 40, 1240, 40]
assert 1 < ratios.median() < 8

# %% [markdown]
# With eight users, compare the longest ITL with the longest TPOT. TPOT averages one long gap away, and P99 of ITL may
# show little of it, or nothing, while about one gap in a hundred is long: compare it with P90. Of forty answers, P99 is
# nearly the slowest one: the fewer the numbers, the less a high percentile means.
#
# ## Explain
#
# What did the eight wait for? The engine's log has the length of each iteration, as the engine measures it, without
# Triton and without your client. First the price of an iteration without a prompt, with 1 and 8 users in it, of the
# five rounds. The line through these two predicts the price with 2 and 4; three runs of each check it:


# %%
def iterations_of(span):
    log = telemetry.iterations(log_path)
    return log[log["timestamp"].between(*span)]


def price_ms(users, spans):
    """Mean length of the iterations without a prompt and with so many users."""
    log = pd.concat([iterations_of(span) for span in spans])
    alike = log[(log["context_tokens"] == 0) & (log["scheduled"] == users)]
    return alike["iteration_ms"].mean()


# %% tags=["nbval-ignore-output"]
one_ms, eight_ms = (
    price_ms(users, [one[case][1] for one in rounds])
    for case, (send, users) in cases.items()
    if send is streamed
)

# %% tags=["nbval-ignore-output"]
each_ms = (eight_ms - one_ms) / 7
shared_ms = one_ms - each_ms
print(f"The line: {shared_ms:.1f} ms that all share, {each_ms:.1f} ms for each user.")
prices = {1: one_ms, 8: eight_ms}
for users in progress.over((2, 4), "Users side by side"):
    prices[users] = price_ms(users, [measure(streamed, users)[1] for _ in range(3)])
table = pd.DataFrame(sorted(prices.items()), columns=["users", "an iteration (ms)"])
table["by the line (ms)"] = shared_ms + table["users"] * each_ms
off = table["by the line (ms)"] / table["an iteration (ms)"] - 1
table["the line is off by (%)"] = (100 * off).round(0).astype(int)
table["tokens/s in all"] = 1000 * table["users"] / table["an iteration (ms)"]
charts.table(table)

# %% [markdown]
# That is lesson 01 again, as far as the line fits with 2 and 4: where it does not, the machine may have changed its
# pace in between, or the price does not grow evenly with the users. An iteration reads the weights and starts its
# hundreds of operations once, for everybody in it: the part that all share. Products, attention and the reading of
# one's own KV cache come on top for each user.
#
# An answer of *n* tokens needs the iterations with the prompts, of which the last makes its first token, and then *n* − 1
# iterations at the price that they had in this round:


# %%
def engine_ms(prompts_ms, price_ms, tokens):
    """What the answer whose prompt came last waits for in the engine, in ms."""
    # your line: return it
    return prompts_ms + (tokens - 1) * price_ms


# %% tags=["nbval-ignore-output"]
rows = []
for case, users in (("one user, streamed", 1), ("eight users, streamed", 8)):
    answers, span = median[case]
    log = iterations_of(span)
    prompts = log[log["context_tokens"] > 0]["iteration_ms"]
    price = price_ms(users, [span])  # of this very round
    measured = 1000 * max(times_s[-1] for times_s in answers)
    rest = measured - engine_ms(prompts.sum(), price, 32)
    rows.append((case, len(prompts), prompts.sum(), 31 * price, rest, measured))
columns = ["in ms", "iterations with prompts", "they take", "31 at its mean price"]
columns += ["the rest", "measured E2E"]
explained = pd.DataFrame(rows, columns=columns)
charts.table(explained)

# %% tags=["nbval-ignore-output"]
prefill, decode, _, in_all = explained.iloc[1, 2:] / explained.iloc[0, 2:]
print(f"Eight against one, of one round each: prompts {prefill:.1f} times,", end=" ")
print(f"iterations {decode:.1f}, all {in_all:.1f}.")

# %% tags=["remove-cell"]
assert eight_ms > one_ms and log["generation_tokens"].sum() == 8 * 31

# %% [markdown]
# So the factor is neither 1 nor 8. Each prompt has to be computed, and prefill is bound by arithmetic (lesson
# 01), so prompts gain less from company. The iterations after them gain more, because their users pay the fixed part
# once. The rest is what is no iteration: on its way a token passes Triton, the detokenizer, HTTP and your thread, and
# they use the cores on which the engine computes. Therefore an ITL is an iteration *and* what lies between two.
#
# Why do most of the eight begin later than one or two? Requests arrive one by one, and an idle engine starts with the
# prompts that are there. Those that come meanwhile are all in the next iteration, which is long. Who came first waits
# for it, too: that makes the longest gaps.
#
# How could this mislead? The prompts are short and alike, nobody arrives later, and the users share their cores with
# the server. And the factor is this processor's: a GPU with eight users is far from its arithmetic limit (lesson 01),
# so each user's own part is much smaller there. Two points give a line; they do not say how far it holds.
#
# ## Turn the knob
#
# **Run** as it is, then with a prompt of a hundred words, then with `top_k` 200 and temperature 2.
#
# <details><summary>Which of the figures changes?</summary>
#
# The prompt moves TTFT, and hardly TPOT. `top_k` and the temperature change the words, and none of the four figures, unless
# the answer ends earlier.
#
# </details>

# %%
playground = widgets.Playground(server)
playground

# %% [markdown]
# ## Tensors over gRPC, by hand
#
# Triton knows no messages. To Triton a request is a list of tensors, each with a name, a datatype and a shape, and the
# server describes them. `BYTES` is text; the first dimension is the batch, so a single value has the shape `[1, 1]`.


# %%
def tensor(name, datatype, value):
    """One value as an input of shape [1, 1]."""
    array = np.array([[value]], triton_to_np_dtype(datatype))
    return triton.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


connection = triton.InferenceServerClient(server.grpc_url)
inputs = connection.get_model_config("ensemble").config.input
print(len(inputs), "inputs. Required:", *(i.name for i in inputs if not i.optional))
tensors = [tensor("text_input", "BYTES", "Name the capital of France.")]
tensors += [tensor("max_tokens", "INT32", 64)]
try:
    connection.infer("ensemble", tensors)
except InferenceServerException as error:
    print("Refused:", error.message())

# %% [markdown]
# `infer` is one request and one response. You made the engine decoupled, and it is the *ensemble* that refuses: an
# ensemble is
# [decoupled](glossary.md#Decoupled) as soon as one of its steps is. A decoupled model is asked on a stream. For each
# response `tritonclient` calls a function of yours, in a thread of its own, and a queue brings it back to yours.


# %%
def pieces_of(arrived):
    """Yield each piece of text from a queue of responses, up to the final one."""
    is_final = False
    while not is_final:
        result, error = arrived.get()
        if error is not None:
            raise error
        parameters = result.get_response().parameters
        is_final = parameters["triton_final_response"].bool_param
        if (text := result.as_numpy("text_output")) is not None:
            yield text[0].decode()


# %%
def over_grpc(prompt, max_tokens, *options, cancels=False):
    """Yield each piece of text of a streamed answer of the ensemble."""
    values = ("text_input", "BYTES", prompt), ("max_tokens", "INT32", max_tokens)
    inputs = [tensor(*one) for one in (*values, ("stream", "BOOL", True), *options)]
    arrived = Queue()
    with triton.InferenceServerClient(server.grpc_url) as grpc:
        grpc.start_stream(lambda result, error: arrived.put((result, error)))
        grpc.async_stream_infer("ensemble", inputs, enable_empty_final_response=True)
        try:
            yield from pieces_of(arrived)
        finally:
            grpc.stop_stream(cancel_requests=cancels)


print(*over_grpc("Name the capital of France.", 64), sep="|")

# %% [markdown]
# Triton marks the last response as final. With `enable_empty_final_response` it also sends one when no text is left; without
# that, the loop would wait for ever after the last token.
#
# ## Stop early
#
# A user closes the tab. Does the server stop computing, or does it only stop sending? The log counts the tokens of each
# iteration. An iteration with a prompt (`context_tokens`) gives a token as well.


# %%
ASKED, STORY = 96, "Tell me a long story about a river."
NO_END = ("end_id", "INT32", -1)
ways = {
    "HTTP, read to the end": (lambda: stream(STORY, ASKED, ignore_eos=True), ASKED),
    "HTTP, left after 20": (lambda: stream(STORY, ASKED, ignore_eos=True), 20),
    "gRPC, left after 20": (lambda: over_grpc(STORY, ASKED, NO_END), 20),
    "gRPC, cancelled": (lambda: over_grpc(STORY, ASKED, NO_END, cancels=True), 20),
}


def saved(computed, asked):
    """The percentage of the tokens asked for that was not computed."""
    # your line: return it
    return 100 * (1 - computed / asked)


# %% tags=["nbval-ignore-output"]
rows = []
for way, (ask, most) in ways.items():
    since = telemetry.settled(lambda: len(telemetry.iterations(log_path)))
    answer = ask()
    read = len(list(islice(answer, most)))
    answer.close()  # what leaving a loop does
    until = telemetry.settled(lambda: len(telemetry.iterations(log_path)))
    ours = telemetry.iterations(log_path)[since:until]
    computed = ours["generation_tokens"].sum() + (ours["context_tokens"] > 0).sum()
    rows.append((way, read, computed, round(saved(computed, ASKED))))
columns = ["way", "read", "tokens computed", "saved (%)"]
stopped = pd.DataFrame(rows, columns=columns)
charts.table(stopped)

# %% tags=["remove-cell"]
to_end, http_left, grpc_left, grpc_cancelled = stopped["tokens computed"]
assert to_end == grpc_left == ASKED and 20 <= http_left < ASKED
assert 20 <= grpc_cancelled < ASKED

# %% [markdown]
# - **HTTP:** leaving the loop closes the connection. A good server sees that, and ends the request. Ours and vLLM's do;
#   a proxy between you and them may not pass it on.
# - **gRPC, left:** nothing saved. `stop_stream()` waits for the rest, and the
#   engine computes it for nobody.
# - **gRPC, cancelled:** `stop_stream(cancel_requests=True)` cancels. Triton tells only those steps of an ensemble that begin
#   afterwards; here `postprocessing` notices at the next token, and tells the engine.
#
# TensorRT-LLM has a way of its own: a second request to `tensorrt_llm` with the same id and the input `stop`. Here the
# request's [slot](glossary.md#Slot) is free within a few tokens either way. That `postprocessing` passes a
# cancellation on is the course's addition: with NVIDIA's ensemble do not rely on it ([an open
# issue](https://github.com/triton-inference-server/server/issues/6739)). Send `stop`, or ask `tensorrt_llm` itself and
# cancel there.
#
# ## Read /metrics
#
# An operator does not see your notebook, but `/metrics`: a page of text that a Prometheus server collects
# ([Triton's
# list](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/metrics.html)). A few
# lines read it:


# %%
def read_metrics():
    """The number of each line of the page, by its name with labels."""
    page = httpx.get(server.metrics_url).text
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    samples = (line.rsplit(" ", 1) for line in lines)
    return {name: float(value) for name, value in samples}


def counters():
    success = "nv_inference_request_success"
    return {k: v for k, v in read_metrics().items() if k.startswith(success)}


# %% [markdown]
# **Counters** only grow: read them before and after, and subtract. **Gauges** show the moment: read them while something
# happens. Eight users stream 64 tokens each from the ensemble; in the middle of it the page is read:

# %% tags=["nbval-ignore-output"]
before = telemetry.settled(counters)
with ThreadPoolExecutor(7) as pool:
    others = [pool.submit(list, over_grpc(STORY, 64, NO_END)) for _ in range(7)]
    for number, _ in enumerate(over_grpc(STORY, 64, NO_END)):
        if number == 40:
            during = read_metrics()
after = telemetry.settled(counters)
for name, value in after.items():
    print(f"{name}  +{value - before[name]:.0f}")
for name, value in during.items():
    if name.startswith("nv_trt_llm_request_metrics"):
        print(f"{name}  {value:.0f}")

# %% tags=["remove-cell"]
grown = sorted(after[name] - before[name] for name in after)
assert grown == [8, 8, 8, 8 * 64]
assert any("max" in name for name in during if "request_metrics" in name)

# %% [markdown]
# Eight requests, and 512 calls of `postprocessing`: a stream of the ensemble calls it once per token. The engine refreshes
# its gauges every 100 ms (`stats_check_period_ms`). Of how long users wait, this page has only sums
# (`nv_inference_request_duration_us`), which give means. For percentiles, servers of LLMs keep *histograms*, vLLM for one
# `vllm:time_to_first_token_seconds`. A later Triton than this one keeps one for decoupled models: `--metrics-config
# histogram_latencies=true` gives `nv_inference_first_response_histogram_ms`. `summary_latencies=true` gives quantiles,
# which cannot be added up over servers (lesson 12).
#
# ## What breaks
#
# **Requests that cannot be served.** A good server refuses at once, with a status, a sentence and the field:

# %%
mistakes = {
    "no tokens wanted": {"max_tokens": 0},
    "3,000 words": {"messages": [{"role": "user", "content": "word " * 3000}]},
    "no such model": {"model": "gpt-6"},
    "a misspelt option": {"temprature": 2.0},
}
for mistake, given in mistakes.items():
    reply = http.post("/chat/completions", json={**body_of("Hello", 4), **given})
    said = reply.json().get("error", {"message": "served; the field was ignored"})
    print(f"{mistake}: {reply.status_code}, {said['message']}")

# %% [markdown]
# The last row is the dangerous one. Some servers of this protocol, ours and vLLM's among them, ignore fields that they do
# not know; `trtllm-serve` refuses them.
#
# **A temperature that does nothing.** How the next token is chosen:
#
# | tensors | OpenAI's protocol | |
# |---|---|---|
# | neither `top_k` nor `top_p` | `temperature` 0 | *greedy*: always the likeliest |
# | `temperature` | the same | divides the logits: below 1 sharper, above 1 flatter |
# | `top_k` | the same (vLLM's name) | draws from only the *k* likeliest |
# | `top_p` | the same | draws from only the likeliest that together reach *p* |
# | `random_seed` (NVIDIA's from 25.05: `seed`) | `seed` | the same draw again, as far as the logits are the same |
#
# So with the tensors a `temperature` alone changes nothing, as in TensorRT-LLM's engine backend:

# %%
cat = "Write a sentence about a cat."
hot = list(over_grpc(cat, 20, ("temperature", "FP32", 2.0)))
print("The same as greedy:", hot == list(over_grpc(cat, 20)))

# %% [markdown]
# **A server that dies in the middle of an answer.** The status, 200, was sent with the first byte. What can still come is an
# event. A second server is killed after ten pieces, as the system does when memory runs out:

# %% tags=["nbval-ignore-output"]
with progress.wait("A second server starts"):
    victim = Server(repo).start()
body = body_of(STORY, ASKED, stream=True)
with OpenAIServer(victim.grpc_url, engine_dir) as front:
    with httpx.stream("POST", f"{front.url}/chat/completions", json=body) as reply:
        lines = []
        for line in filter(None, reply.iter_lines()):
            lines.append(line)
            if len(lines) == 11:
                os.kill(victim.pid, signal.SIGKILL)
print("status", reply.status_code, "·", len(lines), "events, of which the last two are")
print(*lines[-2:], sep="\n")

# %% tags=["remove-cell"]
assert reply.status_code == 200 and '"error"' in lines[-2] and len(lines) < ASKED

# %% [markdown]
# A client that looks only for `[DONE]` takes half an answer for a whole one. It is whole when its `finish_reason` has
# come; where the process that speaks HTTP dies, the stream just ends. The `openai` package raises `APIError` on such an
# event; your `text_of` stops there with a KeyError. To try again, send the whole request.
#
# ## Elsewhere
#
# | | Here, OpenAI's protocol | Here, Triton's | `llmapi` in Triton | vLLM |
# |---|---|---|---|---|
# | whole | `stream: false` | HTTP `generate` without `stream`; `infer`, where the model is not decoupled | the same | `stream: false` |
# | streamed | `stream: true` | gRPC stream; HTTP `generate_stream`: each piece is new | the same calls: each piece has all so far | `stream: true` |
# | stop early | close the connection | cancel, or `stop` | the same | close the connection |
# | ready? | `/health` | `/v2/health/ready` | the same | `/health` |
# | who waits | | gauge `waiting` | count at the client | `vllm:num_requests_waiting` |
#
# The tensors are those of TensorRT-LLM's engine backend, which was removed from its main branch in July 2026. Today's Triton
# model of TensorRT-LLM, `llmapi`, has no ensemble, and other names, such as `sampling_param_max_tokens` for `max_tokens`;
# `inflight serve --contract llmapi` serves those here. Triton's own OpenAI front end needs NVIDIA's build of the server.
# [How to start them on a GPU](../assets/lab-gpu/README.md).

# %% [markdown]
# ## Recap
#
# - A streamed answer is a text of server-sent events over HTTP, or a stream of tensors over gRPC.
# - TTFT is $t_1$, E2E $t_n$, TPOT their distance over *n* − 1, an ITL one gap. Percentiles say for how many they hold.
# - Eight users pay the fixed part of an iteration once, and each adds its own part and its prompt: so they wait longer than
#   one, and far less than eight times as long.
# - Leaving the loop is cancelling only where the server hears of it. Count the tokens to know.
# - Counters say what a server has done, gauges what it is doing.
#
# Three questions to answer without running anything:
#
# <details><summary>1. An answer of 101 tokens has a TTFT of 200 ms and a TPOT of 15 ms. When does its last token
# arrive?</summary>
#
# After 200 ms + 100 × 15 ms = 1.7 s.
#
# </details>
# <details><summary>2. TPOT is 20 ms for every user, and P99 of ITL is 400 ms. What do users see, and what do you look
# for?</summary>
#
# The text flows, and stands still now and then. Something long goes into an iteration between two of their tokens: the
# prompt of somebody else is the first suspect. Lesson 05 cuts such prompts.
#
# </details>
# <details><summary>3. TTFT doubles, TPOT stays as it was. What do you look at first?</summary>
#
# At the queue: the gauge `waiting`, in vLLM `vllm:num_requests_waiting`. A request that waits for a slot has no first
# token yet, and those that have one do not notice. Longer prompts are the next candidate, or prompts whose beginning is
# no longer found in the KV cache (lesson 05); on a busy server these lengthen the others' gaps as well.
#
# </details>
#
# Do the [lab]({lab}), then go on to {next}. The server runs until this kernel ends (*Kernel → Shut Down Kernel*).
