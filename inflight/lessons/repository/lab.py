# %% [markdown]
# # {heading}
#
# Three exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You write a model and put it into
# the ensemble, repair three broken repositories, and write the check that would have found what is wrong with them. The
# course keeps your repository, and later labs serve it.
#
# You need lecture 02. Each exercise ends with a `check`. A check starts its own server if it needs one, and a wrong answer
# never stops the notebook.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %%
import tempfile
from pathlib import Path

import pandas as pd

from inflight import engine
from inflight.checkpoint import fetch
from inflight.lessons.repository import broken_repositories
from inflight.notebook import check, session
from inflight.triton import Client, Server, repository

pd.set_option("display.max_colwidth", None)  # messages are to be read to their end
folder = tempfile.TemporaryDirectory()  # it goes with the notebook's kernel

# %% tags=["nbval-ignore-output"]
engine_dir = engine.cached(fetch())
repo = repository.assemble(Path(folder.name) / "repo", engine_dir)
(repo / "mask" / "1").mkdir(parents=True)
print(f"engine: {engine_dir.name}")

# %% [markdown]
# ## Exercise 2.1: a model of your own in the ensemble
#
# *Core · importance 5/5 · difficulty 3/5 · 35 minutes*
#
# A service must not pass its users' e-mail addresses to a model. Write the model `mask`, which runs before
# `preprocessing`, from blank files. It replaces each address by `[e-mail]`. An address is, for this exercise, one or more
# characters that are not white space, an `@`, and again one or more such characters. Everything else stays as it is,
# white space included.
#
# Then put `mask` into the ensemble of `repo`. Clients must not notice: all inputs and outputs of the ensemble stay as they
# are, each input still reaches its model, and no other model changes.
#
# | tensor of `mask` | | type | `dims` | what it is |
# |---|---|---|---|---|
# | `TEXT` | in | STRING | `[ 1 ]` | what the client sends |
# | `MASKED` | out | STRING | `[ 1 ]` | what `preprocessing` gets |
#
# Its `max_batch_size` is 64, like that of the other models. So a request may have several rows, each with one text. A text
# arrives as `bytes` in UTF-8. First the code:

# %% tags=["part:repository/mask/1/model.py"]
# %%writefile {repo}/mask/1/model.py
# # BEGIN SOLUTION
# # LAB: # your class TritonPythonModel
# import re
#
# import numpy as np
# import triton_python_backend_utils as pb_utils
#
#
# class TritonPythonModel:
#     """Texts without e-mail addresses."""
#
#     def execute(self, requests):
#         return [self.answer(request) for request in requests]
#
#     def answer(self, request):
#         texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
#         masked = np.array([[self.mask(text)] for text in texts.reshape(-1)], object)
#         return pb_utils.InferenceResponse([pb_utils.Tensor("MASKED", masked)])
#
#     def mask(self, text):
#         return re.sub(r"\S+@\S+", "[e-mail]", text.decode()).encode()
# # END SOLUTION

# %% [markdown]
# Then its config:

# %% tags=["part:repository/mask/config.pbtxt"]
# %%writefile {repo}/mask/config.pbtxt
# # BEGIN SOLUTION
# # LAB: # your config
# name: "mask"
# backend: "python"
# max_batch_size: 64
# input [ { name: "TEXT"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# output [ { name: "MASKED"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# instance_group [ { kind: KIND_CPU } ]
# # END SOLUTION

# %% [markdown]
# And the ensemble: edit `repo / "ensemble" / "config.pbtxt"` as text, or as a protobuf message:
# `repository.read_config(path)` returns the message, `repository.write_config(message, path)` writes it. Then set
# `extended` to `repo`.

# %%
extended = None
# BEGIN SOLUTION
# LAB: # your change of the ensemble's config; then set extended
config_file = repo / "ensemble" / "config.pbtxt"
config = repository.read_config(config_file)
others = list(config.ensemble_scheduling.step)
del config.ensemble_scheduling.step[:]
step = config.ensemble_scheduling.step.add(model_name="mask", model_version=-1)
step.input_map["TEXT"] = "text_input"
step.output_map["MASKED"] = "_MASKED"
config.ensemble_scheduling.step.extend(others)
config.ensemble_scheduling.step[1].input_map["QUERY"] = "_MASKED"
repository.write_config(config, config_file)
extended = repo
# END SOLUTION

# %%
check("2.1", extended)

# %% [markdown]
# <details><summary>Where to look</summary>The lecture's sections "A model by hand" and "A second model, and an ensemble"
# show a model, its config and a step of an ensemble. In the ensemble's config, look for <code>text_input</code>: one model
# takes it now, and has to take your tensor instead.</details>
#
# <details><summary>How to begin</summary>Copy <code>to_text</code>, and let it return what it gets. Run the check: it
# loads the model. Only then change the text, row by row: decode it, replace with <code>re</code>, encode it. A step must
# come after the steps whose tensors it takes.</details>
#
# <details><summary>The error you see</summary>"… which no earlier step and no input provides": the value in an
# <code>input_map</code> is not one of the ensemble's names, or its step comes later. "max_batch_size": a step's must not be
# smaller than the ensemble's. A text that begins with <code>b'</code>: you called <code>str</code> on
# <code>bytes</code>.</details>

# %% [markdown]
# ## Exercise 2.2: three repositories that do not serve
#
# *Core · importance 5/5 · difficulty 3/5 · 25 minutes*
#
# Three colleagues hand you their repositories, and something in each is broken. `captions`: `repository.problems` lists
# every fault. `search`: its code has two; one ends the load, the other the first request. `chat`: it answers, but two
# tensors are swapped.
#
# Repair the files in place. Leave the settings as their owners chose them: the check serves each repository, and compares
# its settings with the owner's. Then set `repaired` to `broken`.

# %%
broken = broken_repositories(Path(folder.name) / "broken", engine_dir)
for name, path in broken.items():
    problems = repository.problems(path) or ["nothing found in the files"]
    print(name, *problems, sep="\n    ")

# %%
repaired = None
# BEGIN SOLUTION
# LAB: # your repairs; then set repaired


def change(name, file, old, new):
    path = broken[name] / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


change("captions", "postprocessing/config.pbtxt", "TYPE_FP32", "TYPE_INT32")
repository.edit(
    broken["captions"], "tensorrt_llm", batch_scheduler_policy="guaranteed_no_evict"
)
change("captions", "ensemble/config.pbtxt", '"_INPUT_IDS"', '"_INPUT_ID"')
change("search", "preprocessing/1/model.py", "(self.parameter[", "(self.parameters[")
change("search", "preprocessing/1/model.py", "[len(ids) for", "[[len(ids)] for")
config_file = broken["chat"] / "ensemble" / "config.pbtxt"
config = repository.read_config(config_file)
engine_inputs = config.ensemble_scheduling.step[1].input_map
engine_inputs["input_lengths"] = "_REQUEST_INPUT_LEN"
engine_inputs["request_output_len"] = "_REQUEST_OUTPUT_LEN"
repository.write_config(config, config_file)
repaired = broken
# END SOLUTION

# %%
check("2.2", repaired)

# %% [markdown]
# <details><summary>Where to look</summary><code>captions</code>: each message ends with what to do; list the problems again
# after each repair. <code>search</code>: run <code>server = Server(broken["search"]).start()</code> in a cell, and read
# the reason; once it starts, <code>Client(server.grpc_url).ask("Hello.")</code>. <code>chat</code>: compare
# <code>pd.DataFrame(repository.ensemble_edges(broken["chat"]))</code> with the same table of a repository that
# works.</details>
#
# <details><summary>How to begin</summary>Begin with <code>captions</code>, and with one file. A config is text:
# <code>print(path.read_text())</code>, then <code>path.write_text(path.read_text().replace(…, …))</code>. To set a key of
# <code>tensorrt_llm</code>, you can use <code>repository.edit</code>.</details>
#
# <details><summary>The error you see</summary>"its owner had …": you changed a setting, or copied a file from another
# repository. "AttributeError … has no attribute": Python names the line of <code>model.py</code>. "unexpected shape for
# input …" names the model that reads the tensor: who wrote it? "the answer to …, where … is wanted": every model is
# loaded, but the maps pass a tensor to the wrong input.</details>

# %% [markdown]
# ## Exercise 2.3: the check that your pipeline runs
#
# *Further · importance 4/5 · difficulty 4/5 · 25 minutes*
#
# Triton drops an ensemble whose steps do not fit together, and says so in its log alone. You want every change to be
# checked before it is deployed, on a machine without Triton. Write `misfits`: given the path of a repository, it returns
# pairs, a model and its own name for an input, one for each input of the ensemble's steps for which one of these is true:
#
# - A step's map gives it a tensor that is neither an input of the ensemble nor comes from an **earlier** step.
# - It gets a tensor of another type than its own.
# - Its model needs it (it is not `optional`), and the step's map does not have it.
#
# The order of the pairs does not matter. The models' tensors are in their own
# configs: `repository.read_config(path)` gives a `config.pbtxt` as a message with `input` and `output`, each of which has
# a `name`, a `data_type` and `optional`. The steps are in `ensemble_scheduling.step`; each has a `model_name`, an
# `input_map` and an `output_map`. The check makes up two hundred repositories, each with an `ensemble`.

# %%
# %%writefile {folder.name}/misfits.py
# # BEGIN SOLUTION
# # LAB: def misfits(repo):
# # LAB:     """(model, input) of each input that gets nothing, or another type."""
# # LAB:     raise NotImplementedError
# from pathlib import Path
#
# from inflight.triton import repository
#
#
# def misfits(repo):
#     """(model, input) of each input that gets nothing, or another type."""
#     files = Path(repo).glob("*/config.pbtxt")
#     configs = {file.parent.name: repository.read_config(file) for file in files}
#     given = {one.name: one.data_type for one in configs["ensemble"].input}
#     found = []
#     for step in configs["ensemble"].ensemble_scheduling.step:
#         model = configs[step.model_name]
#         for one in model.input:
#             if one.name not in step.input_map:
#                 fits = one.optional
#             else:
#                 fits = given.get(step.input_map[one.name]) == one.data_type
#             if not fits:
#                 found.append((step.model_name, one.name))
#         types = {one.name: one.data_type for one in model.output}
#         given |= {shared: types[own] for own, shared in step.output_map.items()}
#     return found
# # END SOLUTION

# %%
check("2.3", Path(folder.name) / "misfits.py")

# %% [markdown]
# <details><summary>Where to look</summary>The lecture runs an ensemble with a dictionary of the tensors by their shared
# names. Here the dictionary holds types in place of arrays.</details>
#
# <details><summary>How to begin</summary>Begin with the types of the ensemble's inputs. For each step, look at every input
# of its model. Only then add what its <code>output_map</code> gives.</details>
#
# <details><summary>The error you see</summary>"… has no …": what you loop over is a message; its parts are attributes, as
# <code>config.ensemble_scheduling.step</code>. A name that you read from <code>input_map[…]</code> is added to it if it
# was not there: ask with <code>in</code> first.</details>

# %% [markdown]
# ## Bonus
#
# See your `mask` at work with the real engine, set so that it returns the prompt, as it got it, before its answer.
# `repository.refit` copies a repository with another engine and other settings, and keeps your tensors and your code; later
# labs use it to serve your repository.

# %% tags=["nbval-ignore-output"]
if extended is not None:
    shown = repository.refit(
        extended,
        Path(folder.name) / "shown",
        engine_dir,
        exclude_input_in_output=False,
    )
    server = Server(shown).start()
    answer = Client(server.grpc_url).ask(
        "Please write to ada@example.org today.", max_tokens=24
    )
    print(answer.text)

# %% [markdown]
# ## Elsewhere
#
# Three questions, without running anything.
#
# 1. The service moves to a server with TensorRT-LLM and two GPUs, and the engine to another folder. Which of your files
#    change?
#
# <details><summary>Answer</summary>Only values: the engine's folder, the backend of <code>tensorrt_llm</code>, and the
# folder of the tokenizer. <code>mask</code> and its place in the ensemble stay, if the release still has this
# layout.</details>
#
# 2. The service begins to stream. Your `mask` is now a step of a decoupled ensemble. How often does it run for one
#    request? And could it mask the answer in the same way, after `postprocessing`?
#
# <details><summary>Answer</summary>Once, because it runs before the engine. After the engine it would run once for each
# piece of the answer, and an address split over two pieces would pass. It would have to keep the end of each piece until
# the next one comes.</details>
#
# 3. A client was written for the ensemble before `mask` was added. Does it still work? And what about a client that asks
#    `preprocessing` itself?
#
# <details><summary>Answer</summary>The first works, and its addresses are masked. The second works too, but its addresses
# reach the model: the ensemble protects only the clients that use it. To protect everybody, close the other models to
# clients.</details>

# %% tags=["nbval-ignore-output"]
session.running()

# %% [markdown]
# ## Done?
#
# When every check passes, compare your work with {counterpart}, then go on to {next}.
