# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **write** a streaming client from the bytes up, and recognize half an answer;
# - **measure** TTFT, ITL, TPOT and end-to-end latency, and say which part of a gap the engine made;
# - **end** an answer early, and count what that saves.
#
# You need lessons 00 and 02. The protocol is OpenAI's, which vLLM, SGLang, `trtllm-serve` and most paid services
# speak, and the four figures are those of every benchmark. Only the tensors of *Stop early* are Triton's own.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Two teams ask the same server for the same text. One says: "It starts writing at once." The other says: "It hangs,
# and then everything appears." Both ask for a stream, and the engine's log shows the same answers at the same pace. On
# Monday mornings, when everybody asks, both say that it has become slow. How slow, and where?

# %%
import json
import os
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from queue import Queue
from threading import Thread

import httpx
import numpy as np
import openai
import pandas as pd
import tritonclient.grpc as triton
from tritonclient.utils import triton_to_np_dtype

from inflight import engine
from inflight.checkpoint import fetch
from inflight.lessons import serve as lesson
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.openai import OpenAIServer
from inflight.triton import Server, repository, telemetry

folder = tempfile.TemporaryDirectory()
session.others()

# %% [markdown]
# ## Server-sent events, by hand
#
# The repository is lesson 02's, [decoupled](glossary.md#Decoupled) so that one request may have many responses.
# `OpenAIServer` puts OpenAI's protocol in front of Triton, as `inflight serve --openai-port 9000` does.

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
    front = stack.enter_context(OpenAIServer(server.grpc_url, engine_dir))
http = httpx.Client(base_url=front.url, timeout=60)
print("READY:", *sorted(model.name for model in server.models()))

# %% [markdown]
# A request is a JSON object. With `"stream": true` the reply is a text that grows. This is all of it:


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
# These are *server-sent events*: a line that begins with `data: `, then an empty line. The first event has the role,
# each of the next a piece of text in `delta`, and one the `finish_reason`: `length` says that `max_tokens` ended
# the answer. `[DONE]` is OpenAI's own mark, and is not JSON.


# %%
def text_of(line):
    """The piece of text in a line of the stream; blank where it has none.

    >>> text_of('data: {"choices": [{"delta": {"content": " Paris"}}]}')
    ' Paris'
    >>> text_of('data: {"choices": [{"delta": {}}]}')
    ''
    """
    if not line.startswith("data: {"):
        return ""
    event = json.loads(line.removeprefix("data: "))
    # your line: return the text of the event; not every delta has one
    return event["choices"][0]["delta"].get("content", "")


# %% tags=["nbval-ignore-output"]
def stream(prompt, max_tokens, via=http, **options):
    """Yield each piece of text, and the seconds from sending the request to it."""
    body = body_of(prompt, max_tokens, stream=True, **options)
    started = time.perf_counter()
    with via.stream("POST", "/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if text := text_of(line):
                yield text, time.perf_counter() - started


by_hand = list(stream("What is a prime number?", 24))
print(*(text for text, _ in by_hand), sep="|")
first_ms, last_ms = (1000 * by_hand[number][1] for number in (0, -1))
print(f"The first of {len(by_hand)} pieces after {first_ms:.0f} ms,", end=" ")
print(f"the last after {last_ms:.0f} ms.")

# %% [markdown]
# The field's client is the `openai` package. It adds types, retries and errors:

# %%
client = openai.OpenAI(base_url=front.url, api_key="none")
messages = [{"role": "user", "content": "What is a prime number?"}]
events = client.chat.completions.create(
    model="tensorrt_llm", messages=messages, max_tokens=24, temperature=0, stream=True
)
texts = [event.choices[0].delta.content for event in events]
print("The same pieces:", [text for text in texts if text] == [t for t, _ in by_hand])

# %% [markdown]
# ## Four figures
#
# The tokens of an answer arrive at *t*₁ … *t*ₙ, in seconds after the request was sent.
#
# | figure | what it is | `vllm bench serve` | AIPerf |
# |---|---|---|---|
# | [TTFT](glossary.md#TTFT) | *t*₁ | TTFT | Time to First Token |
# | [ITL](glossary.md#ITL) | one gap, *t*ᵢ₊₁ − *t*ᵢ | ITL | Inter *Chunk* Latency |
# | [TPOT](glossary.md#TPOT) | the mean of an answer's gaps | TPOT | Inter *Token* Latency |
# | [E2E](glossary.md#End-to-end-latency) | *t*ₙ | E2EL | Request Latency |
#
# Mind the third row: what [AIPerf](https://docs.nvidia.com/aiperf/reference/ai-perf-metrics-reference) calls inter
# token latency is vLLM's [TPOT](https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py).


# %%
def tpot(times_s):
    """The mean gap of an answer, from the arrival of each token.

    >>> tpot([0.5, 0.6, 0.9])
    0.2
    """
    # your line: there is no need to compute the gaps
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1)


# %% [markdown]
# The gaps add up to the last arrival less the first, and *n* tokens have *n* − 1 gaps: TPOT = (*t*ₙ − *t*₁) / (*n* − 1).
# So E2E = TTFT + (*n* − 1) × TPOT.
#
# In this section a piece is a token. Where a server puts two tokens into an event, *n* comes from `usage`, which you
# request with `"stream_options": {"include_usage": true}`; that event has an empty list of `choices`.
#
# ## Predict
#
# One user waits for a whole answer of 32 tokens. Then eight users ask at the same moment, for as many tokens each. By
# lesson 01's price, an iteration with eight takes about half as long again.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "How many times as long do eight users wait for complete answers as one alone?",
    {
        "1.5 times: the price of an iteration": 1.5,
        "2.0 times: that price, and eight prompts to compute": 2,
        "3.0 times: that, and eight streams through HTTP and Triton": 3,
        "5.0 times: that, and eight clients on the same two cores": 5,
    },
)
guess

# %% [markdown]
# ## See: one user and eight
#
# A user is a thread. `ignore_eos` (vLLM's name) lets no token end an answer, so all have 32 tokens.

# %%
SUBJECTS = ["river", "lighthouse", "garden", "mountain"]
SUBJECTS += ["library", "railway", "village", "ship"]


def streamed(subject):
    story = stream(f"Tell me about a {subject}.", 32, ignore_eos=True)
    return [after_s for _, after_s in story]


def whole(subject):
    started = time.perf_counter()
    body = body_of(f"Tell me about a {subject}.", 32, ignore_eos=True)
    http.post("/chat/completions", json=body).raise_for_status()
    return [time.perf_counter() - started]


# %% [markdown]
# `measure` asks for all users at once. The engine's log says what was computed in the meantime.


# %%
def measure(send, users):
    """The arrivals in each user's answer, and from when to when they asked."""
    started = time.time()
    with ThreadPoolExecutor(users) as pool:
        answers = list(pool.map(send, SUBJECTS[:users]))
    return answers, (started, time.time())


def iterations_of(span):
    """The engine's iterations while a case asked."""
    log = telemetry.iterations(log_path)
    return log[log["timestamp"].between(*span)]


# %% [markdown]
# The four cases take turns, so that a busy moment of the machine does not hit one of them alone. Each runs once to warm up.

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
    for _ in progress.over(range(7), "Round", lambda _: "all four cases")
]
last_s = pd.DataFrame(  # when the last user's last token came
    [{case: max(a[-1] for a in run[0]) for case, run in one.items()} for one in rounds]
)
told = told_apart(
    last_s["eight users, whole"], last_s["one user, whole"], "longer", "shorter"
)
print(f"Eight users wait {told}.")
print(guess.score(told.ratio, "the mean ratio of 7 rounds"))
print(f"Together they get {8 / told.ratio:.1f} times one user's tokens a second.")

# %% [markdown]
# The picture draws each case's median round. Grey: nothing to read yet.

# %% tags=["nbval-ignore-output"]
median = {case: rounds[last_s[case].argsort().iloc[3]][case] for case in cases}
pieces = pd.DataFrame(
    [
        (case, user, time_s)
        for case, (answers, _) in median.items()
        for user, times_s in enumerate(answers)
        for time_s in times_s
    ],
    columns=["case", "user", "time_s"],
)
charts.show(lesson.token_timeline(pieces), lesson.token_timeline_summary(pieces))


# %% tags=["nbval-ignore-output"]
rows = []
for case, (answers, span) in median.items():
    log = iterations_of(span)
    tokens, first_s = log["scheduled"].sum(), np.median([a[0] for a in answers])
    in_ms = 1000 * first_s, 1000 * last_s[case].median()
    rows.append((case, len(log), tokens, *in_ms))
columns = ["case", "iterations", "tokens computed", "first text (ms)", "last (ms)"]
print(f"Streamed, one user can read after {rows[1][3]:.0f} ms,", end=" ")
print(f"whole, after {rows[0][3]:.0f} ms; the engine computes the same tokens.")
charts.table(pd.DataFrame(rows, columns=columns).round())


# %% tags=["nbval-ignore-output"]
def spent_on(case):
    """Per round: ms for prompts, number of other iterations, ms in all; ms for one."""
    log = pd.concat(iterations_of(one[case][1]) for one in rounds)
    took_ms, has_prompt = log["iteration_ms"], log["context_tokens"] > 0
    summed = took_ms[has_prompt].sum(), (~has_prompt).sum(), took_ms.sum()
    return *np.divide(summed, len(rounds)), took_ms[~has_prompt].mean()


spent = {users: spent_on(f"{users}, whole") for users in ("one user", "eight users")}
for users, (prompts_ms, num, all_ms, each_ms) in spent.items():
    print(f"{users}: {prompts_ms:.0f} ms for prompts", end=" ")
    print(f"+ {num:.0f} × {each_ms:.1f} ms = {all_ms:.0f} ms")
prompts, _, factor, price = np.divide(spent["eight users"], spent["one user"])
print(f"Prompts take {prompts:.1f} times as long, another iteration", end=" ")
print(f"{price:.2f}, together {factor:.2f} times.")

# %% tags=["remove-cell"]
assert [row[2] for row in rows] == [32, 32, 256, 256]
assert [row[1] for row in rows[:2]] == [32, 32] and all(row[1] < 64 for row in rows[2:])
assert 1 < told.ratio < 8

# %% [markdown]
# Streaming changes when you may begin to read, and nothing in the engine.
#
# Eight users need eight times the tokens, and hardly more iterations than one: each iteration gives every running user a
# token. The factor has two parts: lesson 01's price, here in a running server, and eight prompts in place of one. Prompts
# share less: even one alone is limited by lesson 01's compute roof. Users who each wait for their answer are a *closed
# loop*: never more requests than users. Lesson 06 has the other kind.
#
# ## Which part of a gap is the engine's?
#
# The ticks of the lowest block are not evenly spaced. The log says when the engine had each token: at the end of the
# iteration in which the request was. So ITL can be measured at both ends. *Long* is over three times the engine's P50.


# %%
def at_engine(span):
    """Each gap between two tokens of a request, in ms, and whether a prompt made it."""
    made_s, gaps = {}, []
    for row in iterations_of(span).itertuples():
        now_s = row.timestamp + row.iteration_ms / 1000
        for request, *_ in row.requests:
            if request in made_s:
                gap_ms = 1000 * (now_s - made_s[request])
                gaps.append((gap_ms, row.context_tokens > 0))
            made_s[request] = now_s
    return gaps


# %% tags=["nbval-ignore-output"]
rows = []
for case in ("one user, streamed", "eight users, streamed"):
    runs = [one[case] for one in rounds]
    made = [gap for _, span in runs for gap in at_engine(span)]
    came = [np.diff(times_s) for answers, _ in runs for times_s in answers]
    gaps_ms = {
        "engine": np.array([gap for gap, _ in made]),
        "client": 1000 * np.concatenate(came),
    }
    usual = np.median(gaps_ms["engine"])
    for end, gaps in gaps_ms.items():
        figures = gaps.mean(), *np.percentile(gaps, [50, 99, 100])
        rows.append((case, end, len(gaps), *figures, (gaps > 3 * usual).sum()))
columns = ["case", "ITL at the", "gaps", "mean (ms)", "P50", "P99", "longest", "long"]
charts.table(pd.DataFrame(rows, columns=columns).round(1))

# %% tags=["nbval-ignore-output"]
from_prompts = sum(prompt and gap > 3 * usual for gap, prompt in made)
print(
    f"Eight users, gaps of over {3 * usual:.0f} ms: {rows[2][-1]} at the engine,",
    end=" ",
)
print(f"{from_prompts} of them with a prompt, and {rows[3][-1]} at the client.")

# %% tags=["remove-cell"]
assert [row[2] for row in rows] == [7 * 31, 7 * 31, 7 * 248, 7 * 248]
assert rows[3][3] < 1.5 * rows[2][3]  # delivery moves tokens, and does not slow them

# %% [markdown]
# A prompt makes a long gap for those who already run. Requests arrive a moment apart. The engine begins with those that
# are there; the prompts of the others are in the next iteration, and everyone who already runs waits for them. Lesson
# 05 cuts such prompts. Any other slow iteration is a gap for all eight at once.
#
# What only the client has is delivery: a token that was made on time waits for Triton, the detokenizer or a reader's
# thread, and then comes together with the next. That changes single gaps, and hardly their mean. Judge an engine by ITL
# at the server, and what a user sees by ITL where the user is.
#
# ## A proxy that collects
#
# Between a server and its users stand proxies. One that buffers passes bytes on when enough have come:


# %%
def may_go(held, size):
    """Whether a proxy with buffers of `size` bytes passes on the bytes that it holds.

    >>> may_go(b"data: ", 4096), may_go(b"data: ", 6)
    (False, True)
    """
    # your line: return it
    return len(held) >= size


# %%
def passed_on(received, size):
    """Yield what the proxy sends on."""
    held = b""
    for piece in received:
        held += piece
        if may_go(held, size):
            yield held
            held = b""
    yield held  # the answer has ended


# %%
class Proxy(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with http.stream("POST", self.path, json=asked) as reply:
            self.send_response(reply.status_code)
            self.end_headers()
            for part in passed_on(reply.iter_raw(), size):
                sent.append(self.wfile.write(part))

    def log_message(self, *_):
        """Say nothing."""


proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
Thread(target=proxy.serve_forever, daemon=True).start()

# %% tags=["nbval-ignore-output"]
rows = []
there = f"http://127.0.0.1:{proxy.server_port}"
with httpx.Client(base_url=there, timeout=60) as through:
    for size in (1, 4096, 65536):
        sent = []
        rain = stream("Tell me about rain.", 64, through, ignore_eos=True)
        times_ms = [1000 * after_s for _, after_s in rain]
        parts = len([number for number in sent if number])
        at_ms = times_ms[0], times_ms[-1]
        rows.append((size, sum(sent), parts, len(times_ms), *at_ms))
columns = ["buffer (bytes)", "answer (bytes)", "sent on in parts", "tokens"]
columns += ["first (ms)", "last (ms)"]
print(f"Buffers of 4 KiB: {rows[1][3]} tokens reach the user in {rows[1][2]} parts.")
charts.table(pd.DataFrame(rows, columns=columns).round())

# %% tags=["remove-cell"]
assert [row[3] for row in rows] == [64, 64, 64] and rows[2][2] == 1
assert rows[0][2] > 32 and 3 <= rows[1][2] <= 5

# %% [markdown]
# That is the second team. An event with one word has about 240 bytes, so 4 KiB hold seventeen words, and a buffer larger
# than the answer turns the stream into one piece. nginx has
# [`proxy_buffering`](https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_buffering) on by default, with buffers
# of 4 or 8 KiB. Turn it off for the route, or let the server send the header `X-Accel-Buffering: no`. The server's own
# TTFT does not show it.
#
# ## Turn the knob
#
# **Run** as it is. Then set `top_k` to 200 and the temperature to 2; then put a hundred words into the prompt. Which
# figures change?
#
# <details><summary>What to see</summary>
#
# `top_k` and the temperature change the words, and so where the answer ends. A longer prompt raises TTFT, and hardly
# TPOT.
#
# </details>

# %%
playground = widgets.Playground(server)
playground

# %% [markdown]
# ## Stop early
#
# A user closes the tab. Does the server stop computing, or only sending? HTTP clients close the connection. Triton's own
# protocol is gRPC, in which a request is a list of named tensors, here of shape `[1, 1]`:

# %%
ASKED, STORY = 96, "Tell me a long story about a river."
values = {
    "text_input": ("BYTES", STORY),
    "max_tokens": ("INT32", ASKED),
    "end_id": ("INT32", -1),  # no token ends the answer
    "stream": ("BOOL", True),
}
tensors = []
for name, (datatype, value) in values.items():
    array = np.array([[value]], triton_to_np_dtype(datatype))
    tensors.append(triton.InferInput(name, array.shape, datatype))
    tensors[-1].set_data_from_numpy(array)


# %% [markdown]
# A decoupled model answers on a stream. `tritonclient` calls a function of yours for each response, in a thread of its
# own; a queue brings it back. The last line decides what happens when you leave:


# %%
def over_grpc(cancels):
    """Yield each response of the ensemble to `tensors`."""
    arrived = Queue()
    with triton.InferenceServerClient(server.grpc_url) as connection:
        connection.start_stream(lambda result, error: arrived.put((result, error)))
        connection.async_stream_infer("ensemble", tensors)
        try:
            for _ in range(ASKED):
                result, error = arrived.get()
                if error:
                    raise error
                yield result
        finally:
            connection.stop_stream(cancel_requests=cancels)


# %% tags=["nbval-ignore-output"]
ways = {
    "HTTP, read to the end": (lambda: stream(STORY, ASKED, ignore_eos=True), ASKED),
    "HTTP, left after 20": (lambda: stream(STORY, ASKED, ignore_eos=True), 20),
    "gRPC, left after 20": (lambda: over_grpc(cancels=False), 20),
    "gRPC, cancelled after 20": (lambda: over_grpc(cancels=True), 20),
}
rows = []
for way, (ask, most) in ways.items():
    since = telemetry.settled(lambda: len(telemetry.iterations(log_path)))
    with closing(ask()) as answer:  # leaving the block leaves the answer
        read = len(list(islice(answer, most)))
    until = telemetry.settled(lambda: len(telemetry.iterations(log_path)))
    computed = telemetry.iterations(log_path)["scheduled"][since:until].sum()
    rows.append((way, read, computed, ASKED - computed))
charts.table(pd.DataFrame(rows, columns=["way", "read", "tokens computed", "saved"]))

# %% tags=["remove-cell"]
to_end, http_left, grpc_left, grpc_cancelled = (row[2] for row in rows)
assert to_end == grpc_left == ASKED and 20 <= http_left < ASKED
assert 20 <= grpc_cancelled < ASKED

# %% [markdown]
# - **HTTP:** a good server sees the closed connection, and ends the request. Ours and vLLM's do.
# - **gRPC, left:** nothing is saved. `stop_stream()` waits for the remainder, which the engine computes for nobody.
# - **gRPC, cancelled:** the request ends within a few tokens. Triton tells a cancellation only to the steps of an ensemble
#   that begin afterwards. Here `postprocessing` passes it on, which is the course's addition; with NVIDIA's ensemble do not
#   rely on it ([an open issue](https://github.com/triton-inference-server/server/issues/6739)). Instead, send
#   `tensorrt_llm` a request with the same id and the input `stop`.
#
# ## Elsewhere
#
# | | vLLM | TensorRT-LLM today | Triton, as here |
# |---|---|---|---|
# | streamed | `stream: true` | `stream: true` | gRPC stream; HTTP `generate_stream` |
# | stop | close the connection | close the connection | cancel, or `stop` |
# | at the server | `vllm:time_to_first_token_seconds`, `vllm:inter_token_latency_seconds` | `trtllm_time_to_first_token_seconds`, `trtllm_time_per_output_token_seconds` | `nv_inference_request_duration_us`; 2.52: `nv_inference_first_response_histogram_ms` |
# | unknown field | ignored | refused | refused |
#
# Two kinds of `delta` have no `content`, and a client must expect both:
#
# - **Reasoning:** `delta.reasoning_content` (in [vLLM](https://docs.vllm.ai/en/v0.11.2/features/reasoning_outputs/) `reasoning`)
#   comes first. TTFT is the arrival of its first piece; AIPerf has *time to first output token* for the answer's.
# - **Tool calls:** `delta.tool_calls` has the name once and the arguments in fragments; join them by `index`, and parse
#   at the end.
#
# With vLLM's and TensorRT-LLM's defaults this lesson's prompts, the same in each round, would be found in the prefix
# cache, and TTFT would be that of a cache hit: a benchmark needs prompts of its own for each request.
#
# ## What breaks
#
# **A server that dies in the middle of an answer.** The status, 200, was sent with the first byte. How does a client
# know that an answer is whole?


# %%
def is_whole(lines):
    """Whether the lines of a stream say that its answer is complete.

    >>> is_whole(["data: [DONE]"])
    False
    >>> is_whole(['data: {"choices": [{"finish_reason": null}]}'])
    False
    """
    found = [line[len("data: ") :] for line in lines if line.startswith("data: {")]
    choices = [one for event in found for one in json.loads(event).get("choices", [])]
    # your line: what does the last of the choices have, and no other?
    return any(choice.get("finish_reason") for choice in choices)


# %% [markdown]
# A second server is killed after ten pieces, as the system does when memory runs out:

# %% tags=["nbval-ignore-output"]
with progress.wait("A second server starts"):
    victim = Server(repo).start()
body = body_of(STORY, ASKED, stream=True)
with OpenAIServer(victim.grpc_url, engine_dir) as dying:
    with httpx.stream("POST", f"{dying.url}/chat/completions", json=body) as reply:
        lines = []
        for line in filter(None, reply.iter_lines()):
            lines.append(line)
            if len(lines) == 11:
                os.kill(victim.pid, signal.SIGKILL)
print(f"Status {reply.status_code}, {len(lines)} lines, whole: {is_whole(lines)}.")
print("The last two:", *lines[-2:], sep="\n")

# %% tags=["remove-cell"]
assert reply.status_code == 200 and '"error"' in lines[-2] and len(lines) < ASKED
assert not is_whole(lines)

# %% [markdown]
# Status 200, text, and `[DONE]`: a client that looks for these takes half an answer for a whole one. Your `text_of` ends at
# that event with a `KeyError`, the `openai` package with an `APIError`. Where the process that speaks HTTP dies, the
# connection breaks; behind a proxy the stream just ends. To try again, send the whole request.
#
# ## Recap
#
# The same answer feels slow when it comes late: whole, through a buffer, or together with seven others. The tokens are
# the same.
#
# - A stream is server-sent events over HTTP, or tensors over gRPC.
# - TTFT is *t*₁, E2E *t*ₙ, an ITL one gap, TPOT (*t*ₙ − *t*₁) / (*n* − 1).
# - Eight users share iterations: they wait for eight prompts, and then pay the price of eight over one.
# - A long gap at the engine is a slow iteration, most often another user's prompt. One that only the client sees is
#   delivery.
# - Leaving is cancelling only where the server hears of it. Count tokens to know.
#
# <details><summary>1. An answer of 101 tokens has a TTFT of 200 ms and a TPOT of 15 ms. When does its last token
# arrive?</summary>
#
# After 200 ms + 100 × 15 ms = 1.7 s.
#
# </details>
# <details><summary>2. TPOT is 20 ms for every user, and P99 of ITL is 400 ms at the client. What do you look at
# first?</summary>
#
# P99 of ITL at the server. If it is as long, something long was in an iteration: another user's prompt is the first
# suspect. If it is short, look at what lies between: a proxy's buffer, or a busy client.
#
# </details>
# <details><summary>3. TTFT doubles, TPOT stays as it was. What do you look at first?</summary>
#
# At the queue, in vLLM `vllm:num_requests_waiting`. A request that waits for a slot has no first token yet, and those that
# have one do not notice.
#
# </details>
#
# Do the [lab]({lab}), then go on to {next}. The server runs until this kernel ends (*Kernel → Shut Down Kernel*).
