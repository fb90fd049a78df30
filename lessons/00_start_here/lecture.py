# %% [markdown]
# # {heading}
#
# About {minutes} minutes (an estimate). Afterwards you will be able to
#
# - **ask** a language model that runs in a real Triton server on this machine;
# - **follow** one request from Enter to the first word, and say where its time goes;
# - **find** your way: the lessons, the check of your machine, help, and how to start over.
#
# You need some Python and nothing else: no GPU, no container, no account. [Six questions](#What-you-should-know) further
# down tell you whether you know enough to begin.
#
# Work in your own copy, in the folder `work/`: `make lab` or `inflight lab` makes it, and opens JupyterLab there. What
# you write stays yours. If an update of the course brings a newer lesson, your version is kept beside it.
#
# **Run one cell at a time.** Shift+Enter runs a cell and goes to the next; read what it shows before you go on. Each lesson
# asks you for a prediction before it measures. *Run All Cells* would measure first, and your prediction would count as
# late.
#
# **To begin in the middle,** for example after a break, select the cell where you want to go on and choose *Run → Run All
# Above Selected Cell*.
#
# **In later lessons a few lines are yours,** under a comment `# your line:`. Delete the line, write it yourself, and
# compare it with the one folded below the cell.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A colleague shows you a chat window. She types a question and presses Enter. For a moment nothing happens, then words
# appear one by one. "Why that moment," she asks, "and what is the machine doing in it?"
#
# To answer her, you need a model that is being served. The next cells download the model (93 MB, once), prepare it, and
# start a Triton server with it. The first time this takes a minute, later some seconds. In lessons 01 to 03 you do the
# same steps by hand.

# %%
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

from inflight import CourseError, engine, machine
from inflight.checkpoint import cache_dir, fetch
from inflight.lessons import start_here as lesson
from inflight.lessons.start_here import request_path
from inflight.notebook import charts, progress, record, session, widgets
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
ready = sorted(row.name for row in server.models() if row.state == "READY")
print("READY:", *ready)
assert len(ready) == 4

# %% [markdown]
# ## Predict
#
# Four parts take turns before the first word is on the screen. Choose one, before you measure.

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "Which part takes most of the time to the first word?",
    [
        "the way between client and server",
        "preprocessing: text to tokens",
        "tensorrt_llm: the prompt",
        "postprocessing: tokens to text",
    ],
    given=prediction,
)
assert guess.value == prediction
guess

# %% [markdown]
# ## Ask

# %%
answer = client.ask("Name the capital of France.", max_tokens=32)
print(f"{answer.text}\n\n({answer.latency_s:.2f} s, the first request after the start)")
assert "Paris" in answer.text

# %% [markdown]
# This answer was computed on your machine, by a model that is small enough for a laptop. It makes more mistakes than the
# models you know, but it is served in the same way as a large one.
#
# ## See the path
#
# Ask the same question once more, streamed, and read three clocks: the client's, Triton's statistics of each model, and
# the log in which the engine notes every [iteration](#Iteration).

# %% tags=["nbval-ignore-output"]
answer, path = request_path.measure(
    server, client, log_path, "Name the capital of France.", max_tokens=32
)
first_word = request_path.first_word(path)
assert len(first_word) == 5 and (path["what"] == "token").any()
charts.table(first_word)

# %% tags=["nbval-ignore-output"]
summary = lesson.request_map_summary(path, first_word)
charts.show(lesson.request_map(path), summary)
Markdown(summary)

# %% tags=["nbval-ignore-output"]
slowest = first_word.loc[first_word["ms"].idxmax()]
share = slowest["ms"] / first_word["ms"].sum()
part = slowest["stage"].split(":")[0].split(",")[0]
print(guess.score("the way" if part.startswith(("connecting", "hand")) else part))
print(
    f"Measured: {slowest['stage']}, "
    f"{slowest['ms']:.0f} of {first_word['ms'].sum():.0f} ms ({share:.0%})."
)

# %% [markdown]
# ## Explain
#
# The text goes from model to model. [Preprocessing](#Preprocessing-and-postprocessing) turns it into
# [tokens](#Token). `tensorrt_llm` runs the model over all of these tokens at once, which is called the
# [prefill](#Prefill), and gets the first new token. From then on each [iteration](#Iteration) gives one more token; this
# part is called [decode](#Decode). Postprocessing turns a token into text while the engine computes the next.
#
# If that is all, two figures predict when the last word arrives: the time to the first word, and the length of an
# iteration.

# %%
tokens = path[path["what"] == "token"]
iteration_ms = (tokens["end_ms"] - tokens["start_ms"]).mean()
predicted = first_word["ms"].sum() + len(tokens) * iteration_ms
print(
    f"{first_word['ms'].sum():.0f} ms to the first word + {len(tokens)} "
    f"iterations × {iteration_ms:.1f} ms = {predicted:.0f} ms predicted, "
    f"{answer.latency_s * 1000:.0f} ms measured."
)

# %% [markdown]
# The prediction leaves out the pauses between iterations, and the way of the last word to the client.
#
# How could the picture mislead? Triton says how long preprocessing and postprocessing took, but not when they began. So
# their lengths are measured, and their places in the picture follow from what comes next to them. `tensorrt_llm` answers
# from a thread of its own, and Triton counts only the time until the request is handed over; its bars therefore come from
# the engine's log.

# %% [markdown]
# ## Turn the knob
#
# Ask what you like. Try **Max tokens** at 10, then at 300. Then paste a long text as the prompt. Which of the two changes
# the time to the first token (TTFT), and which changes only the rest?

# %% tags=["nbval-ignore-output"]
playground = widgets.Playground(server)
assert playground.frame is None  # nothing is sent before you press Run
playground

# %% [markdown]
# ## Elsewhere
#
# The course keeps the names, tensors and connections of TensorRT-LLM's four Triton models; only the engine inside
# `tensorrt_llm` is another, OpenVINO on the CPU. NVIDIA removed its own in July 2026, and the second row is for the last
# containers that have it. Today TensorRT-LLM and vLLM load a Hugging Face folder with PyTorch, and serve it with one
# command.
#
# | | start | ask by HTTP |
# |---|---|---|
# | here | `Server(repo).start()` | `…/ensemble/generate_stream` |
# | TensorRT-LLM with engines | `launch_triton_server.py` | `…/ensemble/generate_stream` |
# | TensorRT-LLM today | `trtllm-serve MODEL` | `/v1/completions` |
# | vLLM | `vllm serve MODEL` | `/v1/completions` |
#
# [The page for a lab GPU](../assets/lab-gpu/README.md) has the commands, and says which of them were tried.

# %% [markdown]
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
# Read such a sentence to its end: it says what happened, where, and what to do next.

# %% [markdown]
# ## What you should know
#
# Six questions. If you can answer four of them, you know what the course needs; each answer says where to read on. You need
# to know nothing of Triton, TensorRT-LLM, containers or GPUs.
#
# <details><summary>1. What does <code>[word.upper() for word in words if word]</code> give, and what does <code>**options</code>
# mean in a call?</summary>
#
# A list of the words in capitals, without the empty ones. And: the entries of a dict, each as an argument of its name. The first
# nine chapters of <a href="https://docs.python.org/3/tutorial/">Python's tutorial</a> are all the Python that lessons use.
# </details>
#
# <details><summary>2. An array has the shape [8, 1, 128]. How many numbers are in it, and how many does
# <code>array[0, 0]</code> have?</summary>
#
# 1,024, and 128. NumPy's <a href="https://numpy.org/doc/stable/user/absolute_beginners.html">guide for beginners</a> is
# enough.
# </details>
#
# <details><summary>3. What does <code>table.loc[table["ms"] > 10, "stage"]</code> give, where <code>table</code> is a pandas
# DataFrame?</summary>
#
# The column "stage" of the rows whose "ms" is above 10: <a
# href="https://pandas.pydata.org/docs/user_guide/10min.html">10 minutes to pandas</a>.
# </details>
#
# <details><summary>4. A program asks a server at <code>127.0.0.1:8000</code>. On which machine does the server run, and what is
# 8000?</summary>
#
# On the same machine: that address reaches no other. 8000 is the port; each server on a machine listens at its own. See <a
# href="https://developer.mozilla.org/en-US/docs/Web/HTTP/Guides/Overview">MDN's overview of HTTP</a>.
# </details>
#
# <details><summary>5. A language model has written "The cat sat on". What does it compute next, and from what?</summary>
#
# For each token that it knows, how likely that token comes next, given all tokens so far. One is chosen and appended, and
# the model runs again. You need to know no more than that; lesson 01 takes the model apart.
# </details>
#
# <details><summary>6. Two programs share two CPU cores, and each needs only one. Why may each be slower than alone?</summary>
#
# They share more than cores: the memory, its bandwidth and the caches. And a program may have more threads than you see.
# That is why the lessons repeat measurements, and compare only within one run.
# </details>

# %% [markdown]
# ## The map
#
# Each lesson asks one question, and answers it with measurements and a picture. Each lab has exercises that check your
# answers.
#
# {map}
#
# The lessons build on each other in this order. Beyond the Python, NumPy and pandas of the six questions, the labs of 06
# need C and a compiler (`cc`), and 08 reads some PyTorch (`permute`, `scaled_dot_product_attention`).
#
# How far are you? In your own copy, this table counts the exercises that you have done. Run the cell again to see it grow.

# %% tags=["nbval-ignore-output"]
done = record.exercises()
assert not done.empty
charts.table(done)

# %% [markdown]
# ## Your machine
#
# What the course needs, and what it found here. CACHE is the folder where engines are kept. In a terminal, `inflight
# doctor` prints the same table with the folder's name.

# %% tags=["nbval-ignore-output"]
checks = pd.DataFrame(machine.checks()).replace(str(cache_dir()), "CACHE", regex=True)
checks["ok"] = checks["ok"].map({True: "yes", False: "no"})
assert len(checks) > 5
charts.table(checks[["name", "need", "have", "ok", "fix"]])

# %% [markdown]
# ## Help, stop, start over
#
# - **A cell shows an error.** Read its last line. If that does not help, choose *Kernel → Restart Kernel*, select the cell,
#   and choose *Run → Run All Above Selected Cell*.
# - **A cell hangs.** Press the square in the toolbar, then run the cell again.
# - **A widget is grey and says that the kernel was restarted,** or reads *model not found*. Select its cell, choose *Run →
#   Run All Above Selected Cell*, then run the cell.
# - **A widget says that its server does not run.** Press *Run*: the widget starts it again.
# - **You want to know what a function does.** Write its name and a question mark into a cell: `repository.assemble?`
# - **You broke a notebook.** `inflight lab 03 --fresh` makes new copies of lesson 03, and keeps yours beside them.
# - **You want to hand in your work.** `inflight progress --hand-in NAME` writes a file for your teacher.
# - **You want to start from nothing.** Remove the cache (engines); `inflight doctor` names its folder. Then run `make
#   clean` and `make lab`.
# - **You want to stop.** Close JupyterLab with *File → Shut Down*. Servers that notebooks started end with them. To stop
#   only one notebook's servers, choose *Kernel → Shut Down Kernel*.

# %% tags=["nbval-ignore-output"]
session.running()

# %% [markdown]
# ## Recap
#
# - A request goes client → Triton → preprocessing → tensorrt_llm → postprocessing → client.
# - Before the first word comes the prefill: the model reads the whole prompt in one iteration.
# - After it, each iteration gives one token.
# - The time to the first word and the length of an iteration predict when the last word arrives.
# - An error is one sentence that says what to do.
#
# ## Questions
#
# <details><summary>1. The prompt gets ten times as long, the answer stays. Which part of the picture grows?</summary>
#
# The iteration of the prompt, and with it the time to the first word. The iterations after it hardly change.
#
# </details>
# <details><summary>2. The answer becomes ten times as long, the prompt stays. What does the user notice?</summary>
#
# The first word comes as soon as before, and the words come at the same pace, for about ten times as long.
#
# </details>
# <details><summary>3. Why does postprocessing hardly delay the words, although it runs for each token?</summary>
#
# It turns one token into text while the engine computes the next. The client waits only for its work on the last token.
#
# </details>
#
# Next: {next}

# %% [markdown]
# ## Glossary
#
# ### Batch
# The sequences that are computed together in one iteration.
#
# ### Block
# A page of the KV cache with room for a fixed number of tokens, here 32.
#
# ### Checkpoint
# A model as it is published: weights, tokenizer, and a description of its shape.
#
# ### Decode
# The part of an answer after its first token: one token per iteration. Also: generation.
#
# ### Decoupled
# A model that may answer one request with many responses, or with none. Streaming needs it.
#
# ### End-to-end latency
# From sending the request to the last word.
#
# ### Engine
# A checkpoint prepared for one kind of machine, with its limits fixed.
#
# ### Ensemble
# A Triton model that consists of others: it says which output goes to which input.
#
# ### Iteration
# One pass through the model: it computes some tokens of every sequence in the batch.
#
# ### In-flight batching
# Requests join and leave the batch at every iteration. Also: continuous batching.
#
# ### ITL
# Inter-token latency: from one token of an answer to the next.
#
# ### KV cache
# Keys and values of all tokens so far, kept so that no token is computed twice.
#
# ### Model repository
# A folder with one folder for each model that Triton may load.
#
# ### Prefill
# The iteration in which the prompt is computed. Also: context phase.
#
# ### Preprocessing and postprocessing
# The models that turn text into tokens before the engine, and tokens into text after it.
#
# ### Quantization
# Storing numbers in fewer bits, with a scale for each group of them.
#
# ### Static batching
# Requests start together as a batch; the next batch starts when the longest answer is done.
#
# ### Throughput
# Tokens, or requests, per second over all users.
#
# ### Token
# A piece of text with a number: a word, a part of one, or a sign.
#
# ### Triton
# The server that loads models from a repository and answers requests to them.
#
# ### TTFT
# Time to first token: from sending the request to the first word.
