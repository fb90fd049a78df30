# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **ask** a language model that runs in a real Triton server on this machine;
# - **follow** one request from Enter to the first word, and say where its time goes;
# - **find** your way: the lessons, the check of your machine, help, and how to start over.
#
# You need nothing but this notebook: no GPU, no container, no account. Work in your own copy, which lies in `work/`: `make
# lab` or `inflight lab` made it, and opens JupyterLab there. What you write in it stays yours: where an update of the course
# brings a newer lesson, yours is kept beside it.
#
# **Run a section at a time.** Shift+Enter runs a cell and goes to the next; read what it shows before you go on. *Run All
# Cells* runs everything at once: the measurements are made before you have predicted anything, and a prediction made after
# them counts as late. Use it when you come back to a lesson that you have done. If a kernel has died, begin at any section:
# its first cell runs what it needs of the earlier ones (`catch_up`).
#
# {navigation}

# %% [markdown]
# ## What you should know
#
# Six questions. If you can answer four of them, you know what the course needs; each answer says where to read on.
#
# <details><summary>1. What does <code>[word.upper() for word in words if word]</code> give, and what does <code>**options</code>
# mean in a call?</summary>
#
# A list of the words in capitals, without the blank ones. And: the entries of a dict, each as an argument of its name. The first
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
# The column "stage" of those rows whose "ms" is above 10: <a
# href="https://pandas.pydata.org/docs/user_guide/10min.html">10 minutes to pandas</a>.
# </details>
#
# <details><summary>4. A program asks a server at <code>127.0.0.1:8000</code>. On which machine does the server run, and what is
# 8000?</summary>
#
# On the same machine: no other is reached by that address. 8000 is the port, one of the many doors of a machine; each server
# listens at its own. See <a href="https://developer.mozilla.org/en-US/docs/Web/HTTP/Guides/Overview">MDN's overview of HTTP</a>.
# </details>
#
# <details><summary>5. A language model has written "The cat sat on". What does it compute next, and from what?</summary>
#
# For each token that it knows, how likely it comes next, from all the tokens so far. One of them is chosen and put behind the
# others, and the model runs again. You need to know no more than that; lesson 01 takes the model apart.
# </details>
#
# <details><summary>6. Two programs share two CPU cores, and each needs only one. Why may each be slower than alone?</summary>
#
# They share more than cores: memory, and the way to it. And a program may have more threads than you see. That is why
# measurements here are repeated, and compared within one run.
# </details>
#
# You need to know nothing of Triton, TensorRT-LLM, containers or GPUs.

# %% [markdown]
# ## {question}
#
# A colleague shows you a chat window. She types a question and presses Enter; for a moment nothing happens, then words
# appear one by one. "Why that moment," she asks, "and what is the machine doing in it?"
#
# To answer her you need a model that is being served. The next cell gets the model (93 MB, once), prepares it, and
# starts a Triton server with it. The first time this takes a minute, later some seconds. In lessons 01 to 03 you do by
# hand what these lines do.

# %% tags=["setup"]
import tempfile
from pathlib import Path

from inflight import engine
from inflight.checkpoint import fetch
from inflight.notebook import progress
from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"

# %% tags=["setup"]
with progress.wait("The engine, which the first time is built"):
    engine_dir = engine.cached(fetch())
repo = repository.assemble(
    Path(workdir.name) / "repository",
    engine_dir,
    decoupled_mode=True,
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
# Four parts take turns before the first word is on the screen. Commit yourself to one, before you measure.

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["setup", "nbval-ignore-output"]
from inflight.notebook import widgets

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
from inflight.notebook import catch_up

catch_up("00", "Ask")
answer = client.ask("Name the capital of France.", max_tokens=32)
print(f"{answer.text}\n\n({answer.latency_s:.2f} s, the first request after the start)")
assert "Paris" in answer.text

# %% [markdown]
# That answer was made here, by a model that is small enough for a laptop. It makes more mistakes than the ones you know,
# but it is served in the same way as a large one.
#
# ## See the path
#
# Now the same question once more, streamed, with three clocks running: the client's, Triton's statistics of each
# model, and the log in which the engine notes every [iteration](#Iteration).

# %% tags=["setup", "nbval-ignore-output"]
from inflight.lessons.start_here import request_path
from inflight.lessons import start_here as lesson
from inflight.notebook import catch_up, charts

catch_up("00", "See the path")
answer, path = request_path.measure(
    server, client, log_path, "Name the capital of France.", max_tokens=32
)
first_word = request_path.first_word(path)
assert len(first_word) == 5 and (path["what"] == "token").any()
charts.table(first_word)

# %% tags=["nbval-ignore-output"]
from IPython.display import Markdown

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
# ## What it means
#
# The text goes from model to model. [Preprocessing](#Preprocessing-and-postprocessing) turns it into
# [tokens](#Token). `tensorrt_llm` runs the model over all of them at once: that is the [prefill](#Prefill), and it
# gives the first new token. From then on each [iteration](#Iteration) gives one more: that is [decode](#Decode).
# Postprocessing turns each token into text while the engine is already at the next.
#
# So the moment before the first word is mostly prefill, and the pace of the words after it is the length of an
# iteration. If that is all, two figures should predict when the last word arrives.

# %%
from inflight.notebook import catch_up

catch_up("00", "What it means")
tokens = path[path["what"] == "token"]
iteration_ms = (tokens["end_ms"] - tokens["start_ms"]).mean()
predicted = first_word["ms"].sum() + len(tokens) * iteration_ms
print(
    f"{first_word['ms'].sum():.0f} ms to the first word + {len(tokens)} "
    f"iterations × {iteration_ms:.1f} ms = {predicted:.0f} ms predicted, "
    f"{answer.latency_s * 1000:.0f} ms measured."
)

# %% [markdown]
# The rest is what lies between iterations, and the way of the last word. Two notes on how the picture was measured.
# Triton says how long preprocessing and postprocessing took, not when they began: their lengths are measured, their
# places follow from what is next to them. And `tensorrt_llm` answers from a thread of its own, so Triton's figure for
# it is only the hand-over; its bars come from the engine's log.

# %% [markdown]
# ## Turn the knob
#
# Ask what you like. Try **Max tokens** 10 and then 300: the time to the first word (TTFT) stays, the rest grows. Then
# paste a long text as the prompt: now the TTFT grows.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("00", "Turn the knob")
playground = widgets.Playground(server)
assert playground.frame is None  # nothing is sent before you press Run
playground

# %% [markdown]
# ## On the lab GPU
#
# On a machine with a GPU the same four models have the same names, tensors and connections; the engine inside
# `tensorrt_llm` is another.
#
# | step | here | with TensorRT-LLM |
# |---|---|---|
# | get the server | comes with the course | `nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3` |
# | start it | `Server(repo).start()` | `launch_triton_server.py --model_repo /lab/repo` |
# | engine of `tensorrt_llm` | OpenVINO on the CPU | TensorRT-LLM 0.18 on the GPU |
# | ask by HTTP | `…/ensemble/generate_stream` | the same |
#
# That container is one of the last that have engines: TensorRT-LLM removed them in July 2026 and loads Hugging Face
# folders since. Whoever prepares a machine begins with [its page](../assets/lab-gpu/README.md): both forms, command by command, and a map
# of where each thing of this course lives today.
#
# What would differ in the picture: prefill and iterations are shorter, so that preprocessing, postprocessing and the
# way between them take a larger share.

# %% [markdown]
# ## What breaks
#
# A wrong request is answered with a sentence, and the server goes on.

# %%
from inflight import CourseError
from inflight.notebook import catch_up

catch_up("00", "What breaks")
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
# Read such sentences to the end: they say what happened, where, and what to do next.

# %% [markdown]
# ## The map
#
# Each lesson asks one question and answers it with measurements and a picture.

# %%
from inflight.lessons import start_here as lesson
from inflight.notebook import charts, syllabus

lesson.course_map(syllabus.table())

# %% [markdown]
# Lessons [01](01_engine.ipynb), [02](02_repository.ipynb) and [03](03_serve.ipynb) build what you have just used, one
# by one: the engine, the model repository, the server. Each has a lab with exercises that check your answers. The map
# as text, for those who do not see it: lessons 00 to 03 serve a model, 04 to 07 share it among many users, 08 and 09
# look underneath.
#
# How far you are: in your own copy this table counts the exercises that you have done. Run the cell again to see it grow.

# %%
from inflight.notebook import charts, record

charts.table(record.exercises())

# %% [markdown]
# ## Your machine
#
# What the course needs, and what it found here; CACHE is the folder where engines are kept. `inflight
# doctor` prints the same table in a terminal, with that folder's name.

# %% tags=["nbval-ignore-output"]
import pandas as pd

from inflight import machine
from inflight.checkpoint import cache_dir
from inflight.notebook import charts

checks = pd.DataFrame(machine.checks()).replace(str(cache_dir()), "CACHE", regex=True)
checks["ok"] = checks["ok"].map({True: "yes", False: "no"})
assert len(checks) > 5
charts.table(checks[["name", "need", "have", "ok", "fix"]])

# %% [markdown]
# ## Help, stop, start over
#
# - **A cell shows an error.** Read its last line. If it makes no sense, choose *Kernel → Restart Kernel and Run All
#   Cells*.
# - **A cell hangs.** Press the square in the toolbar. An interrupted notebook leaves nothing running.
# - **What does this function do?** Write its name and a question mark into a cell: `repository.assemble?`
# - **You broke a notebook.** `inflight lab 03 --fresh` makes new copies of lesson 03, and keeps yours beside them.
# - **How far you are.** The table above, or `inflight progress`. `inflight progress --hand-in NAME` writes a file that you
#   may give to whoever teaches.
# - **Everything from the start.** Remove the folder that `inflight doctor` names as the cache (engines),
#   then `make clean` and `make lab`.
# - **Stop.** Close JupyterLab with *File → Shut Down*. Servers that notebooks started end with them. One notebook's:
#   *Kernel → Shut Down Kernel*.
# - **A server does not run any more.** Press *Run* in its widget: it is started again.
# - **A widget is grey and says that the kernel was restarted**, or, once the page was loaded again, reads *model not
#   found*: run its section again.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()

# %% [markdown]
# ## Recap
#
# - A request goes client → Triton → preprocessing → tensorrt_llm → postprocessing → client.
# - Before the first word lies the prefill: the model reads the whole prompt in one iteration.
# - After it, each iteration gives one token.
# - The time to the first word and the length of an iteration predict when the last word arrives.
# - An error is one sentence that says what to do.
#
# ## Questions
#
# <details><summary>1. The prompt gets ten times as long, the answer stays. Which part of the picture grows?</summary>
#
# The prompt's iteration, and with it the time to the first word. The iterations after it hardly change.
#
# </details>
# <details><summary>2. The answer becomes ten times as long, the prompt stays. What does the user notice?</summary>
#
# The first word comes as soon as before; the words come at the same pace; it goes on for ten times as long.
#
# </details>
# <details><summary>3. Why does postprocessing hardly delay the words, although it runs for each token?</summary>
#
# It turns one token into text while the engine computes the next. Only its part for the last token is waited for.
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
# The part of an answer after its first token: one token an iteration. Also: generation.
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
# A batch is filled when it is empty, and its answers leave when the longest is done.
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
