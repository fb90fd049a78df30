# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **write** a model repository from blank files, and start a server on it;
# - **trace** every tensor through an ensemble;
# - **repair** a repository that does not load.
#
# You need the engine of lesson 01; it is built here if it is not there yet. Words you do not know are in the
# [glossary](00_start_here.ipynb#Glossary).
#
# {navigation}

# %% [markdown]
# ## The question
#
# A colleague hands you a folder with four `config.pbtxt` files. The server starts, one model is UNAVAILABLE, and the
# demo is in ten minutes. Which file do you open?
#
# **{question}**

# %% [markdown]
# ## Predict
#
# A client sends two tensors, a text and the most tokens it wants, and gets its answer. Between the two, three models
# hand each other tensors: text to token ids, token ids to more token ids, token ids to text.

# %% tags=["setup"]
import subprocess
import tempfile
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd
import tritonclient.grpc as triton
from IPython.display import Markdown, display
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight import CourseError
from inflight.notebook import widgets

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["setup"]
guess = widgets.predict(
    "How many tensors are handed over in all, those of the client included?",
    {"some 5": 5, "some 10": 10, "some 20": 20, "some 40": 40},
    given=prediction,
)
guess

# %% [markdown]
# ## A model by hand
#
# Begin with something small enough to write yourself. A **model repository** is a folder that has a folder for each
# model. In a model's folder, `config.pbtxt` says what flows in and out and what runs it; the folder `1` holds version 1
# of the model itself. Three models are to come, so there are three folders.

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("02", "A model by hand")

folder = tempfile.TemporaryDirectory()  # it goes with the notebook's kernel
repo = Path(folder.name) / "by_hand"
for model in ("to_ids", "to_text", "round_trip"):
    (repo / model / "1").mkdir(parents=True)

# %% [markdown]
# The first model turns a text into numbers, as a tokenizer does; here they are simply the text's bytes. Triton calls
# `execute` with a list of requests and wants a list of as many responses.

# %% tags=["setup"]
# %%writefile {repo}/to_ids/1/model.py
# import numpy as np
# import triton_python_backend_utils as pb_utils  # there is one inside Triton only
#
#
# class TritonPythonModel:
#     def execute(self, requests):
#         return [self.answer(request) for request in requests]
#
#     def answer(self, request):
#         text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().item()
#         ids = pb_utils.Tensor("IDS", np.array([list(text)], np.int32))
#         return pb_utils.InferenceResponse([ids])

# %% tags=["setup"]
# %%writefile {repo}/to_ids/config.pbtxt
# name: "to_ids"
# backend: "python"
# max_batch_size: 1
# input [ { name: "TEXT"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# output [ { name: "IDS"  data_type: TYPE_INT32  dims: [ -1 ] } ]

# %% [markdown]
# That is the whole config. The **backend** `python` is the program that runs `model.py`. `dims` is the shape of one
# request's tensor: one text in, any number of ids out (`-1`). `max_batch_size` adds one more dimension in front of every
# shape, even if it is 1: a text arrives as `[1, 1]`, and the ids leave as `[1, n]`.
#
# Now the server. These four arguments are all that you have to decide. `tritonserver` starts the program of that name
# and prints what it adds: where Triton's libraries are, free ports on this machine alone, a **key** without which nobody
# can load models, and a keeper that ends the server with this notebook.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.triton import tritonserver

hand_made = tritonserver(
    [
        f"--model-repository={repo}",
        "--model-control-mode=explicit",  # a model is loaded when it is asked for
        "--load-model=to_ids",  # and this one at the start
        "--disable-auto-complete-config",  # the files say it all: nothing is guessed
    ]
)

# %% [markdown]
# At the top stands the environment, then the program and its arguments: your four, and those that were added. In a
# terminal you would type the same. Triton writes a log, and into it a table of its models. It is the first thing to read
# when something is wrong:

# %%
log = hand_made.log_tail(100)
table = log[log.index("| Model") :]
print(table.partition("\nI")[0])

# %% [markdown]
# READY. Ask it with NVIDIA's own client, which knows nothing but names of tensors, their types and their shapes:


# %% tags=["setup"]
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
# ### A second model, and an ensemble
#
# The second model goes the other way, from ids to text.

# %% tags=["setup"]
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
#         text = pb_utils.Tensor("TEXT", np.array([[bytes(ids[0].tolist())]], object))
#         return pb_utils.InferenceResponse([text])

# %% tags=["setup"]
# %%writefile {repo}/to_text/config.pbtxt
# name: "to_text"
# backend: "python"
# max_batch_size: 1
# input [ { name: "IDS"  data_type: TYPE_INT32  dims: [ -1 ] } ]
# output [ { name: "TEXT"  data_type: TYPE_STRING  dims: [ 1 ] } ]

# %% [markdown]
# The third is an **ensemble**. It has no code and its folder `1` stays empty: Triton itself carries the tensors from step
# to step, as `ensemble_scheduling` says. In each map the **key** is the model's own name for a tensor, the **value** the
# ensemble's. Two steps are connected where both use the same value: here `ids`. A value that is the name of an input or
# output of the ensemble is connected with the client.

# %% tags=["setup"]
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
#       input_map { key: "IDS"  value: "ids" }
#       output_map { key: "TEXT"  value: "text_output" }
#     }
#   ]
# }

# %% [markdown]
# Loading takes the key along, in `headers`.


# %% tags=["setup"]
def load(server, model):
    """Tell Triton to load a model from its files; return what it says."""
    with triton.InferenceServerClient(server.grpc_url) as connection:
        try:
            connection.load_model(model, headers=server.headers)
        except InferenceServerException as error:
            return error.message().partition("\n")[0].replace(f"{folder.name}/", "")
    return "loaded"


print(load(hand_made, "round_trip"))
text = np.array([["Hi!"]], object)
print(ask(hand_made, "round_trip", text_input=text)["text_output"].item())
pd.DataFrame(hand_made.models())

# %% [markdown]
# You asked for one model, and three are READY: an ensemble takes the models of its steps along.
#
# ## Broken on purpose
#
# Two faults of one word each. First, `to_text` asks for 64-bit numbers:

# %%
from inflight.notebook import catch_up

catch_up("02", "Broken on purpose")


def last_error(server):
    """What Triton's log says last of what went wrong."""
    lines = server.log_tail(100).splitlines()
    return [line for line in lines if line.startswith("E")][-1].partition("] ")[2]


config = repo / "to_text" / "config.pbtxt"
intact = config.read_text()
config.write_text(intact.replace("TYPE_INT32", "TYPE_INT64"))
print("to_text:", load(hand_made, "to_text"))
for row in hand_made.models():
    print("   ", row.name, row.state, row.reason)
print("log:", last_error(hand_made))
config.write_text(intact)
print("repaired:", load(hand_made, "to_text"))

# %% [markdown]
# Triton is content with `to_text` alone, then finds that the parts of the ensemble no longer fit, and takes the ensemble
# away. The model that you changed is READY; the one that clients use is not. Why, only the log says: a line that begins
# with `E`. Second, a letter is missing in a map:

# %%
config = repo / "round_trip" / "config.pbtxt"
intact = config.read_text()
config.write_text(
    intact.replace('key: "IDS"  value: "ids"', 'key: "IDS"  value: "id"', 1)
)
print("round_trip:", load(hand_made, "round_trip"))
print("log:", last_error(hand_made))
config.write_text(intact)
print("repaired:", load(hand_made, "round_trip"))
assert all(row.state == "READY" for row in hand_made.models())

# %% [markdown]
# To "poll" is to read the folder. The log names the tensor that is not connected, `ids`. It does not say that `id` was
# meant to be it.
#
# ## Four templates
#
# An LLM's repository looks like yours, with three models in place of two. It comes as templates: most of it is fixed, and
# what depends on your machine or your service is a variable. These are all lines that have one; the lines left out name
# tensors, as yours do.

# %%
from inflight.notebook import catch_up

catch_up("02", "Four templates")

from inflight.triton import repository

for model in repository.PIPELINE:
    print(f"{model}/config.pbtxt")
    for line in (
        (repository.TEMPLATES / model / "config.pbtxt").read_text().splitlines()
    ):
        if "${" in line:
            print("   ", " ".join(line.split()))

# %% [markdown]
# In a TensorRT-LLM tutorial you meet two tools that fill in such a file: `sed`, and `fill_template.py`, which is Python's
# `Template.safe_substitute` behind a command line. Here is the shortest of the four, whole, and what each tool does with
# a right name and with a misspelt one. `parameters` hand values to `model.py`; Triton does not look at them. The shape
# `[ -1, -1 ]` is any number of beams, each of any length.

# %%
template = (repository.TEMPLATES / "postprocessing" / "config.pbtxt").read_text()
print(template)


def with_sed(name, value):
    command = ["sed", f"s|${{{name}}}|{value}|"]
    return subprocess.run(command, input=template, stdout=-1, text=True).stdout


def with_fill_template(name, value):
    return Template(template).safe_substitute({name: value})


for fill in (with_sed, with_fill_template):
    for name in ("tokenizer_dir", "tokeniser_dir"):
        changed = fill(name, "/engines/model") != template
        print(f"{fill.__name__:18}  {name}  {'filled' if changed else 'says nothing'}")

# %% [markdown]
# Both change text, and a typo is no error to them. The file is more than that: the text form of a **protobuf** message
# of type `ModelConfig`, whose fields and types are known. The course's tools read and write that message, and know the
# keys of `parameters` as well:

# %%
values = repository.DEFAULTS | {"tokenizer_dir": "/engines/model"}
message = repository.fill(template, values)
print(type(message).__name__, "with the inputs", *(one.name for one in message.input))
for name, value in (("tokeniser_dir", "/engines"), ("skip_special_tokens", "perhaps")):
    try:
        repository.set_parameter(message, name, value)
    except CourseError as error:
        print(error)

# %% [markdown]
# The price: a message has no comments, so they are lost when it is written back.
#
# ## The code behind a config
#
# This is `model.py` of the same model. `initialize` runs once, when the model is loaded, and reads the parameters.
# `execute` is what you wrote, with one addition: an error answers only the request that caused it. `finalize` runs when
# the model is unloaded. The rest joins a streamed text without losing a space or half a character.

# %%
from inflight.triton import repository

print((repository.TEMPLATES / "postprocessing" / "1" / "model.py").read_text())

# %% [markdown]
# ## Assemble
#
# By now you know what there is to do for four models: copy, fill in, look for typos. `assemble` does it in a line, and
# `check` reads the result as Triton will, before anything starts. `Server` is your `tritonserver` with a check before it
# and a wait until every model is READY.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("02", "Assemble")

from inflight.checkpoint import fetch
from inflight.engine import cached
from inflight.triton import Client, Server, repository

engine_dir = cached(fetch())
llm = repository.assemble(Path(folder.name) / "llm", engine_dir)
assert repository.check(llm) == []  # no problem found without starting anything
server = Server(llm).start()
client = Client(server.grpc_url)
question = "Name the capital of France."
answer = client.ask(question)
print(f"{answer.text!r} after {answer.latency_s * 1000:.0f} ms")

# %% [markdown]
# ## See
#
# The repository as a tree, with each model's folder at the height of the model it describes. The arrows are read from the
# ensemble's maps. At an arrow: what the sender calls the tensor, what the receiver calls it, its type, its shape without
# the batch dimension.

# %%
from inflight.notebook import catch_up

catch_up("02", "See")

from inflight.lessons import repository as lesson
from inflight.notebook import charts

edges = pd.DataFrame(repository.ensemble_edges(llm))
paths = [path for path in sorted(llm.rglob("*")) if path.suffix in (".pbtxt", ".py")]
files = [str(path.relative_to(llm)) for path in paths]
optional = edges[edges.optional]
alt = (
    f"A tree of {len(files)} files beside a graph: the client's request goes down "
    "through preprocessing, tensorrt_llm and postprocessing, and back to the client, "
    f"over {len(edges)} possible tensors, of which {len(optional)} are optional."
)
charts.show(lesson.repository_map(files, edges), alt)
Markdown(alt)

# %% [markdown]
# An optional tensor of the client travels only when it is sent. What a model puts out always travels.
#
# ## Explain
#
# Be the ensemble: ask the three models one after the other, and give each output the name that the next model knows it
# by. Each line below is one line of a map.

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("02", "Explain")

first = {
    "QUERY": np.array([[question.encode()]], object),
    "REQUEST_OUTPUT_LEN": np.array([[16]], np.int32),
}
ids = ask(server, "preprocessing", **first)
second = {
    "input_ids": ids["INPUT_ID"],
    "input_lengths": ids["REQUEST_INPUT_LEN"],
    "request_output_len": ids["REQUEST_OUTPUT_LEN"],
    "end_id": ids["OUT_END_ID"],
    "pad_id": ids["OUT_PAD_ID"],
    "stop_words_list": ids["STOP_WORDS_IDS"],
    "bad_words_list": ids["BAD_WORDS_IDS"],
}
tokens = ask(server, "tensorrt_llm", **second)

# %%
third = {
    "TOKENS_BATCH": tokens["output_ids"],
    "SEQUENCE_LENGTH": tokens["sequence_length"],
    "PRECEDING_IDS": tokens["preceding_ids"],
    "IS_FINAL": tokens["is_final"],
}
words = ask(server, "postprocessing", **third)
to_client = {"text_output": words["OUTPUT"]}
for name in ("cum_log_probs", "output_log_probs", "batch_index", "sequence_index"):
    to_client[name] = tokens[name]
hops = [first, second, third, to_client]
moved = sum(len(tensors) for tensors in hops)
print(" + ".join(str(len(tensors)) for tensors in hops), "=", moved)
assert to_client["text_output"].item().decode() == answer.text
Markdown(
    f"By hand you got the same text as from the ensemble, and **{moved}** tensors were "
    f"handed over. {guess.score(moved)} The {len(question)} characters became "
    f"{second['input_ids'].shape[1]} token ids: the chat template puts its own words "
    "around them."
)

# %% [markdown]
# The maps name one more, `CANCELLATION_ID`. Only a streamed answer carries it: it tells the engine that a client has
# gone.
#
# ## Turn the knob
#
# A config can be changed while the server runs. Every key of `tensorrt_llm` has a field here; what a key does not take is
# refused before anything is written. **Apply** writes the file and loads the model again. Try:
#
# - `exclude_input_in_output` at `false`, then **Apply**. What does `client.ask(question).text` give in a cell of your own?
# - `max_tokens_in_paged_kv_cache` at `many`, then at `64`, as the cell below does too. Who refuses each of them?

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("02", "Turn the knob")

editor = widgets.ConfigEditor(server, "tensorrt_llm")
display(editor)
for value in ("many", "64"):
    said = editor.apply(max_tokens_in_paged_kv_cache=value)
    display(Markdown(f"`{value}`: {said}"))
assert all(row.state == "READY" for row in server.models())

# %% [markdown]
# The first is no number, so the file was never touched. Only the engine knows that 64 is too small: it was written,
# loaded, refused, and the file put back. Meanwhile the server went on with the model that it had.
#
# ## On the lab GPU
#
# Up to the containers of July 2026 TensorRT-LLM's repository was the same four models, made from templates that came
# with each release; what to know of them is on [the page for a lab GPU](../assets/lab-gpu/README.md). Since then there is one Python model,
# `llmapi`, whose engine's options stand in a `model.yaml` and no longer in `config.pbtxt`.
#
# | Step | Here | There, with engines |
# |---|---|---|
# | take the templates | `assemble("repo", engine)` | copy `all_models/inflight_batcher_llm`, from the container and no other place |
# | fill them | in the same call | `fill_template.py -i …/config.pbtxt triton_max_batch_size:8,…`, once a file |
# | look for what was forgotten | `repository.check("repo")` | `grep` for `${` outside quotes |
# | start | `Server("repo").start()` | `launch_triton_server.py --model_repo /lab/repo` |
#
# Triton's own pages:
# [model repository](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_repository.html),
# [model configuration](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html),
# [ensembles](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ensemble_models.html).

# %% [markdown]
# ## What breaks
#
# Three faults, one after the other. Some faults the check sees, before anything starts. Some only Triton sees, when it
# loads the model. And there is a third possibility.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("02", "What breaks")

WHO = ["the check", "only Triton", "nobody"]
unfilled = widgets.predict("A variable was not filled. Who sees it?", WHO)
elsewhere = widgets.predict("The engine is in another folder. Who sees it?", WHO)
crossed = widgets.predict("Stop words and bad words are crossed. Who sees it?", WHO)
display(unfilled, elsewhere, crossed)

# %% tags=["nbval-ignore-output"]
config = llm / "preprocessing" / "config.pbtxt"
intact = config.read_text()
config.write_text(
    intact.replace("max_batch_size: 64", "max_batch_size: ${triton_max_batch_size}")
)
print("the check:", str(repository.check(llm)[0]).replace(f"{folder.name}/", ""))
print("Triton:   ", load(server, "preprocessing"))
print("a client: ", client.ask(question).text)
config.write_text(intact)
print(unfilled.score("the check"))

# %% [markdown]
# The check names file, line and variable. Triton's answer names none of them; only its log does. The client notices
# nothing: a model that cannot be loaded again goes on as it was. After a restart it would be gone.

# %% tags=["nbval-ignore-output"]
config = llm / "tensorrt_llm" / "config.pbtxt"
intact = config.read_text()
config.write_text(intact.replace(str(engine_dir), "/engines/model"))
print("the check:", repository.check(llm) or "nothing")
print("Triton:   ", load(server, "tensorrt_llm"))
config.write_text(intact)
print(elsewhere.score("only Triton"))

# %% [markdown]
# The path is well-formed. Whether it leads anywhere is known only on the machine that serves, so the check passes it and
# the engine speaks up.

# %% tags=["nbval-ignore-output"]
config = llm / "ensemble" / "config.pbtxt"
intact = config.read_text()
before = client.ask(question, max_tokens=24, stop_words=[" of"]).text
swapped = intact.replace("STOP_WORDS_DICT", "?")
swapped = swapped.replace("BAD_WORDS_DICT", "STOP_WORDS_DICT")
config.write_text(swapped.replace("?", "BAD_WORDS_DICT"))
print("the check:", repository.check(llm) or "nothing")
print("Triton:   ", load(server, "ensemble"))
after = client.ask(question, max_tokens=24, stop_words=[" of"]).text
print("a client: ", repr(after), "and before", repr(before))
config.write_text(intact)
assert " of" in before and " of" not in after
assert load(server, "ensemble") == "loaded" and repository.check(llm) == []
print(crossed.score("nobody"))

# %% [markdown]
# Both tensors are texts of any number, so names, types and shapes all fit, and every model is READY. But the word at
# which the answer should stop is now one that it may not use. TensorRT-LLM 0.5 shipped with a relative of this fault:
# its maps left the stop words unconnected. Only a test that asks for the behaviour finds it.

# %% [markdown]
# ## Recap
#
# - A model repository is a folder with a folder for each model; `config.pbtxt` names what flows in and out, `1/` holds
#   the model.
# - An ensemble is maps, not code: two steps are connected where they use the same name for a tensor.
# - `-1` in a shape fits any length, and `max_batch_size` adds one dimension in front of every shape.
# - Text tools write typos without a word. Protobuf knows fields and types, and the course's check knows keys and
#   values.
# - When something is wrong, ask in this order: what does the check say, what is each model's state, what does the log's
#   last error say, and does the answer do what was asked?
#
# Three questions, without running anything:
#
# <details><summary>1. The ensemble has an optional input <code>temperature</code>. Which models get a tensor when a
# client does not send it?</summary>None. An optional tensor that was not sent is not handed over, and
# <code>tensorrt_llm</code> uses its default.</details>
#
# <details><summary>2. You fill <code>engine_dir</code> with <code>sed s/…/…/</code> and the path has slashes. What
# happens?</summary><code>sed</code> takes the first slash of the path as the end of the replacement, and stops with an
# error. That is its good case: with a typo in the name it says nothing. With <code>|</code> in place of <code>/</code>,
# as above, the path fits.</details>
#
# <details><summary>3. A model was edited, could not be loaded again, and clients are still served. Is all
# well?</summary>No. The server goes on with what it had loaded, and the file on disk is broken. The next restart
# brings the fault to light.</details>
#
# Now the [lab]({lab}), then the next lesson: {next}.

# %% [markdown]
# ## Appendix: whose clients?
#
# Names, types and shapes of the ensemble's tensors are a **contract** with every client ever written. The course's
# repository has the one of TensorRT-LLM 0.9 to 0.19; `assemble(…, contract="0.5")` makes that of the first workshops.
# Each row has broken somebody's client.

# %%
import pandas as pd

from inflight.notebook import charts
from inflight.triton import repository

charts.table(pd.DataFrame(repository.contract_differences()))

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()  # both servers end with the notebook
