# %% [markdown]
# # {heading}
#
# About {minutes} minutes (an estimate). Afterwards you will be able to
#
# - **ask** a language model that runs in a real Triton server on this machine;
# - **follow** one request from Enter to the first word, and say where its time goes;
# - **predict** when its last word arrives, from the time to the first word, the length of an iteration and the number of
#   tokens after the first.
#
# **What you will use elsewhere:** time to first token, prefill and decode are the same in vLLM, in TensorRT-LLM and in
# every other server of language models. So is the habit of splitting a wait into its parts before blaming one. The names
# of the models are Triton's.
#
# You need some Python, and to read a line of NumPy or pandas; no GPU, no container, no account. [Six
# questions](#What-you-should-know) further down tell you whether you know enough to begin.
#
# **Run one cell at a time.** Shift+Enter runs a cell and goes to the next; read what it shows before you go on. A lesson
# asks you for a prediction before it measures. *Run All Cells* would measure first, and a measurement closes its
# question.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A colleague shows you a chat window. She types a question and presses Enter. For a moment nothing happens, then words
# appear one by one. "Why that moment," she asks, "and what is the machine doing in it?"
#
# To answer her, you need a model that is being served. Set-up has installed one, SmolLM2 with 135 million parameters. The
# second cell prepares it for this machine, which takes up to a minute the first time, and starts a Triton server with it.
# In lessons 01 to 03 you do the same steps by hand.

# %%
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

from inflight import CourseError, engine, machine
from inflight.checkpoint import fetch
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
print("READY:", *sorted(row.name for row in server.models() if row.state == "READY"))
session.others()

# %%
answer = client.ask("Name the capital of France.", max_tokens=32)
print(f"{answer.text}\n\n({answer.latency_s:.2f} s, the first request after the start)")

# %% [markdown]
# (The first request also pays for warming up, so leave it out of measurements of what comes after.) This answer was
# computed on your machine, by a model that is small enough for a laptop. It makes more mistakes than the models you know,
# but it is served in the same way as a large one.
#
# Four models are READY, because the work is divided. `preprocessing` turns your text into numbers, `tensorrt_llm`
# is the language model, `postprocessing` turns numbers into text, and `ensemble` says in which order.
#
# **`tensorrt_llm` is the name of a place in the repository, and here TensorRT-LLM does not stand in it.** NVIDIA chose the
# name for its own library, which needs an NVIDIA GPU. The course keeps the name, the tensors and the settings, so that
# what you learn fits NVIDIA's repositories. What stands in the place is the course's own engine: it computes on the CPU with
# OpenVINO, or on a GPU with PyTorch.
#
# ## Predict
#
# Four parts take turns before the first word is on the screen. Choose the one that takes longest, before you measure.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "Which part takes most of the time to the first word?",
    [
        "the way between client and server",
        "preprocessing: text to tokens",
        "tensorrt_llm: the prompt",
        "postprocessing: tokens to text",
    ],
)
guess

# %% [markdown]
# ## See the path
#
# Ask the same question five times, streamed, and read three clocks: the client's, Triton's statistics of each model, and
# the log in which the engine notes every [iteration](#Iteration). The table and the picture show the request whose whole
# time is the median of the five.

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
assert "Paris" in answer.text and len(first_word) == 5
assert (path["what"] == "token").any()

# %% tags=["nbval-ignore-output"]
summary = lesson.request_map_summary(path, first_word)
charts.show(lesson.request_map(path), summary)
prompt = path[path["what"] == "prompt"].iloc[0]
print(f"The prompt's bar is {prompt.end_ms - prompt.start_ms:.1f} ms long.")
Markdown(summary)

# %% tags=["nbval-ignore-output"]
stages = pd.DataFrame(
    [request_path.first_word(path).set_index("stage")["ms"] for _, path in asked]
)
median_ms = stages.median()
longest = median_ms.idxmax()
print(guess.score(request_path.PART_OF[longest]))
shares = stages[longest] / stages.sum(axis=1)
print(
    f"Judged by the median of {len(asked)} requests: {longest}, "
    f"{median_ms[longest]:.0f} ms, {shares.min():.0%} to {shares.max():.0%} of the time"
    " to the first word."
)

# %% [markdown]
# ## Explain
#
# The text goes from model to model. [Preprocessing](#Preprocessing-and-postprocessing) turns it into [tokens](#Token).
# `tensorrt_llm` computes all of these tokens, here in one iteration; this part is called the [prefill](#Prefill). It
# gives the first new token. From then on each [iteration](#Iteration) gives one more token; this part is called
# [decode](#Decode). Postprocessing turns a token into text while the engine computes the next. The last token of the
# short answer is the one that ends it. It has no text, but it takes an iteration, and its empty piece is the last in
# the picture.
#
# If that is all, three numbers predict when the last word arrives: the time to the first word ([TTFT](#TTFT)), the length
# of an iteration, and how many there are. Try it on answers of two lengths. *Tell a story about France* has as many tokens
# as the question above, and a longer answer. Ask for both, in turns, so that both meet the same machine:

# %% tags=["nbval-ignore-output"]
story = "Tell a story about France."
texts = {"short": (question, 32), "long": (story, 64)}
turns = [
    (length, *request_path.measure(server, client, log_path, text, max_tokens=most))
    for _ in progress.over(range(5), "Round")
    for length, (text, most) in texts.items()
]
rows = []
for length, answered, steps in turns:
    tokens = steps[steps["what"] == "token"]
    ttft_ms = request_path.first_word(steps)["ms"].sum()
    iteration_ms = tokens["start_ms"].diff().mean()  # from one start to the next
    rows.append((length, ttft_ms, len(tokens), iteration_ms, 1000 * answered.latency_s))

# %% [markdown]
# **In the lessons a few lines are yours,** under a comment `# your line:`. In your copy there is `...` in their place. Write
# the line, then run the folded cell below it: it says whether your line gives what the course's gives, and shows the
# course's when you click it. A blank that you leave is filled in, so that you can go on.


# %%
def last_word_ms(ttft_ms, iterations, iteration_ms):
    """Milliseconds from sending a request to its last word, with so many iterations."""
    # your line: return it
    return ttft_ms + iterations * iteration_ms


# %% [markdown]
# Now predict the short answers with the TTFT and the iteration of the long ones, and the long with those of the short. No
# request is in its own prediction:

# %% tags=["nbval-ignore-output"]
columns = ["answer", "TTFT (ms)", "iterations", "an iteration (ms)", "measured (ms)"]
table = pd.DataFrame(rows, columns=columns).groupby("answer", sort=False).median()
other = {"short": "long", "long": "short"}
table["predicted (ms)"] = [
    last_word_ms(
        table["TTFT (ms)"][other[length]],
        table["iterations"][length],
        table["an iteration (ms)"][other[length]],
    )
    for length in table.index
]
for length, row in table.iterrows():
    measured, predicted = row["measured (ms)"], row["predicted (ms)"]
    print(f"{length}: measured/predicted {measured / predicted:.2f},", end=" ")
    print(f"the rest {measured - predicted:.1f} ms")
charts.table(table.astype({"iterations": int}).reset_index())

# %% [markdown]
# All figures are medians of five requests; iterations are the tokens less one, because the prefill gives the first. The
# length of an iteration is counted from its start to the next one's, pauses included. What is left has either sign. The
# last word's trip back makes *measured* larger. The first iteration after the prompt may be longer than the others:
# it is one of the few that the short answer's mean is made of, and hardly counts in the long one's, so a price from the
# short answer may come out too high. And requests differ from one to the next: measured/predicted says how much all of
# it is here.
#
# How could the picture mislead? Triton says how long preprocessing and postprocessing took, but not when they began. So
# their lengths are measured (of postprocessing, the mean), and their places in the picture follow from what comes next
# to them. `tensorrt_llm` answers from a thread of its own, and Triton counts only the time until the request is handed
# over; its bars therefore come from the engine's log. The way back cannot be told from the hand-over to postprocessing;
# the table counts both in *tensorrt_llm: the prompt*, which is why that is longer than its bar. And one user asks here,
# who has the machine to herself. On a busy server a wait comes before the prompt, and is often the longest part: for a
# place in the batch or in the KV cache (lessons 04 and 05). Lesson 03 shows what eight users change. (`request_path??`
# shows the code that measures.)

# %% [markdown]
# ## Turn the knob
#
# Ask what you like. First set **Max tokens** to 10, then to 300. Then put it back, and paste a long text as the prompt: up
# to about 700 words, as this engine takes prompts of at most 1,024 tokens. The table below the answer keeps the figures of
# your last runs. Which of the two changes the time to the first token, and which changes only the rest?
#
# [ITL](#ITL) is the time from one token to the next. *Temperature* and *top_k* say how the next token is drawn; leave them
# until lesson 03. (Questions 1 and 2 at the end answer it.)

# %% tags=["nbval-ignore-output"]
widgets.Playground(server)

# %% tags=["remove-cell"]
assert engine.read(engine_dir).build_config.max_input_len == 1024  # as the text says

# %% [markdown]
# ## Elsewhere
#
# TensorRT-LLM's model repository for Triton, `inflight_batcher_llm`, had five models. The course keeps four of them with
# their names, tensors and connections; of the fifth, `tensorrt_llm_bls`, lesson 02 says what it is for. NVIDIA removed the
# engine behind `tensorrt_llm` from TensorRT-LLM's main branch in July 2026; the second row is for containers from before.
# Today TensorRT-LLM and vLLM load a Hugging Face folder with PyTorch. In Triton, one Python model stands at the place
# `tensorrt_llm` and calls TensorRT-LLM's LLM API: text in, text out, with nothing before or after it.
#
# | | start | ask by HTTP |
# |---|---|---|
# | here | `Server(repo).start()` | `/v2/models/ensemble/generate_stream` |
# | TensorRT-LLM with engines | `launch_triton_server.py` | `/v2/models/ensemble/generate_stream` |
# | Triton with TensorRT-LLM today | `launch_triton_server.py`, with the repository `llmapi` | `/v2/models/tensorrt_llm/generate` |
# | TensorRT-LLM today | `trtllm-serve MODEL` | `/v1/chat/completions` |
# | vLLM | `vllm serve MODEL` | `/v1/chat/completions` |
#
# [The page for a lab GPU](../assets/lab-gpu/README.md) has the commands, and says which of them were tried.

# %% [markdown]
# ## What breaks
#
# A wrong request is answered with one sentence, and the server goes on. The third below does not even reach it: the
# course's client compares the names with the model's inputs. Many servers ignore a name that they do not know (lesson
# 03).

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
# ## What you should know
#
# Six questions. If you can answer four of them, you know what the course needs; the answers say where to read on. You need
# to know nothing of Triton, TensorRT-LLM, containers or GPUs.
#
# <details><summary>1. What does <code>[word.upper() for word in words if word]</code> give, and what does <code>**options</code>
# mean in a call?</summary>
#
# A list of the words in capitals, without the empty ones. And: the entries of a dict, each passed as the keyword
# argument of that name. The first nine chapters of <a href="https://docs.python.org/3/tutorial/">Python's tutorial</a>
# are all the Python that lessons use.
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
# On the same machine: that address reaches no other. 8000 is the port; each server on a machine listens on its own. See <a
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
# The lessons of the core build on each other in this order. Each elective stands alone: do lessons 00 to 04 first, and 05
# before 12. Beyond the Python, NumPy and pandas of the six questions, the labs of 06
# need C and a compiler (`cc`), and 08 reads some PyTorch (`permute`, `scaled_dot_product_attention`).
#
# How far are you? In your own copy, this table counts the exercises that you have done. Run the cell again to update it.

# %% tags=["nbval-ignore-output"]
charts.table(record.exercises())

# %% [markdown]
# ## Your machine
#
# What the course needs, and what it found here. In a terminal, `inflight doctor` prints the same table. Only a *no* keeps
# the course from running. A dash is a hint: everything works, and the last column says what would be better. What
# the row *precision* means, lesson 01 says.

# %% tags=["nbval-ignore-output"]
checks = pd.DataFrame(
    [(row.mark, row.name, row.need, row.have, row.fix) for row in machine.checks()],
    columns=["", "what", "needed", "here", "what to do"],
)
charts.table(checks)

# %% [markdown]
# ## Help, stop, start over
#
# - **A cell shows an error.** Read its last line. If that does not help, choose *Kernel → Restart Kernel*, select the cell,
#   and choose *Run → Run All Above Selected Cell*.
# - **You want to begin in the middle,** for example after a break. Select the cell where you want to go on and choose *Run →
#   Run All Above Selected Cell*.
# - **A cell hangs.** Press the square in the toolbar, then run the cell again.
# - **A widget is grey and says that the kernel was restarted,** or reads *model not found*. Select its cell, choose *Run →
#   Run All Above Selected Cell*, then run the cell.
# - **A widget says that its server does not run.** Press *Run*: the widget starts it again.
# - **You go to the next lesson.** Choose *Kernel → Shut Down Kernel* here first: a lesson that stays open holds half a
#   gigabyte for its server, and more for its kernel. The next lesson's set-up says which servers still run.
# - **You want to know what a function does.** Write its name and a question mark into a cell: `repository.assemble?`
# - **You want to know where your work is.** In the folder `work/`, which `make lab` or `inflight lab` makes; what you write
#   there stays yours. If an update of the course brings a newer lesson, your version is kept beside it.
# - **You broke a notebook.** `inflight lab 03 --fresh` makes new copies of lesson 03. Yours are kept beside them, as
#   `03_serve.before.ipynb`, if you wrote or ran anything in them.
# - **You want to hand in your work.** `inflight progress --hand-in NAME` writes a file for your teacher.
# - **You want to start from nothing.** Remove the cache (engines), whose folder stands in the table above. Then run `make
#   clean` and `make lab`.
# - **You want to stop.** Close JupyterLab with *File → Shut Down*. Servers that notebooks started end with them.

# %% tags=["nbval-ignore-output"]
session.running()

# %% [markdown]
# ## Recap
#
# - A request goes client → Triton → preprocessing → tensorrt_llm → postprocessing → client.
# - `tensorrt_llm` names a place in the repository; here the course's engine stands in it.
# - Before the first word comes the prefill: the model computes the whole prompt, here in one iteration. On a busy
#   server a wait for its turn comes before that.
# - After it, each iteration gives one token.
# - The time to the first word, the length of an iteration and their number say when the last word arrives.
#
# ## Questions
#
# <details><summary>1. The prompt gets ten times as long, the answer stays. Which part of the picture grows?</summary>
#
# The iteration of the prompt, and with it the time to the first word. The iterations after it grow much less: each
# looks back at a longer text (lesson 01).
#
# </details>
# <details><summary>2. The answer becomes ten times as long, the prompt stays. What does the user notice?</summary>
#
# The first word comes as soon as before, and the words come at the same pace, for about ten times as long.
#
# </details>
# <details><summary>3. Why does postprocessing hardly delay the words, although it runs for each token?</summary>
#
# It turns one token into text while the engine computes the next. So each word comes later by one call, and the pace stays
# the engine's.
#
# </details>
#
# Next: {next}

# %% [markdown]
# ## Glossary
#
# Every term of the course in a sentence. A link to one shows the sentence when the mouse is over it; the arrow leads back.
#
# {glossary}
