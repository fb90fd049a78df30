# %% [markdown]
# # {heading}
#
# About {minutes} minutes (an estimate). Afterwards you will be able to
#
# - **write** a model repository from blank files, and start a server on it;
# - **trace** every tensor through an ensemble;
# - **repair** a repository that does not load.
#
# You need a little Python, and the engine of lesson 01; it is built here if it is not there yet. The
# [glossary](00_start_here.ipynb#Glossary) explains terms that are new to you. Lines under `# your line:` are for you:
# delete the line, write it yourself, and compare it with the one folded below.
#
# {navigation}

# %% [markdown]
# ## The question
#
# A colleague hands you a folder with four files called `config.pbtxt`. The server starts, one model is UNAVAILABLE, and
# the demo is in ten minutes. Which file do you open?
#
# **{question}**

# %%
import subprocess
import tempfile
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd
import tritonclient.grpc as triton
import yaml
from google.protobuf import text_format
from IPython.display import Markdown, display
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight import engine
from inflight.checkpoint import fetch
from inflight.lessons import repository as lesson
from inflight.notebook import charts, session, widgets
from inflight.triton import Client, Server, repository, tritonserver

folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends

# %% [markdown]
# ## Predict
#
# In the next sections you build three models. `to_ids` turns a text into 32-bit numbers. `to_text` turns such numbers
# back into the text. `round_trip` has no code: it sends a text through `to_ids`, then `to_text`.
#
# When all three work, you change one word in the config of `to_text`, so that it asks for 64-bit numbers. Then you tell
# Triton to load `to_text` again.

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %%
guess = widgets.predict(
    "Which model becomes UNAVAILABLE?",
    ["to_ids", "to_text", "round_trip", "none: the text comes back as before"],
    given=prediction,
)
guess

# %% [markdown]
# ## A model by hand
#
# A **model repository** is a folder with one folder for each model. In a model's folder, `config.pbtxt` says what flows
# in and out and what runs it. The folder `1` holds version 1 of the model itself.

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
# That is the whole config. The **backend** `python` is the program that runs `model.py`. `dims` is the shape of one
# request's tensor: one text in, any number of ids out (`-1`). With `max_batch_size` at 1 or more, Triton puts a batch
# dimension in front of every shape: the text arrives as `[1, 1]`, and the ids leave as `[1, n]`.
#
# Now start the server. You decide four arguments:

# %% tags=["nbval-ignore-output"]
hand_made = tritonserver(
    [
        f"--model-repository={repo}",
        "--model-control-mode=explicit",  # load a model only when told to
        "--load-model=to_ids",  # and this one at the start
        "--disable-auto-complete-config",  # use the files as they are: fill in nothing
    ]
)

# %% [markdown]
# The course's `tritonserver` starts the program of that name and prints the whole command: your arguments, and those it
# adds. It adds free ports on this machine only, and a **key**, so that only you can tell this server to load models.
# The server ends when this notebook's kernel does.
#
# Triton writes a log, and in the log a table of its models. When something is wrong, read this table first:

# %%
log = hand_made.log_tail(100)
table = log[log.index("| Model") :]
print(table.partition("\nI")[0])

# %% [markdown]
# `to_ids` is READY. Ask it with NVIDIA's own client. All a client needs are the tensors' names, types and shapes.


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


ids = ask(hand_made, "to_ids", TEXT=np.array([[b"Hi!"]], object))["IDS"]
print(ids.shape, ids)
assert ids.tolist() == [[72, 105, 33]]

# %% [markdown]
# ## A second model, and an ensemble
#
# `to_text` goes the other way. One line is yours: the ids arrive as an array of shape `[1, n]`. Make from them an array
# of shape `[1, 1]` that holds one `bytes` object, with the dtype `object`.

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
#         # your line:
#         text = np.array([[bytes(ids[0].tolist())]], object)
#         return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])

# %% [markdown]
# <details><summary>The line</summary><code>text = np.array([[bytes(ids[0].tolist())]], object)</code>: the outer two
# brackets are the batch and the one text in it.</details>

# %%
# %%writefile {repo}/to_text/config.pbtxt
# name: "to_text"
# backend: "python"
# max_batch_size: 1
# input [ { name: "IDS"  data_type: TYPE_INT32  dims: [ -1 ] } ]
# output [ { name: "TEXT"  data_type: TYPE_STRING  dims: [ 1 ] } ]

# %% [markdown]
# The third model is an **ensemble**. It has no code, and its folder `1` stays empty: Triton itself passes the tensors
# from step to step, as `ensemble_scheduling` says. In each map the **key** is the model's own name for a tensor, and the
# **value** is the ensemble's name for it. Two steps are connected when they use the same value. A value that is also the
# name of an input or output of the ensemble connects the step with the client.
#
# One line is yours again: connect the input of `to_text` with the output of `to_ids`.

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
#       # your line:
#       input_map { key: "IDS"  value: "ids" }
#       output_map { key: "TEXT"  value: "text_output" }
#     }
#   ]
# }

# %% [markdown]
# <details><summary>The line</summary><code>input_map { key: "IDS"  value: "ids" }</code>: the model calls its input
# <code>IDS</code>; the ensemble calls the tensor <code>ids</code>, as in the step before.</details>
#
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
pd.DataFrame(hand_made.models())

# %% [markdown]
# You asked for one more model and got two: loading an ensemble also loads its steps' models.
#
# ## Broken on purpose
#
# Now the change of your prediction: `to_text` asks for 64-bit numbers. Then the file is put back.


# %%
def last_error(server):
    """The last error in Triton's log."""
    lines = server.log_tail(100).splitlines()
    return [line for line in lines if line.startswith("E")][-1].partition("] ")[2]


config = repo / "to_text" / "config.pbtxt"
intact = config.read_text()
config.write_text(intact.replace("TYPE_INT32", "TYPE_INT64"))
print("to_text:", load(hand_made, "to_text"))
states = pd.DataFrame(hand_made.models())
display(states)
print("log:", last_error(hand_made))
config.write_text(intact)
print("repaired:", load(hand_made, "to_text"))
[gone] = states.loc[states["state"] == "UNAVAILABLE", "name"]
print(guess.score(gone))

# %% [markdown]
# Triton loads `to_text`, because that model is fine by itself. Then it checks the ensembles that use `to_text`. The steps
# of `round_trip` no longer fit together, so Triton unloads `round_trip`. The model that was changed is READY, and the one
# that clients call is gone. The reason column says only `unloaded`; the log says why, in a line that begins with `E`.
#
# A second fault: one letter is missing in a map of the ensemble.

# %%
config = repo / "round_trip" / "config.pbtxt"
intact = config.read_text()
assert 'key: "IDS"  value: "ids"' in intact
config.write_text(
    intact.replace('key: "IDS"  value: "ids"', 'key: "IDS"  value: "id"', 1)
)
print("round_trip:", load(hand_made, "round_trip"))
print("log:", last_error(hand_made))
config.write_text(intact)
print("repaired:", load(hand_made, "round_trip"))
assert all(row.state == "READY" for row in hand_made.models())

# %% [markdown]
# "Failed to poll" means that Triton could not use what it read in the folder. The log names the tensor that is not
# connected, `ids`. It cannot know that `id` was a typo.
#
# ## Four templates
#
# An LLM's repository looks like yours, with three models in the place of two. TensorRT-LLM ships it as templates. Most of
# a template is fixed; what depends on your machine or your service is a `${variable}`. Here is the shortest of the four.
# `parameters` hand values to `model.py`; Triton passes them on and does not look at them. The shape `[ -1, -1 ]` is any
# number of beams, each of any length.

# %%
template = (repository.TEMPLATES / "postprocessing" / "config.pbtxt").read_text()
print(template)

# %% [markdown]
# Tutorials fill templates with `sed`, or with TensorRT-LLM's `fill_template.py`. Up to release 0.18 that script is
# Python's `safe_substitute` behind a command line. From 0.19 on it first asserts that the name is in the file. What does
# each do with the right name, and with a typo?


# %%
def with_sed(name, value):
    command = ["sed", f"s|${{{name}}}|{value}|"]
    return subprocess.run(command, input=template, stdout=-1, text=True).stdout


def with_fill_template_0_18(name, value):
    return Template(template).safe_substitute({name: value})


def with_fill_template_0_19(name, value):
    assert name in template, f"key '{name}' does not exist in the file"
    return Template(template).safe_substitute({name: value})


for fill in (with_sed, with_fill_template_0_18, with_fill_template_0_19):
    for name in ("tokenizer_dir", "tokeniser_dir"):
        try:
            filled = fill(name, "/engines/model") != template
            said = "filled" if filled else "nothing changed, no error"
        except AssertionError as error:
            said = f"AssertionError: {error}"
        print(f"{fill.__name__:24} {name}  {said}")

# %% [markdown]
# All three change text. But a config is more than text: it is the text form of a **protobuf** message, `ModelConfig`,
# with known fields of known types. A program that reads the file as that message finds a typo in the name of a field, and
# a word where a number belongs. It does not find a typo in a key of `parameters`: there, any key is allowed.

# %%
for wrong in (
    "max_batchsize: 8",
    "max_batch_size: ${triton_max_batch_size}",
    'parameters { key: "tokeniser_dir"  value { string_value: "/engines" } }',
):
    try:
        text_format.Parse(wrong, ModelConfig())
        print("accepted:", wrong)
    except text_format.ParseError as error:
        print("refused: ", wrong, "\n         ", error)

# %% [markdown]
# So a tool that knows the models has to check their keys. The course's `repository.check` does; you meet it below. One
# caution: a protobuf message has no comments, so a tool that reads and rewrites a config loses them.
#
# ## Assemble
#
# By now you know what has to be done for four models: copy, fill in, look for typos. `assemble` does this in one call.
# `check` then reads the result as Triton will, before anything starts. `Server` starts `tritonserver` as you did, checks
# first, and waits until every model is READY.

# %% tags=["nbval-ignore-output"]
engine_dir = engine.cached(fetch())
llm = repository.assemble(Path(folder.name) / "llm", engine_dir)
assert repository.check(llm) == []  # no problem found, and nothing was started
server = Server(llm).start()
client = Client(server.grpc_url)
question = "Name the capital of France."
answer = client.ask(question)
print(f"{answer.text!r} after {answer.latency_s * 1000:.0f} ms")
assert all(row.state == "READY" for row in server.models())

# %% [markdown]
# How many inputs does the ensemble of an LLM have? Read its config. `required` is your line: the names of the inputs that a
# client must send. An input's `optional` is True or False.

# %%
config_text = (llm / "ensemble" / "config.pbtxt").read_text()
config = text_format.Parse(config_text, ModelConfig())
# your line:
required = [one.name for one in config.input if not one.optional]
edges = pd.DataFrame(repository.ensemble_edges(llm))
used = set(edges.loc[edges["source"] == "client", "tensor"])
print(f"{len(config.input)} inputs, of which {len(required)} are required:", *required)
print(f"{len(used)} are drawn below, {len(config.input) - len(used)} are left out.")
assert required == ["text_input", "max_tokens"]

# %% [markdown]
# <details><summary>The line</summary>
# <code>required = [one.name for one in config.input if not one.optional]</code></details>
#
# The inputs left out belong to features that this engine does not have, such as LoRA and guided decoding. They are
# declared all the same, because Triton refuses a request with an input that the config does not name, and a client
# written for TensorRT-LLM may send them. `assemble` adds them; a value that asks for such a feature is refused.
#
# ## See
#
# The repository as a tree, with each model's files beside the model. The arrows are read from the ensemble's maps. At an
# arrow stand the sender's name of the tensor, the receiver's name, its type, and its shape without the batch dimension.

# %%
paths = [path for path in sorted(llm.rglob("*")) if path.suffix in (".pbtxt", ".py")]
files = [str(path.relative_to(llm)) for path in paths]
counts = edges.groupby("target", sort=False).size()
alt = (
    f"A tree of {len(files)} files beside a graph. The client's tensors go to "
    "preprocessing and tensorrt_llm, those of preprocessing to tensorrt_llm, and those "
    "of tensorrt_llm to postprocessing and the client. Tensors that may arrive: "
    + ", ".join(f"{count} at {model}" for model, count in counts.items())
    + f". {edges['optional'].sum()} of them are optional."
)
charts.show(lesson.repository_map(files, edges), alt)
Markdown(alt)

# %% [markdown]
# An optional tensor of the client travels only if the client sends it.
#
# ## Explain
#
# Do the ensemble's work by hand: ask the three models one after the other, and give each output the name that the next
# model knows it by. Each line below is one line of a map. One of them is yours; the picture has its names.

# %%
first = {
    "QUERY": np.array([[question.encode()]], object),
    "REQUEST_OUTPUT_LEN": np.array([[16]], np.int32),
}
ids = ask(server, "preprocessing", **first)
second = {
    "input_lengths": ids["REQUEST_INPUT_LEN"],
    "request_output_len": ids["REQUEST_OUTPUT_LEN"],
    "end_id": ids["OUT_END_ID"],
    "pad_id": ids["OUT_PAD_ID"],
    "stop_words_list": ids["STOP_WORDS_IDS"],
    "bad_words_list": ids["BAD_WORDS_IDS"],
}
# your line:
second["input_ids"] = ids["INPUT_ID"]
tokens = ask(server, "tensorrt_llm", **second)

# %% [markdown]
# <details><summary>The line</summary><code>second["input_ids"] = ids["INPUT_ID"]</code></details>

# %%
third = {
    "TOKENS_BATCH": tokens["output_ids"],
    "SEQUENCE_LENGTH": tokens["sequence_length"],
    "PRECEDING_IDS": tokens["preceding_ids"],
    "IS_FINAL": tokens["is_final"],
}
words = ask(server, "postprocessing", **third)
by_hand = words["OUTPUT"].item().decode()
assert by_hand == answer.text
Markdown(
    f"By hand: {by_hand!r}, the same text as from the ensemble. The {len(question)} "
    f"characters became {second['input_ids'].shape[1]} token ids, because the chat "
    f"template adds its own words around them. {len(first)} tensors went into "
    f"preprocessing, {len(second)} into tensorrt_llm, {len(third)} into postprocessing."
)

# %% [markdown]
# `tensorrt_llm` has a further output, which the maps pass to postprocessing: `stop_id`. Only a streamed answer carries
# it. With it, postprocessing tells the engine to stop when the client has gone.
#
# Three methods of a Python model are worth knowing. `initialize` runs once, when the model is loaded, and reads the
# `parameters`. `execute` is the one you wrote. Here they are in postprocessing. `finalize` runs when a model is unloaded;
# postprocessing has nothing to close.

# %%
code = (llm / "postprocessing" / "1" / "model.py").read_text()
print(code[code.index("    def initialize") : code.index("    def _text")])

# %% [markdown]
# ## Turn the knob
#
# You can change a config while the server runs. The editor below has a field for every key of `tensorrt_llm`. **Apply**
# writes the file and tells Triton to load the model again. A value that the key does not take is refused before anything
# is written. Try:
#
# - `exclude_input_in_output` at `false`, then **Apply**. What does `client.ask(question).text` return now, in a cell of
#   your own? Set it back to `true` before you go on.
# - `max_tokens_in_paged_kv_cache` at `many`, then at `64`, as the cell does too. What refuses each of them?

# %% tags=["nbval-ignore-output"]
editor = widgets.ConfigEditor(server, "tensorrt_llm")
display(editor)
for value in ("many", "64"):
    said = editor.apply(max_tokens_in_paged_kv_cache=value)
    display(Markdown(f"`{value}`: {said}"))
    assert "Refused" in said
assert all(row.state == "READY" for row in server.models())

# %% [markdown]
# `many` is not a number, so the editor did not touch the file. 64 is a number; only the engine knows that it is too small
# for one request. So the file was written, the engine refused to load, and the editor put the old file back. Meanwhile
# the server went on with the model it had.
#
# ## Today's repository
#
# TensorRT-LLM removed its engines in July 2026. Since then its repository has one model, `tensorrt_llm`, which takes text
# and does the work of all four. `assemble` makes that one as well, for the same engine. Here are the files of both:

# %%
today = repository.assemble(Path(folder.name) / "today", engine_dir, contract="llmapi")
paths = [path for path in sorted(today.rglob("*")) if path.is_file()]
now = pd.Series([str(path.relative_to(today)) for path in paths])
pd.DataFrame({"with engines": pd.Series(files), "today": now}).fillna("")

# %% [markdown]
# The new file is `model.yaml`. Triton does not know it; `model.py` reads it. The engine's settings moved there:

# %%
text = (today / "tensorrt_llm" / "1" / "model.yaml").read_text()
print(text.replace(str(engine_dir), "/engines/model"))
settings = pd.json_normalize(yaml.safe_load(text)).iloc[0]
moved = {
    "gpt_model_path": "model",
    "kv_cache_free_gpu_mem_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "enable_kv_cache_reuse": "kv_cache_config.enable_block_reuse",
    "batch_scheduler_policy": "scheduler_config.capacity_scheduler_policy",
    "enable_chunked_context": "enable_chunked_prefill",
}
config_text = (llm / "tensorrt_llm" / "config.pbtxt").read_text()
parameters = text_format.Parse(config_text, ModelConfig()).parameters
for old, new in moved.items():
    assert parameters[old].string_value.lower() == str(settings[new]).lower()
pd.Series(moved, name="model.yaml").rename_axis("config.pbtxt").reset_index()

# %% [markdown]
# Each pair has the same value in both files; a policy is in capitals now. `config.pbtxt` keeps the tensors. It no longer
# says whether the model is decoupled: Triton asks `model.py` when it loads the model, and `model.py` answers with
# `triton_config`. Start a server on the new repository and ask it, as `curl` would. The names of the inputs are others, too:

# %% tags=["nbval-ignore-output"]
with Server(today) as other:
    body = {"text_input": "The capital of France is", "sampling_param_max_tokens": 8}
    path = "/v2/models/tensorrt_llm/generate"
    reply = other.http.post(path, json=body, timeout=60).json()
print(reply)
assert reply["text_output"].startswith(body["text_input"])

# %% [markdown]
# The prompt stands in front of the answer, because nothing asked to leave it out. And the model completes the text: it does
# not reply to it, because this model applies no chat template. In the repository of four, `preprocessing` does.
#
# ## Elsewhere
#
# | | TensorRT-LLM with engines, as here | vLLM in Triton |
# |---|---|---|
# | models | four: three and an ensemble | one, `backend: "vllm"` |
# | tokenizes | `preprocessing` | vLLM |
# | options | `parameters` in `config.pbtxt` | `1/model.json` |
# | most requests that run at once | `max_batch_size` of the engine | `max_num_seqs` |
# | memory for the KV cache | `kv_cache_free_gpu_mem_fraction` | `gpu_memory_utilization` |
#
# The last row differs in detail: TensorRT-LLM's fraction is of the memory that is free once the weights are loaded; vLLM's
# is of all the GPU's memory, weights included. With engines, take the templates from the release that you serve, and from no
# other place: they change with every release. [The page for a lab GPU](../assets/lab-gpu/README.md) has the commands, for
# engines and for the model of today, which NVIDIA calls `llmapi`. Triton's own pages:
# [model repository](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_repository.html),
# [model configuration](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html),
# [ensembles](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ensemble_models.html).

# %% [markdown]
# ## What breaks
#
# Three more faults, one after the other. Some are found by the check, before anything starts. Some are found only by
# Triton, when it loads the model. And some are found by neither.

# %%
WHO = ["the check", "only Triton", "neither"]
unfilled = widgets.predict("A variable was not filled. What finds it?", WHO)
elsewhere = widgets.predict("The engine is in another folder. What finds it?", WHO)
crossed = widgets.predict("Stop words and bad words are swapped. What finds it?", WHO)
display(unfilled, elsewhere, crossed)

# %% tags=["nbval-ignore-output"]
config = llm / "preprocessing" / "config.pbtxt"
intact = config.read_text()
config.write_text(
    intact.replace("max_batch_size: 64", "max_batch_size: ${triton_max_batch_size}")
)
[problem] = repository.check(llm)
print("the check:", str(problem).replace(f"{folder.name}/", ""))
print("Triton:   ", load(server, "preprocessing"))
print("a client: ", client.ask(question).text)
config.write_text(intact)
print(unfilled.score("the check"))

# %% [markdown]
# The check names file, line and variable. Triton's answer names none of them; only its log does. The client notices
# nothing: when a model cannot be loaded again, Triton keeps the one it has. After a restart there would be none.

# %% tags=["nbval-ignore-output"]
config = llm / "tensorrt_llm" / "config.pbtxt"
intact = config.read_text()
config.write_text(intact.replace(str(engine_dir), "/engines/model"))
assert repository.check(llm) == []  # it finds nothing
said = load(server, "tensorrt_llm")
print("Triton:", said)
config.write_text(intact)
assert "no engine at /engines/model" in said
print(elsewhere.score("only Triton"))

# %% [markdown]
# A path is just a string to the check. Only the machine that serves can tell whether an engine is there, so the error
# comes from the engine's `initialize`.

# %% tags=["nbval-ignore-output"]
config = llm / "ensemble" / "config.pbtxt"
intact = config.read_text()
before = client.ask(question, max_tokens=24, stop_words=[" of"]).text
swapped = intact.replace("STOP_WORDS_DICT", "?")
swapped = swapped.replace("BAD_WORDS_DICT", "STOP_WORDS_DICT")
config.write_text(swapped.replace("?", "BAD_WORDS_DICT"))
assert repository.check(llm) == [] and load(server, "ensemble") == "loaded"
after = client.ask(question, max_tokens=24, stop_words=[" of"]).text
print("stop at ' of', before:", repr(before))
print("stop at ' of', after: ", repr(after))
config.write_text(intact)
assert load(server, "ensemble") == "loaded" and repository.check(llm) == []
assert " of" in before and " of" not in after
print(crossed.score("neither"))

# %% [markdown]
# Both tensors hold any number of texts, so names, types and shapes all fit, and every model is READY. But the word at
# which the answer should stop is now a word that it may not use. The repository of TensorRT-LLM 0.5 had a related fault:
# its maps left the stop words unconnected. Only a test of the behaviour finds such faults.

# %% [markdown]
# ## Recap
#
# - A model repository has one folder for each model; `config.pbtxt` names what flows in and out, `1/` holds the model.
# - An ensemble is maps, not code: two steps are connected when they use the same name for a tensor.
# - `-1` in a shape means any length, and `max_batch_size` adds one dimension in front of every shape.
# - `sed` does not report a typo, nor does `fill_template.py` before 0.19. Protobuf knows fields and types; only who knows
#   the model knows the keys of `parameters`.
# - When something is wrong, ask in this order: what does the check say, what is each model's state, what is the last
#   error in the log, and does the answer do what was asked?
#
# Three questions, without running anything:
#
# <details><summary>1. The ensemble has an optional input <code>temperature</code>. Which models get a tensor when a
# client does not send it?</summary>None. Triton passes on an optional tensor only if it was sent, and
# <code>tensorrt_llm</code> uses its default.</details>
#
# <details><summary>2. You fill <code>engine_dir</code> with <code>sed s/…/…/</code>, and the path has slashes. What
# happens?</summary><code>sed</code> takes the first slash of the path as the end of the replacement, and stops with an
# error. Use another separator, such as <code>|</code> above. A typo in the name is worse: then <code>sed</code> reports
# nothing.</details>
#
# <details><summary>3. A model was edited and could not be loaded again. Clients are still served. Is all
# well?</summary>No. The server goes on with the version it had loaded, and the file on disk is broken. At the next
# restart the model is missing.</details>
#
# Now the [lab]({lab}), then the next lesson: {next}.

# %% [markdown]
# ## Appendix: whose clients?
#
# Names, types and shapes of the ensemble's tensors are a **contract** with every client that was ever written for it. The
# course's repository keeps the contract of TensorRT-LLM 0.9 to 0.19; `assemble(…, contract="0.5")` keeps that of the
# first workshops, and `contract="llmapi"`, above, that of today. The table has what differs: a client has to send, and to
# expect, what its column says.

# %%
session.running()  # both servers end with the notebook's kernel
charts.table(pd.DataFrame(repository.contract_differences()))
