# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **ask** a language model that runs in a real Triton server on this machine;
# - **follow** one request from Enter to the first word, and say where its time goes;
# - **predict** when the last word of a long answer arrives, from a short one.
#
# Time to first token, prefill and decode are the same in every server of language models. The names of the four models
# below are Triton's.
#
# You need some Python, and to read a line of NumPy or pandas: [six questions](../assets/help.md#Do-you-know-enough?) tell you
# whether you know enough. Run one cell at a time, with Shift+Enter. If a cell fails, or you want to start over:
# [help](../assets/help.md).
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A colleague shows you a chat window. She types a question and presses Enter. For a moment nothing happens, then words
# appear one by one. "Why that moment," she asks, "and what is the machine doing in it?"
#
# The model is SmolLM2, with 135 million parameters. The second cell prepares it for this machine, which takes up to a
# minute the first time, and starts a Triton server. In lessons 01 to 03 you do these steps by hand.

# %%
import tempfile
from pathlib import Path

import pandas as pd

from inflight import CourseError, engine
from inflight.checkpoint import fetch
from inflight.lessons import start_here as lesson
from inflight.lessons.start_here import request_path
from inflight.notebook import charts, progress, session, widgets
from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"

# %%
with progress.wait("The engine, which is built the first time"):
    engine_dir = engine.cached(fetch())
repo = repository.assemble(
    Path(workdir.name) / "repository",
    engine_dir,
    decoupled_mode=True,  # so that answers can be streamed
    iteration_log_path=log_path,
)
with progress.wait("The server starts and loads its models"):
    server = Server(repo).start()
client = Client(server.grpc_url)
print("READY:", *sorted(row.name for row in server.models() if row.state == "READY"))
session.others()

# %%
answer = client.ask("Name the capital of France.", max_tokens=32)
print(f"{answer.text}\n\n({answer.latency_s:.2f} s, the first request after the start)")

# %% [markdown]
# That was computed on your machine. Four models are READY, because the work is divided: `preprocessing` turns text into
# [tokens](glossary.md#Token), `tensorrt_llm` is the language model, `postprocessing` turns tokens into text, and `ensemble`
# says in which order.
#
# `tensorrt_llm` is only a name, which NVIDIA chose: its own library runs under it, and needs an NVIDIA GPU. Here it is
# the course's own engine, with the same tensors and settings. It computes on the CPU with OpenVINO, or on a GPU with
# PyTorch.
#
# ## Predict
#
# Four parts take turns before the first word is on the screen.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "Which part takes most of the time to the first word?",
    [
        "travel: from client to server and back",
        "preprocessing: from text to tokens",
        "tensorrt_llm: the model reads the prompt",
        "postprocessing: from tokens to text",
    ],
)
guess

# %% [markdown]
# ## See the path
#
# Ask the same question five times, streamed, and read three clocks: the client's, Triton's statistics of each model, and
# the log in which the engine notes every [iteration](glossary.md#Iteration). Two stretches remain that nobody measures;
# in the picture they are dotted. Table and picture show the median request of the five.

# %% tags=["nbval-ignore-output"]
question = "Name the capital of France."
asked = [
    request_path.measure(server, client, log_path, question, max_tokens=32)
    for _ in range(5)
]
answer, path = sorted(asked, key=lambda one: one[0].latency_s)[2]
first_word = request_path.first_word(path)
charts.table(first_word)

# %% tags=["remove-cell"]
assert "Paris" in answer.text and len(first_word) == 6
assert (path["what"] == "token").any()

# %% tags=["nbval-ignore-output"]
summary = lesson.request_map_summary(path, first_word)
charts.show(lesson.request_map(path), summary)

# %% tags=["nbval-ignore-output"]
stages = pd.DataFrame(
    [request_path.first_word(path).set_index("stage")["ms"] for _, path in asked]
)
median_ms = stages.median()
longest = median_ms.idxmax()
print(guess.score(request_path.PART_OF[longest]))
share = median_ms[longest] / median_ms.sum()
print(
    f"{longest}: {median_ms[longest]:.0f} ms, {share:.0%} of the time to the first word,"
)
print("by the median of five requests.")

# %% [markdown]
# ## Explain
#
# `tensorrt_llm` computes all tokens of the prompt, here in one iteration: the [prefill](glossary.md#Prefill). It gives the
# first new token. From then on each iteration gives one more: [decode](glossary.md#Decode). Postprocessing turns a token
# into text while the engine computes the next, so it hardly delays anything.
#
# Triton says how long preprocessing and postprocessing took, not when they began: their places follow from their
# neighbours. What the picture cannot show is a queue: one user asks here. On a busy server the wait for a slot comes
# before the prompt, and is often the longest part (lessons 04 and 05).
#
# If that is all, three numbers say when the last word arrives: the time to the first word ([TTFT](glossary.md#TTFT)), the
# length of an iteration, and how many there are.
#
# **A few lines in each lesson are yours,** under a comment `# your line:`. Write the line, then run the folded cell below
# it. It says whether your line gives what the course's gives, and shows the course's when you click it.


# %%
def last_word_ms(ttft_ms, iterations, iteration_ms):
    """Milliseconds from sending a request to its last word.

    >>> last_word_ms(30, 10, 8)
    110
    """
    # your line: return it
    return ttft_ms + iterations * iteration_ms


# %% [markdown]
# Take TTFT and the mean iteration from answers of 64 tokens, and predict answers of 200. The two take turns, so that
# the machine is the same for both.


# %% tags=["nbval-ignore-output"]
def measured(max_tokens):
    """TTFT, iterations after the prompt, mean ms of one, and ms to the last word."""
    text = "Tell a story about France."
    answer, steps = request_path.measure(server, client, log_path, text, max_tokens)
    starts = steps[steps["what"] == "token"]["start_ms"]
    ttft_ms = request_path.first_word(steps)["ms"].sum()
    return ttft_ms, len(starts), starts.diff().mean(), 1000 * answer.latency_s


columns = ["TTFT (ms)", "iterations", "an iteration (ms)", "last word (ms)"]
rows = {64: [], 200: []}
for _ in progress.over(range(7), "Round"):
    for max_tokens, found in rows.items():
        found.append(measured(max_tokens))

# %% tags=["nbval-ignore-output"]
table = pd.DataFrame(
    {f"{most} tokens": pd.DataFrame(found).median() for most, found in rows.items()}
).T.set_axis(columns, axis=1)
short, long = table.iloc[0], table.iloc[1]
predicted = last_word_ms(short.iloc[0], long.iloc[1], short.iloc[2])
last_ms = long.iloc[3]
print(f"Last of {long.iloc[1] + 1:.0f} tokens: predicted {predicted:.0f} ms,", end=" ")
print(f"measured {last_ms:.0f} ms, {100 * (predicted / last_ms - 1):+.0f} %.")
charts.table(table.round(1).reset_index(names="answer"))

# %% [markdown]
# ## Turn the knob
#
# Ask what you like. First set **Max tokens** to 10, then to 300. Then put it back, and paste a long text as the prompt, up to
# about 700 words. Which of the two changes the time to the first token?

# %% tags=["nbval-ignore-output"]
widgets.Playground(server)

# %% [markdown]
# ## Elsewhere
#
# | | start | ask by HTTP |
# |---|---|---|
# | vLLM | `vllm serve MODEL` | `/v1/chat/completions` |
# | TensorRT-LLM today | `trtllm-serve MODEL` | `/v1/chat/completions` |
# | here, as in TensorRT-LLM with engines | `Server(repo).start()` | `/v2/models/ensemble/generate_stream` |
#
# Two things differ there. With vLLM's and TensorRT-LLM's defaults a long prompt, sent twice, is found in the prefix
# cache, and the second prefill is nearly free; here it is computed again (lesson 05 turns reuse on). And a reasoning
# model first writes tokens that nobody sees: its first token is not the first word of the answer.
#
# NVIDIA's own path for language models leaves Triton: TensorRT-LLM removed its engine backend from the main branch in July
# 2026, and since release 26.11 Triton has no image with it ([details](../assets/lab-gpu/README.md)). What this course
# teaches of engines, caches, schedulers and measuring is the same in vLLM and in TensorRT-LLM today. Ensembles, batchers
# and sequences are Triton's, and remain in use for all other models.
#
# ## What breaks
#
# A wrong request is answered with one sentence, and the server goes on.

# %%
for wrong in (
    {"text": "   "},
    {"text": "Hello", "max_tokens": 0},
    {"text": "Hello", "temprature": 0.5},
):
    try:
        client.ask(**wrong)
    except CourseError as error:
        print(f"{wrong}\n  → {error}\n")

# %% [markdown]
# ## Recap
#
# In the moment before the first word the machine computes the prompt; after it, every iteration gives one token.
#
# - A request goes client → Triton → preprocessing → tensorrt_llm → postprocessing → client.
# - `tensorrt_llm` is a name; here it is the course's engine.
# - TTFT, the length of an iteration and their number say when the last word arrives.
#
# <details><summary>1. The prompt gets ten times as long, the answer stays. Which part of the picture grows?</summary>
#
# The iteration of the prompt, and with it the time to the first word.
# </details>
#
# <details><summary>2. The answer becomes ten times as long, the prompt stays. What does the user notice?</summary>
#
# The first word comes as soon as before, and the words come at the same pace, for about ten times as long.
# </details>
#
# <details><summary>3. Why does postprocessing hardly delay the words, although it runs for each token?</summary>
#
# It turns one token into text while the engine computes the next.
# </details>
#
# Before you go on, choose *Kernel → Shut Down Kernel*: an open lesson holds half a gigabyte for its server. Next: {next}.
# To see first what it is all for, take 03 and 04, then come back.
