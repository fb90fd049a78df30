# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **write** a model repository from blank files, and start a server on it;
# - **trace** every tensor through an ensemble;
# - **find** what keeps a repository from being served, and say what can find it before a restart does.
#
# **What you will use elsewhere:** every model in Triton, whatever it is for, has such a folder, such a config and such a
# readiness. That a misspelt name, a wrong path and a crossed wire are found at three different times (when the files are
# read, when they are loaded, when somebody reads an answer) is true of any deployment.
#
# You need a little Python, and the engine of lesson 01; it is built here if it is not there yet.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A colleague hands you a folder with four files called `config.pbtxt`. It was served until this morning; now clients get
# errors, and the demo is in ten minutes. Which file do you open, and what do you ask the server?

# %%
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import tritonclient.grpc as triton
from google.protobuf import text_format
from IPython.display import Markdown, display
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight import CourseError, engine
from inflight.checkpoint import fetch
from inflight.lessons import repository as lesson
from inflight.notebook import charts, session, widgets
from inflight.triton import Client, Server, repository

folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
session.others()

# %% [markdown]
# ## Predict
#
# In the next sections you build three models. `to_ids` turns a text into 32-bit numbers. `to_text` turns such numbers
# back into the text. `round_trip` has no code: it sends a text through `to_ids`, then `to_text`.
#
# When all three work, you change one word in the config of `to_text`, so that it asks for 64-bit numbers. Then you tell
# the running server to load `to_text` again.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "Which model can no longer be asked?",
    ["to_ids", "to_text", "round_trip", "none: the text comes back as before"],
)
guess

# %% [markdown]
# ## A model by hand
#
# A [model repository](glossary.md#Model-repository) is a folder with one folder for each model. In a model's
# folder, `config.pbtxt` says what flows in and out and what runs it. The folder `1` holds version 1 of the model itself.

# %%
repo = Path(folder.name) / "by_hand"
for model in ("to_ids", "to_text", "round_trip"):
    (repo / model / "1").mkdir(parents=True)

# %% [markdown]
# The first model turns a text into numbers, as a tokenizer does. To keep it short, the numbers are the text's bytes.
# Triton calls `execute` with a list of requests and expects a list of responses, one for each request.

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
# That is the whole config. The [backend](glossary.md#Backend) `python` is the library that runs `model.py`. `dims`
# is the shape of one request's [tensor](glossary.md#Tensor): one text in, any number of ids out (`-1`). With
# `max_batch_size` at 1 or more, Triton puts a batch dimension in front of every shape: the text arrives as `[1, 1]`, and the
# ids leave as `[1, n]`.
#
# ## What Triton loads, and when it is ready
#
# | `--model-control-mode` | loads at the start | afterwards |
# |---|---|---|
# | `none`, the default | every model in the folder | nothing more |
# | `poll` | every model in the folder | whatever changes in the folder |
# | `explicit` | what `--load-model` names | what a client tells it to |
#
# If a model cannot be loaded at the start, Triton ends, unless `--exit-on-error=false` lets it go on with the others.
# Triton's documentation advises against `poll` in production: it may read a file that is half copied.

# %% tags=["nbval-ignore-output"]
hand_made = lesson.tritonserver(
    [
        f"--model-repository={repo}",
        "--model-control-mode=explicit",
        "--load-model=to_ids",
        "--disable-auto-complete-config",  # use the files as they are: fill in nothing
    ]
)

# %% [markdown]
# The course's `tritonserver` starts the program of that name and prints the whole command: your four arguments, and those
# it adds. Those that matter: free ports on this machine only, and a **key**, so that only you can tell this server to load
# models.
#
# Is the server alive? Is it ready? Is this model ready? Load balancers and Kubernetes' probes ask that over HTTP, and get
# 200 for yes and 400 for no.


# %%
def health(server, model):
    """What a load balancer would learn: 200 is yes, 400 is no."""
    paths = ("/v2/health/live", "/v2/health/ready", f"/v2/models/{model}/ready")
    return {path: server.http.get(path).status_code for path in paths}


print(health(hand_made, "to_ids"))


# %%
def ask(server, model, **tensors):
    """Send arrays to a model's inputs, by name; return its outputs, by name."""
    inputs = []
    for name, array in tensors.items():
        tensor = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    with triton.InferenceServerClient(server.grpc_url) as connection:
        result = connection.infer(model, inputs, headers=server.headers)
    names = [output.name for output in result.get_response().outputs]
    return {name: result.as_numpy(name) for name in names}


print(ask(hand_made, "to_ids", TEXT=np.array([[b"Hi!"]], object)))

# %% [markdown]
# NVIDIA's own client gets the three bytes of the text, as numbers. All that it needs are the tensors' names, types
# and shapes.
#
# ## A second model, and an ensemble
#
# `to_text` goes the other way. The ids arrive as an array of shape `[1, n]`. Triton wants an array of shape `[1, 1]` with
# the dtype `object`, in which the one text is a `bytes` object.

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
# The third model is an [ensemble](glossary.md#Ensemble). It has no code, and its folder `1` stays empty: Triton
# itself passes the tensors from step to step. In each map the **key** is the model's own name for a tensor, and the
# **value** is the name that the ensemble's steps share. Two steps are connected when they use the same value. A value that
# is also an input or output of the ensemble connects the step with the client.

# %%
# %%writefile {repo}/round_trip/config.pbtxt
# name: "round_trip"
# platform: "ensemble"
# max_batch_size: 1
# input [ { name: "text_input"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# output [ { name: "text_output"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# ensemble_scheduling {
#   step [
#     {
#       model_name: "to_ids"
#       model_version: -1  # the newest
#       input_map { key: "TEXT"  value: "text_input" }
#       output_map { key: "IDS"  value: "ids" }
#     },
#     {
#       model_name: "to_text"
#       model_version: -1
#       # your line: connect the input of to_text with the output of to_ids
#       input_map { key: "IDS"  value: "ids" }
#       output_map { key: "TEXT"  value: "text_output" }
#     }
#   ]
# }

# %% [markdown]
# A request to load a model carries the key, in `headers`.


# %%
def load(server, model):
    """Tell Triton to load a model from its files; return what it answers."""
    with triton.InferenceServerClient(server.grpc_url) as connection:
        try:
            connection.load_model(model, headers=server.headers)
        except InferenceServerException as error:
            return error.message().partition("\n")[0].replace(f"{folder.name}/", "")
    return "loaded"


print("round_trip:", load(hand_made, "round_trip"))
text = np.array([["Hi!"]], object)
print(ask(hand_made, "round_trip", text_input=text)["text_output"].item())
charts.table(pd.DataFrame(hand_made.models()))

# %% [markdown]
# You asked for one more model and got two: loading an ensemble also loads its steps' models.
#
# ## Broken on purpose
#
# Now the change of your prediction: `to_text` asks for 64-bit numbers.


# %%
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
display(states)
print("log:", last_error(hand_made))
[gone] = states.loc[states["state"] != "READY", "name"]
print(guess.score(gone))

# %% [markdown]
# Triton loads `to_text`, because that model is fine by itself. Then it checks the ensembles that use it. The steps of
# `round_trip` no longer fit together, so Triton unloads `round_trip`. The request to load was answered with success, the
# model that was changed is READY, and the one that clients call is gone. Only the log says why, in a line that
# begins with `E`.
#
# At the next restart the same files are read by a server that has nothing loaded yet. First ask
# `repository.problems`, which only reads the files, then try both ways to start:

# %%
[problem] = repository.problems(repo)
print("problem:", str(problem).replace(f"{repo}/", ""))
for extra in ((), ("--exit-on-error=false",)):
    given = [f"--model-repository={repo}", "--disable-auto-complete-config", *extra]
    print("control mode none", *extra)
    try:
        with Server(repo, arguments=given) as restarted:
            print("   ", health(restarted, "round_trip"))
    except CourseError as error:
        print("   ", str(error).splitlines()[-1])
config.write_text(intact)
print("repaired:", load(hand_made, "to_text"))
print("   ", health(hand_made, "round_trip"))

# %% [markdown]
# The first server ends. The second one serves what it could load, and **says that it is ready**: Triton 2.51, which runs
# here, does not count an ensemble that does not fit. So let a probe ask for the model that clients call, not only for the
# server.
#
# ## From templates
#
# An LLM's repository looks like yours, with three models in the place of two. TensorRT-LLM ships it as
# [templates](glossary.md#Template): most of a template is fixed; what depends on your machine or your service is a
# `${variable}`. `parameters` are values for `model.py`, which Triton passes on without a look. The one below is the course's
# form: `PRECEDING_IDS`, `IS_FINAL` and `STOP_ID` are added, so that pieces of a stream make whole characters.
# TensorRT-LLM's has the first two inputs only, and `dynamic_batching { }`.

# %%
template = (repository.TEMPLATES / "postprocessing" / "config.pbtxt").read_text()
print(template)

# %% [markdown]
# Three ways to set `tokenizer_dir`: as text with `sed`; as a protobuf message, which a config is the text form of; with a
# program that knows the models, such as the course's `assemble`. What does each do with a typo?

# %%
path = "/engines/model"
for name in ("tokenizer_dir", "tokeniser_dir"):
    command = ["sed", f"s|${{{name}}}|{path}|"]
    out = subprocess.run(command, input=template, capture_output=True, text=True).stdout
    print(name, "by sed:     ", "filled" if path in out else "no change, no error")
    message = ModelConfig()
    for key, value in (("tokenizer_dir", "${tokenizer_dir}"), (name, path)):
        message.parameters[key].string_value = value
    print(name, "by protobuf: the keys are", *sorted(message.parameters))
    try:
        repository.assemble(Path(folder.name) / "filled", path, **{name: path})
        print(name, "by assemble: filled")
    except CourseError as error:
        print(name, "by assemble:", error)

# %% [markdown]
# `sed` reports nothing. Nor does protobuf, since any key is allowed in `parameters`: the typo is now a second key, which
# nobody reads.
# But it knows the *fields* of a config, and their types:

# %%
for wrong in ("max_batchsize: 8", "max_batch_size: ${triton_max_batch_size}"):
    try:
        text_format.Parse(wrong, ModelConfig())
    except text_format.ParseError as error:
        print(error)

# %% [markdown]
# Only a program that knows the model knows its keys. TensorRT-LLM's `fill_template.py` was like `sed` up to release
# 0.18; since 0.19 it refuses a name that the file does not have.
#
# `assemble` makes all four models in one call. `problems` reads the files, before anything starts. `Server`
# asks it too, starts `tritonserver` as you did, and waits until every model is READY.

# %% tags=["nbval-ignore-output"]
engine_dir = engine.cached(fetch())
llm = repository.assemble(Path(folder.name) / "llm", engine_dir)
print("problems in its files:", len(repository.problems(llm)))
server = Server(llm).start()
client = Client(server.grpc_url)
question = "Name the capital of France."
answer = client.ask(question, max_tokens=16)
print(f"{answer.text!r} after {answer.latency_s * 1000:.0f} ms, the first request")

# %% [markdown]
# What must a client send? The ensemble's config says so: an input's `optional` is True or False.

# %%
config_text = (llm / "ensemble" / "config.pbtxt").read_text()
ensemble = text_format.Parse(config_text, ModelConfig())
# your line: the names of the inputs that a client must send
required = [one.name for one in ensemble.input if not one.optional]

# %%
print(
    f"{len(ensemble.input)} inputs, of which {len(required)} are required:", *required
)
edges = pd.DataFrame(repository.ensemble_edges(llm))
drawn = edges.loc[edges["source"] == "client", "tensor"].nunique()
print(f"{drawn} are drawn below, {len(ensemble.input) - drawn} are not.")

# %% [markdown]
# Those that are not drawn belong to features that this engine does not have, such as LoRA. They are declared all the same,
# because Triton refuses a request with an input that the config does not name, and TensorRT-LLM's clients may send them.
#
# ## See
#
# The repository as a tree, with each model's files beside it, and the ensemble's maps as arrows. Each arrow carries, **in
# bold**, the name that the steps share, the type, and the shape without the batch; below it the sender's own name → the
# receiver's. The dashed line, and the entries with ╌, are tensors that go past a model.

# %%
paths = [path for path in sorted(llm.rglob("*")) if path.suffix in (".pbtxt", ".py")]
files = [str(path.relative_to(llm)) for path in paths]
counts = edges.groupby("target", sort=False).size()
summary = (
    f"{len(files)} files of four models. Tensors go from model to model: "
    + ", ".join(f"{count} may arrive at {model}" for model, count in counts.items())
    + f". {edges['optional'].sum()} of them are optional: they travel if they are sent."
)
charts.show(lesson.repository_map(files, edges), summary)
print(summary)

# %% [markdown]
# ## Explain
#
# The maps are all there is. So an ensemble can be run in ten lines, with a dictionary of the tensors by their shared names.
# The core is yours: what does a step take?


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
    for own, shared in step.output_map.items():
        if own in outputs:
            tensors[shared] = outputs[own]
text = tensors["text_output"].item().decode()
print("\nby hand:", repr(text))
print("the same as from Triton's ensemble:", text == answer.text)

# %%
shown = (
    "text_input",
    "_INPUT_ID",
    "_REQUEST_INPUT_LEN",
    "_TOKENS_BATCH",
    "text_output",
)
rows = [(name, tensors[name].dtype, tensors[name].shape) for name in shown]
charts.table(pd.DataFrame(rows, columns=["shared name", "dtype", "shape"]))

# %% [markdown]
# The question becomes more ids than it has words, because the chat template adds its own around it. `_TOKENS_BATCH` has the
# shape `[1, beams, tokens]`. `text_output` has one dimension where the config promises two: TensorRT-LLM's postprocessing
# returns it so, and Triton lets it pass.
#
# Two things differ when Triton runs the ensemble: a step starts as soon as its inputs are there, so steps that do not need
# each other run at the same time; and the tensors stay in the server, while ours went to the client and back.
#
# What maps cannot say is "if" or "again". For that, a Python model calls other models from its own code, which Triton
# calls [business logic
# scripting](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/python_backend/README.html#business-logic-scripting)
# (BLS). TensorRT-LLM's fifth model, `tensorrt_llm_bls`, does the ensemble's work in that way.
#
# ## Turn the knob
#
# A config can be changed while the server runs. **Apply** writes the file and tells Triton to load the model again. Try:
#
# - `exclude_input_in_output` at `false`. What does `client.ask(question).text` return now, in a cell of your own? Set it
#   back to `true` before you go on.
# - `max_tokens_in_paged_kv_cache` at `many`, then at `64`, as the cell does too. What refuses each of them?

# %% tags=["nbval-ignore-output"]
names = ["exclude_input_in_output", "max_tokens_in_paged_kv_cache"]
editor = widgets.ConfigEditor(server, "tensorrt_llm", names)
display(editor)
for value in ("many", "64"):
    said = editor.apply(max_tokens_in_paged_kv_cache=value)
    display(Markdown(f"`{value}`: {said}"))

# %% [markdown]
# `many` is not a number, so the editor did not touch the file. 64 is a number; that it is too small for one request,
# only the engine knows. It refused to load, and the editor put the old file back. (vLLM refuses as well. TensorRT-LLM
# lowers its longest sequence to what fits, and says so only in a warning: look for `maxSequenceLen is reduced` in its
# log.)
#
# ## What breaks
#
# Five faults, one after the other. Each time a client asks with the stop word `" of"`, so the right answer is "The capital
# of". Who finds each fault?

# %% tags=["nbval-ignore-output"]
WHO = [
    "problems(), before a server starts",
    "only Triton, when it loads the model",
    "neither: every model is READY",
]
FAULTS = (
    "A variable is not filled",
    "A name in a map has a typo",
    "The engine is in another folder",
    "The code in model.py has a typo",
    "Stop words and bad words are swapped",
)
guesses = {fault: widgets.predict(f"{fault}. Who finds it?", WHO) for fault in FAULTS}
display(*guesses.values())

# %%
swap = {"STOP_WORDS_DICT": "BAD_WORDS_DICT", "BAD_WORDS_DICT": "STOP_WORDS_DICT"}
changes = (  # for each fault a file, and what stands there instead of what
    ("preprocessing/config.pbtxt", {"max_batch_size: 64": "max_batch_size: ${size}"}),
    ("ensemble/config.pbtxt", {"_TOKENS_BATCH": "_TOKEN_BATCH"}),
    ("tensorrt_llm/config.pbtxt", {str(engine_dir): "/engines/model"}),
    ("postprocessing/1/model.py", {"self.parameters[": "self.parameter["}),
    ("ensemble/config.pbtxt", swap),
)


# %%
def tried(file, change):
    """What `problems`, Triton, its log and a client say after a change, then undone."""
    path = llm / file
    intact, pattern = path.read_text(), "|".join(map(re.escape, change))
    broken = re.sub(pattern, lambda found: change[found[0]], intact, count=len(change))
    path.write_text(broken)
    model = path.relative_to(llm).parts[0]
    problems, said = repository.problems(llm), load(server, model)
    listed = str(problems[0]).replace(f"{llm}/", "") if problems else "nothing"
    logged = "nothing" if said == "loaded" else last_error(server)
    reply = client.ask(question, max_tokens=16, stop_words=[" of"]).text
    path.write_text(intact)
    load(server, model)
    return listed, said, logged, reply


# %% tags=["nbval-ignore-output"]
found = [tried(*change) for change in changes]
for fault, (listed, said, logged, reply) in zip(FAULTS, found):
    print(f"{fault}\n  problems: {listed}\n  Triton: {said}\n  its log: {logged}")
    print(f"  client: {reply!r}")

# %%
right = client.ask(question, max_tokens=16, stop_words=[" of"]).text
for fault, (listed, said, _, reply) in zip(FAULTS, found):
    who = "problems()" if listed != "nothing" else "only Triton"
    if listed == "nothing" and said == "loaded":
        who = "neither"
    print(f"{fault}: {who}; the client's answer is as before: {reply == right}")
    print("   ", guesses[fault].score(who))

# %% tags=["remove-cell"]
assert right.endswith(" of") and " of" not in found[4][3]
assert all(row.state == "READY" for row in server.models())
assert (
    repository.problems(llm) == []
    and text == answer.text == "The capital of France is Paris."
)

# %% [markdown]
# - `problems` finds wrong syntax, unconnected names, and types or shapes that do not fit. Triton's answer does not say
#   where; its log does, once it has been asked to load. `problems` says so before, and suggests a name. Look at both
#   ends: the check names the step that *reads* the tensor, the log the tensor as that step spells it. Both are right;
#   the name suggested may be the typo, in the step that writes it.
# - `problems` looks at neither paths nor code. What `initialize` does (Triton calls it once for each instance) is tried
#   by the load: the engine's path, and this typo, which stood there. The same typo in `execute` loads, every model is
#   READY, and the first request that gets there finds it.
# - Triton refused the unfilled variable because a number belongs there. In a `string_value`, where most of
#   TensorRT-LLM's stand, `${…}` is a valid text: Triton loads it. So search the filled files for `${` before you start.
# - Both word lists have the same type and shape, so swapped ones load. The word at which the answer should stop is now one
#   that it may not use. Only a request whose answer you know finds this.
#
# Where a load *fails*, Triton keeps the model that it has, and the client notices nothing; the fault waits for the next
# restart. (It can keep it because the old one goes only when the new one is there: for a while both are in memory. On a
# GPU that one engine fills, reloading it fails.) Where a load *succeeds*, an ensemble above it may be gone, as in
# *Broken on purpose*. So deploy by starting a second server on the new folder: Triton has no dry run. Ask it something,
# and only then send it the traffic.
#
# ## Elsewhere
#
# TensorRT-LLM removed its engines from its main branch in July 2026. Since then its repository has one model, which
# takes text and does the work of all of them; NVIDIA calls it `llmapi`. `assemble` makes that one too, for the same
# engine:

# %% tags=["nbval-ignore-output"]
today = repository.assemble(Path(folder.name) / "today", engine_dir, contract="llmapi")
paths = [path for path in sorted(today.rglob("*")) if path.is_file()]
print(*(path.relative_to(today) for path in paths), sep="\n")
with Server(today) as other:
    body = {"text_input": "The capital of France is", "sampling_param_max_tokens": 8}
    path = "/v2/models/tensorrt_llm/generate"
    print(other.http.post(path, json=body, timeout=60).json())

# %% [markdown]
# The model goes on with the text instead of replying to it: no chat template is applied. The course's `preprocessing`
# applies one; TensorRT-LLM's own does not, so with either of NVIDIA's repositories the client sends the text with the
# template already in it. The settings moved to `model.yaml`:

# %%
settings = (today / "tensorrt_llm" / "1" / "model.yaml").read_text()
print(settings.replace(str(engine_dir), "/engines/model"))

# %% [markdown]
# | | TensorRT-LLM with engines, as here | TensorRT-LLM today | vLLM in Triton |
# |---|---|---|---|
# | models | four, and `tensorrt_llm_bls` | `tensorrt_llm` | one, `backend: "vllm"` |
# | makes tokens of text | `preprocessing` | TensorRT-LLM | vLLM |
# | settings | `parameters` in `config.pbtxt` | `1/model.yaml` | `1/model.json` |
# | requests at once | `max_batch_size` of the engine | `max_batch_size`, at the top of `model.yaml` | `max_num_seqs` |
# | memory for the KV cache | <code>kv_cache_free_<wbr>gpu_mem_<wbr>fraction</code> | `kv_cache_config`: <code>free_gpu_<wbr>memory_<wbr>fraction</code> | <code>gpu_memory_<wbr>utilization</code> |
# | ready? | <code>/v2/models/<wbr>ensemble/ready</code> | <code>/v2/models/<wbr>tensorrt_llm/<wbr>ready</code> | <code>/v2/models/<wbr>NAME/ready</code> |
#
# Triton's own `max_batch_size`, in `config.pbtxt` or `triton_config`, is another: the most requests in one call of a
# model; at 0, as printed above, each has a call of its own, and the engine still batches. The fractions differ in
# detail: TensorRT-LLM's is of the memory that is free once the weights are loaded, vLLM's of all the GPU's memory,
# weights included. `vllm serve`, without Triton, answers `/health` with 200. With engines, take the templates from the
# release that you serve: [the tensors' names and shapes](../assets/contracts/history.csv) changed again and again. [The
# page for a lab GPU](../assets/lab-gpu/README.md) has the commands. Triton's own pages: [model
# repository](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_repository.html),
# [control
# modes](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_management.html),
# [ensembles](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ensemble_models.html).

# %% [markdown]
# ## Recap
#
# - When clients get errors, ask for the readiness of the model that they call, then for the list of models, then for
#   the log's last line with `E`: it names the model or the file to open.
# - A model repository has one folder for each model; `config.pbtxt` names what flows in and out, `1/` holds the model.
# - An ensemble is maps, not code: two steps are connected when they use the same name for a tensor.
# - The control mode says what is loaded and when. A running server keeps what it has; a restart reads everything anew.
# - Files, then loading, then answers: `problems`, a start and a request with a known answer each find what the others
#   cannot.
#
# Three questions, without running anything:
#
# <details><summary>1. The ensemble has an optional input <code>temperature</code>. Which models get a tensor when a
# client does not send it?</summary>
#
# None. Triton passes on an optional tensor only if it was sent, and <code>tensorrt_llm</code> uses its default.
#
# </details>
# <details><summary>2. A load balancer asks <code>/v2/health/ready</code>. What may its clients meet all the
# same?</summary>
#
# An error for each request: the ensemble may not be loaded, as after the restart above. It should ask
# <code>/v2/models/ensemble/ready</code>. They may also meet wrong answers: no probe finds a swapped map, only a request with a known
# answer does.
#
# </details>
# <details><summary>3. A model was edited and could not be loaded again. Clients are still served. Is all
# well?</summary>
#
# No. The server goes on with the version it had loaded, and the file on disk is broken. At the next restart the server
# ends, or the model is missing.
#
# </details>
#
# Now the [lab]({lab}), then the next lesson: {next}.
