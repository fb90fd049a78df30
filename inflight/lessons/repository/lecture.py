# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **write** a model repository from blank files, and start Triton on it;
# - **trace** every tensor through an ensemble;
# - **find** why a repository is not served, and say which check finds a fault before the clients do.
#
# **What is history:** the language model as a pipeline of four Triton models. TensorRT-LLM removed that layout from its
# main branch in July 2026, together with its engines; today it is one model, and you serve that one too. **What is not:**
# configs, ensembles, control modes and readiness are how Triton serves every other model. The Triton here is version 2.51,
# from container 24.10.
#
# You need some Python. The engine of lesson 01 is built here if it is missing.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A colleague hands you a folder with four files called `config.pbtxt`. It was served until this morning. Since one small
# change clients get errors, and the demo is in ten minutes. Which file do you open, and what do you ask the
# server?
#
# You will cause that morning yourself. But first, the smallest [model repository](glossary.md#Model-repository): a folder
# with one folder for each model, and in it a folder for each version.

# %%
import re
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import tritonclient.grpc as triton
from IPython.display import display
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight import CourseError, engine
from inflight.checkpoint import fetch
from inflight.lessons import repository as lesson
from inflight.notebook import charts, progress, session, widgets
from inflight.triton import Client, Server, repository

folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
repo = Path(folder.name) / "by_hand"
for model in ("to_ids", "to_text", "round_trip"):
    (repo / model / "1").mkdir(parents=True)
session.others()

# %% [markdown]
# ## A model by hand
#
# The first model turns a text into numbers, as a tokenizer does; to keep it short, they are the text's bytes. Triton
# calls `execute` with a list of requests and expects a response to each.

# %%
# %%writefile {repo}/to_ids/1/model.py
# import numpy as np
# import triton_python_backend_utils as pb_utils  # exists only inside Triton
#
#
# class TritonPythonModel:
#     def execute(self, requests):
#         return [self.answer(request) for request in requests]
#
#     def answer(self, request):
#         text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().item()
#         ids = np.array([list(text)], np.int32)
#         return pb_utils.InferenceResponse([pb_utils.Tensor("IDS", ids)])

# %%
# %%writefile {repo}/to_ids/config.pbtxt
# name: "to_ids"
# backend: "python"
# max_batch_size: 1
# input [ { name: "TEXT"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# output [ { name: "IDS"  data_type: TYPE_INT32  dims: [ -1 ] } ]

# %% [markdown]
# That is a whole config. The [backend](glossary.md#Backend) `python` is the library that runs `model.py`. `dims` is the
# shape of a [tensor](glossary.md#Tensor): one text in, any number of ids out (`-1`). Because `max_batch_size` is not 0,
# Triton puts a batch dimension in front: the text arrives as `[1, 1]`, and the ids leave as `[1, n]`.
#
# What Triton loads is up to `--model-control-mode`:
#
# | mode | loads at the start | afterwards |
# |---|---|---|
# | `none`, the default | every model | nothing |
# | `poll` | every model | whatever changes in the folder, perhaps a half-copied file |
# | `explicit` | what `--load-model` names | what a client tells it to load |

# %% tags=["nbval-ignore-output"]
hand_made = lesson.tritonserver(
    [
        f"--model-repository={repo}",
        "--model-control-mode=explicit",
        "--load-model=to_ids",
        "--disable-auto-complete-config",  # use the files as they are: fill in nothing
        "--strict-readiness=true",  # the default; see below
    ]
)

# %% [markdown]
# Five of these arguments are yours. Most of the others keep the server on this machine: its addresses, free ports, and
# a key without which nobody can make it load a model, that is, run code.
#
# Any client can now ask. It needs the tensors' names, types and shapes, and no more.


# %%
def ask(server, model, **tensors):
    """Send arrays to a model's inputs, by name; return its outputs, by name."""
    inputs = []
    for name, array in tensors.items():
        tensor = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    with triton.InferenceServerClient(server.grpc_url) as connection:
        result = connection.infer(model, inputs)
    names = [output.name for output in result.get_response().outputs]
    return {name: result.as_numpy(name) for name in names}


print(ask(hand_made, "to_ids", TEXT=np.array([[b"Hi!"]], object)))

# %% [markdown]
# ## A second model, and an ensemble
#
# `to_text` goes the other way. The ids arrive as an array of shape `[1, n]`. Triton wants back an array of shape
# `[1, 1]` and dtype `object` that holds one `bytes` object.

# %%
# %%writefile {repo}/to_text/1/model.py
# import numpy as np
# import triton_python_backend_utils as pb_utils
#
#
# class TritonPythonModel:
#     def execute(self, requests):
#         return [self.answer(request) for request in requests]
#
#     def answer(self, request):
#         ids = pb_utils.get_input_tensor_by_name(request, "IDS").as_numpy()
#         # your line: from `ids`, the bytes as a text of shape [1, 1]
#         text = np.array([[bytes(ids[0].tolist())]], object)
#         return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])

# %%
# %%writefile {repo}/to_text/config.pbtxt
# name: "to_text"
# backend: "python"
# max_batch_size: 1
# input [ { name: "IDS"  data_type: TYPE_INT32  dims: [ -1 ] } ]
# output [ { name: "TEXT"  data_type: TYPE_STRING  dims: [ 1 ] } ]

# %% [markdown]
# The third model is an [ensemble](glossary.md#Ensemble). It has no code: Triton itself passes the tensors from step to
# step. In each map the **key** is the model's own name for a tensor, and the **value** is the name that all steps
# share. Two steps are connected when they use the same value. A value that is an input or output of the ensemble
# connects a step with the client.

# %%
# %%writefile {repo}/round_trip/config.pbtxt
# name: "round_trip"
# platform: "ensemble"
# max_batch_size: 1
# input [ { name: "text_input"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# output [ { name: "text_output"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# ensemble_scheduling { step [
#   { model_name: "to_ids"  model_version: -1  # the newest
#     input_map { key: "TEXT"  value: "text_input" }
#     output_map { key: "IDS"  value: "ids" } },
#   { model_name: "to_text"  model_version: -1
#     output_map { key: "TEXT"  value: "text_output" }
#     # your line: connect the input of to_text with the output of to_ids
#     input_map { key: "IDS"  value: "ids" }
#   }
# ] }


# %%
def load(server, model):
    """Tell Triton to load a model from its files; return what it answers."""
    with triton.InferenceServerClient(server.grpc_url) as connection:
        try:
            connection.load_model(model, headers=server.headers)  # the key
        except InferenceServerException as error:
            return error.message().partition("\n")[0]
    return "loaded"


print("round_trip:", load(hand_made, "round_trip"))
text = np.array([["Hi!"]], object)
print(ask(hand_made, "round_trip", text_input=text)["text_output"].item().decode())
charts.table(pd.DataFrame(hand_made.models())[["name", "version", "state"]])

# %% [markdown]
# You asked for one more model and got two: an ensemble brings the models of its steps.
#
# ## Predict
#
# Now the small change. In the config of `to_text`, `TYPE_INT32` becomes `TYPE_INT64`, and the running server is told to
# load `to_text` again.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "Which model can no longer be asked?",
    [
        "to_ids: its ids have the wrong type now",
        "to_text: its config no longer fits its code",
        "round_trip: its steps no longer fit together",
        "none: Triton goes on with what it has loaded",
    ],
)
guess

# %% [markdown]
# ## Broken on purpose
#
# Load balancers and Kubernetes' probes ask over HTTP, for the server or for a model. Triton answers 200 for yes and 400
# for no.


# %%
def health(server, model):
    """What a load balancer would learn: 200 is yes, 400 is no."""
    paths = ("/v2/health/live", "/v2/health/ready", f"/v2/models/{model}/ready")
    return {path: server.http.get(path).status_code for path in paths}


def last_error(server):
    """What the last line of Triton's log that begins with E says."""
    errors = [line for line in server.log_tail(100).splitlines() if line[:1] == "E"]
    said = errors[-1].partition("] ")[2].partition("\\n")[0].strip('"')
    return said.replace(f"{folder.name}/", "")


# %%
config = repo / "to_text" / "config.pbtxt"
intact = config.read_text()
config.write_text(intact.replace("TYPE_INT32", "TYPE_INT64"))
print("to_text:", load(hand_made, "to_text"))
states = pd.DataFrame(hand_made.models())
display(charts.table(states))
print("log:", last_error(hand_made), "\n")
print(health(hand_made, "round_trip"))
[gone] = states.loc[states["state"] != "READY", "name"]
said = hand_made.http.post(f"/v2/models/{gone}/generate", json={"text_input": "Hi!"})
print("a client gets:", said.status_code, said.text)
print(guess.score(gone))
config.write_text(intact)
print("\nrepaired:", load(hand_made, "to_text"), health(hand_made, "round_trip"))
hand_made.stop()

# %% [markdown]
# The load was answered with success, the model that was changed is READY, and clients are told that the model they call
# is *unknown*. `to_text` is fine by itself, so Triton loads it; then it checks the ensembles above it, and unloads the one
# whose steps no longer fit. Only the log says why, in a line that begins with `E`. And the server **says that it is
# ready**.
#
# What does it say after a restart? By default Triton does not start if a model cannot be loaded;
# `--exit-on-error=false` lets it serve the others. `--strict-readiness` says what *ready* then means. Try it with two
# faults: the one above, and a model whose code cannot be imported.


# %%
def restarted(*options):
    """What a load balancer learns from a server that starts on these files."""
    given = [f"--model-repository={repo}", "--disable-auto-complete-config", *options]
    try:
        with Server(repo, arguments=given) as server:
            return health(server, "round_trip")
    except CourseError as error:
        return str(error).splitlines()[-1]


# %%
changed = {
    "the steps do not fit": (config, "INT32", "INT64"),
    "a model cannot start": (repo / "to_text/1/model.py", "numpy", "nunpy"),
}
rows = []
for fault, (file, old, new) in changed.items():
    intact = file.read_text()
    file.write_text(intact.replace(old, new))
    print(f"{fault}, no option: {restarted()}")
    for strict in ("true", "false"):
        options = "--exit-on-error=false", f"--strict-readiness={strict}"
        rows.append({"fault": fault, "strict": strict, **restarted(*options)})
    file.write_text(intact)
charts.table(pd.DataFrame(rows))

# %% [markdown]
# With strict readiness, the default, *ready* is 400 while a model loads or has failed. An ensemble that does not fit
# never begins to load, and a model that was unloaded does not count ([issue
# 7588](https://github.com/triton-inference-server/server/issues/7588), open since 2024). Without it, *ready* says no more
# than *live*. So let a probe ask for **the model that clients call**: only the last column is right in every row.
#
# ## The language model
#
# The pipeline of four has the shape of yours. TensorRT-LLM shipped it as [templates](glossary.md#Template), configs with
# `${variables}`; `repository.assemble` fills them. `Server` starts `tritonserver` as you did, and waits until every model
# is READY. What must a client send? The ensemble's config says which inputs are `optional`.

# %% tags=["nbval-ignore-output"]
engine_dir = engine.cached(fetch())
log_path = Path(folder.name) / "iterations.jsonl"
llm = repository.assemble(
    Path(folder.name) / "llm", engine_dir, iteration_log_path=log_path
)
server = Server(llm).start()
client = Client(server.grpc_url)
question = "Name the capital of France."
answer = client.ask(question, max_tokens=16)
print(answer.text)

# %%
ensemble = repository.read_config(llm / "ensemble" / "config.pbtxt")
# your line: the names of the inputs that a client must send
required = [one.name for one in ensemble.input if not one.optional]

# %%
print(f"{len(ensemble.input)} inputs; {len(required)} are required:", *required)
flows = pd.DataFrame(repository.ensemble_edges(llm))
optional = flows["optional"].sum()
print(f"{len(flows)} tensors may flow, {optional} of them only if somebody sends them.")
always = flows.loc[~flows["optional"], ["source", "target", "tensor", "data_type"]]
charts.table(always.set_axis(["from", "to", "shared name", "type"], axis=1))

# %% [markdown]
# These maps are all there is to an ensemble, so you can run one yourself, with a dictionary of the tensors by their shared
# names. What does a step take?


# %%
def takes(step, known):
    """The inputs of a step's model, each with the shared name of what it gets."""
    # your line: of step.input_map, own name → shared name, what is in `known`
    return {own: shared for own, shared in step.input_map.items() if shared in known}


# %%
tensors = {
    "text_input": np.array([[question.encode()]], object),
    "max_tokens": np.array([[16]], np.int32),
}
for step in ensemble.ensemble_scheduling.step:
    inputs = {own: tensors[shared] for own, shared in takes(step, tensors).items()}
    print(f"{step.model_name} gets", *sorted(inputs))
    outputs = ask(server, step.model_name, **inputs)
    named = step.output_map
    tensors |= {named[own]: array for own, array in outputs.items() if own in named}
by_hand = tensors["text_output"].item().decode()
print("the same text as from Triton's ensemble:", by_hand == answer.text)

# %% [markdown]
# Triton's scheduler adds two things: a step starts as soon as its inputs are there, and the tensors stay in the server.
# What maps cannot say is "if" or "again". For that a Python model calls other models: in Triton's words, [business
# logic scripting](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/python_backend/README.html#business-logic-scripting)
# (BLS).
#
# ## The same engine as one model
#
# TensorRT-LLM's repository of today, `llmapi`, has one model that takes text. Here it is, with your engine in it:

# %%
today = repository.assemble(Path(folder.name) / "today", engine_dir, contract="llmapi")
files = [path for path in sorted(today.rglob("*")) if path.is_file()]
print(*(path.relative_to(today) for path in files), sep="\n")
body = {"text_input": "The capital of France is", "sampling_param_max_tokens": 8}
with progress.wait("A second server starts"), Server(today) as other:
    for without in (False, True):
        body["sampling_param_exclude_input_from_output"] = without
        path = "/v2/models/tensorrt_llm/generate"
        said = other.http.post(path, json=body, timeout=60).json()["text_output"]
        print(f"without the prompt: {without!s:5} {said!r}")

# %% [markdown]
# The answer **begins with the prompt** unless the request excludes it: the model did not generate those five words. It
# continues the text instead of replying to it, because no chat template is applied: that is the client's work here. The
# settings have moved from `parameters` to `model.yaml`, and there are no maps left to get wrong.
#
# ## The first request
#
# Triton calls a model READY before it has computed anything, and the first user waits for whatever it prepares on first
# use. `model_warmup` in a config is a request that Triton sends to the model itself, before it says READY. Its tensors
# are zeros, random, or files in the model's folder `warmup`. This one has 16 tokens of prompt and asks for 16 more.

# %%
config = llm / "tensorrt_llm" / "config.pbtxt"
(config.parent / "warmup").mkdir()
(config.parent / "warmup" / "16").write_bytes(np.int32(16).tobytes())
number = 'value { data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "16" }'
warm_up = f"""
model_warmup {{
  name: "a short prompt"
  batch_size: 1
  inputs {{
    key: "input_ids" value {{ data_type: TYPE_INT32 dims: [ 16 ] zero_data: true }}
  }}
  inputs {{ key: "input_lengths" {number} }}
  inputs {{ key: "request_output_len" {number} }}
}}"""
configs = {"cold": config.read_text(), "warmed up": config.read_text() + warm_up}

# %% tags=["nbval-ignore-output"]
rows = []
for number in progress.over(range(5), "Round"):
    for name, text in configs.items():
        config.write_text(text)
        before = len(log_path.read_text().splitlines())
        load(server, "tensorrt_llm")
        alone = len(log_path.read_text().splitlines()) - before
        first, second = (client.ask(question, max_tokens=16) for _ in range(2))
        rows.append((name, alone, first.latency_s / second.latency_s))
waited = pd.DataFrame(rows, columns=["load", "iterations", "times"])
for name, rounds in waited.groupby("load"):
    low, middle, high = rounds["times"].quantile([0, 0.5, 1])
    alone = rounds["iterations"].max()
    print(f"{name}: {alone} iterations before a request; a first user waits", end=" ")
    print(f"{middle:.1f} ({low:.1f} to {high:.1f}) times as long as a second")

# %% [markdown]
# A warm-up covers what it runs: the other models of the pipeline need one of their own.
#
# ## Five faults, found at three times
#
# Each fault below is one edit. Three things can find it: a program that reads the files (`repository.problems`), Triton
# when it loads the model, and somebody who reads an answer. A client asks with the stop word `" of"` each time, so the
# right answer is "The capital of". The fourth is in `initialize`, a method that Triton calls once, before any `execute`.

# %% tags=["nbval-ignore-output"]
WHEN = {
    "files": "when its files are read, before a server starts",
    "load": "when Triton loads the model, and no earlier",
    "answer": "when somebody reads an answer: every model is READY",
}
FAULTS = (
    "A variable is not filled",
    "A name in a map has a typo",
    "The engine is in another folder",
    "The method initialize has a typo",
    "Stop words and bad words are swapped",
)
options = list(WHEN.values())
guesses = [widgets.predict(f"{fault}. When is it found?", options) for fault in FAULTS]
display(*guesses)

# %%
swap = {"STOP_WORDS_DICT": "BAD_WORDS_DICT", "BAD_WORDS_DICT": "STOP_WORDS_DICT"}
changes = (  # for each fault a file, and what stands there instead of what
    ("preprocessing/config.pbtxt", {"max_batch_size: 64": "max_batch_size: ${size}"}),
    ("ensemble/config.pbtxt", {"_TOKENS_BATCH": "_TOKEN_BATCH"}),
    ("tensorrt_llm/config.pbtxt", {engine_dir.name: "another"}),
    ("postprocessing/1/model.py", {"self.parameters[": "self.parameter["}),
    ("ensemble/config.pbtxt", swap),
)


# %%
def tried(file, change):
    """What the check, Triton and a client say after an edit, which is undone again."""
    path, model = llm / file, file.partition("/")[0]
    intact, pattern = path.read_text(), "|".join(map(re.escape, change))
    broken = re.sub(pattern, lambda found: change[found[0]], intact, count=len(change))
    path.write_text(broken)
    listed = list(map(str, repository.problems(llm)))
    loaded = load(server, model)
    logged = last_error(server) if loaded != "loaded" else ""
    reply = client.ask(question, max_tokens=16, stop_words=[" of"]).text
    path.write_text(intact)
    load(server, model)
    return *listed[:1], loaded, logged, reply


# %% tags=["nbval-ignore-output"]
right = client.ask(question, max_tokens=16, stop_words=[" of"]).text
found = []
for fault, change in zip(FAULTS, changes):
    *listed, loaded, logged, reply = tried(*change)
    print(f"{fault}\n  check: {listed[0] if listed else 'nothing'}")
    print(f"  load:  {loaded}\n  log:   {logged or 'nothing'}\n  reply: {reply!r}")
    failed = "load" if loaded != "loaded" else "answer" if reply != right else ""
    found.append("files" if listed else failed)

# %%
for fault, when, guess in zip(FAULTS, found, guesses):
    print(f"{fault}: {guess.score(WHEN[when])}")
charts.show(lesson.nets(FAULTS, found), lesson.nets_summary(FAULTS, found))

# %% tags=["remove-cell"]
assert waited.groupby("load")["iterations"].max().tolist() == [0, 16]
assert found == ["files", "files", "load", "load", "answer"]
assert right == "The capital of" and " of" not in reply
assert all(row.state == "READY" for row in server.models())
assert repository.problems(llm) == [] and by_hand == "The capital of France is Paris."

# %% [markdown]
# - **Files** show wrong syntax, names that nobody gives, types and shapes that do not fit. Triton finds these too, but
#   only at the load, and only its log says where. The check names the step that *reads* the tensor. Here the typo was in
#   the step that *writes* it, so the suggested name is the typo: look at both ends.
# - **The load** runs `initialize`, so it finds a wrong path, and a typo there. A typo in `execute` waits for the first
#   request that gets there, or for a warm-up.
# - **Only an answer** shows a swap of two tensors of one type and shape. The word at which the answer should end is now
#   one that it may not use.
#
# In the first four cases the client noticed nothing: where a load fails, Triton keeps the model that it has, and the
# fault waits for the next restart. Triton has no dry run, so start a second server on the new folder, ask it something
# whose answer you know, and only then send it the traffic.
#
# ## Elsewhere
#
# | | vLLM | TensorRT-LLM today | vLLM in Triton | here, as in TensorRT-LLM with engines |
# |---|---|---|---|---|
# | what is served | a checkpoint | a checkpoint | one model, `backend: "vllm"` | four models |
# | settings | `vllm serve` | `trtllm-serve`, or `model.yaml` in Triton | `1/model.json` | `parameters` in `config.pbtxt` |
# | requests at once | `max_num_seqs` | `max_batch_size` | `max_num_seqs` | `max_batch_size` of the engine |
# | ready? | `/health` | `/health` | `/v2/models/NAME/ready` | `/v2/models/ensemble/ready` |
# | warm-up | by itself, before it is ready | by itself, before it is ready | vLLM's own | `model_warmup` |
#
# Triton's own `max_batch_size` in `config.pbtxt` is different: the most rows, of one request or of many, in one *call* of
# a model. [The page for a
# lab GPU](../assets/lab-gpu/README.md) has NVIDIA's commands. Triton's pages: [model
# configuration](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html),
# [control
# modes](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_management.html),
# [ensembles](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ensemble_models.html).
#
# ## Recap
#
# When clients get errors, ask whether the model that they call is ready, then read the log's last line with `E`: it
# names the models and the tensor on which they disagree, and the file is one of theirs. If every model is ready, read
# an answer and trace its tensors.
#
# - Triton knows what to load from a folder for each model and the control mode; `config.pbtxt` says what flows in and out.
# - An ensemble is maps: two steps are connected when they use one name for a tensor.
# - A server that is *ready* may lack the model that its clients call.
# - Files, then load, then answer: each finds what the one before cannot.
# - READY does not mean that anything was computed, unless the config has a `model_warmup`.
#
# <details><summary>1. The ensemble has an optional input <code>temperature</code>. Which models get a tensor when a
# client does not send it?</summary>
#
# None. An optional tensor travels only if it was sent, and <code>tensorrt_llm</code> uses its default.
# </details>
#
# <details><summary>2. A model was edited and could not be loaded again. Clients are still served. Is all well?</summary>
#
# No. The server goes on with what it had loaded, and the file on disk is broken. The next restart fails, or lacks the
# model.
# </details>
#
# <details><summary>3. A new version of a model goes into the folder <code>2</code>, and is bad. How do you get back, if
# nothing says which versions to serve?</summary>
#
# Triton then serves the highest number. Remove the folder <code>2</code> and load the model again: a rollback.
# </details>
#
# Now the [lab]({lab}): you put a model of your own into the pipeline. Or go on with {next}.
