# %% [markdown]
# # {heading}
#
# Four exercises, 60 minutes in all. You write a model and put it into the ensemble, repair what others have broken, and
# fill the templates for an engine that you have not seen. Your repository is kept and serves in later labs. Each exercise
# ends with a `check`, which starts a server of its own where it needs one, and never stops the notebook.
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
# *Core · importance 5/5 · difficulty 3/5 · 20 minutes*
#
# A service must not hand its users' e-mail addresses to a model. Write `mask` from blank files, a model in front of
# `preprocessing`: in each text, every run of characters without blanks that has an `@` inside becomes `[e-mail]`. Then
# give it its place in the ensemble of `repo`. Clients notice nothing: names and shapes of the ensemble stay as they are,
# and no other model changes.
#
# | Tensor of `mask` | | Type | `dims` | What |
# |---|---|---|---|---|
# | `TEXT` | in | STRING | `[ 1 ]` | what the client sends |
# | `MASKED` | out | STRING | `[ 1 ]` | what `preprocessing` gets |
#
# Its `max_batch_size` is 64, as that of the others. So a request may have several rows, each a text of its own. A text
# arrives as `bytes` in UTF-8. First the code:

# %%
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

# %%
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
# And the ensemble: edit `repo / "ensemble" / "config.pbtxt"` as text, or as the message that `repository.read_config`
# gives and `repository.write_config` takes. When it is done, set `extended` to `repo`.

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
# <details><summary>Where to look</summary>The lecture's section "A model by hand" has a model, its config and a step of an
# ensemble, each whole. In the ensemble's config, look for <code>text_input</code>: somebody takes it today, and is to
# take your tensor tomorrow.</details>
#
# <details><summary>How to begin</summary>Copy <code>to_text</code>, and let it return what it gets. Load it by the check,
# and only then change the text: <code>re.sub(r"\S+@\S+", …)</code> on <code>text.decode()</code>. A step may stand
# only behind those whose tensors it takes.</details>
#
# <details><summary>The error you see</summary>"… which no earlier step and no input gives": the value in an
# <code>input_map</code> is none of the ensemble's names, or its step comes later. "max_batch_size": that of a step is at
# least the ensemble's. A text that begins with <code>b'</code>: <code>str</code> was called on
# <code>bytes</code>.</details>

# %% [markdown]
# ## Exercise 2.2: three repositories that do not serve
#
# *Core · importance 5/5 · difficulty 3/5 · 20 minutes*
#
# Three colleagues hand you their repositories: `captions`, `search` and `chat`. Each has settings that its owner chose,
# and something is broken. Of one the check names everything; one only Triton refuses; in the last, tensors that fit
# everywhere have changed places. Repair the files where they are, and leave the settings alone: the check serves each of
# them, and compares it with what its owner had. Then set `repaired` to `broken`.

# %%
broken = broken_repositories(Path(folder.name) / "broken", engine_dir)
for name, path in broken.items():
    problems = [str(one).replace(f"{path}/", "") for one in repository.check(path)]
    print(name, *(problems or ["the check finds nothing"]), sep="\n    ")

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
# <details><summary>Where to look</summary><code>captions</code>: each message of the check ends with what to do; run the
# cell above again after each repair. <code>search</code>: start <code>Server(broken["search"])</code> in a cell, and read
# the reason. <code>chat</code>: compare <code>pd.DataFrame(repository.ensemble_edges(broken["chat"]))</code> with the same
# of a repository in good order.</details>
#
# <details><summary>How to begin</summary>With <code>captions</code>, and with one file. A config is text:
# <code>print(path.read_text())</code>, then <code>path.write_text(path.read_text().replace(…, …))</code>. For a key of
# <code>tensorrt_llm</code> there is <code>repository.edit</code>.</details>
#
# <details><summary>The error you see</summary>"its owner had …": a file came from another repository, or a setting was
# changed along. "AttributeError … has no attribute": Python names the line of <code>model.py</code>. "is to be answered
# with …": all is loaded, and the maps hand a tensor to the wrong input.</details>

# %% [markdown]
# ## Exercise 2.3: fill the templates for another engine
#
# *importance 4/5 · difficulty 2/5 · 10 minutes*
#
# Tomorrow there is another engine, its tokenizer lies in a folder of its own, and the service changes. Write
# `fill_for`: it makes a repository in `target`, by whatever tool you like, and returns its path.
#
# - `engine_dir`, `tokenizer_dir`: where they are. Every model that has a tokenizer gets this one.
# - `users`: how many of them must fit into the KV cache at the same time, each with the longest sequence that the engine
#   takes. The variable is `max_tokens_in_paged_kv_cache`; the limit stands in the engine's `config.json`.
# - `streams`: whether a request may get more than one response; `decoupled_mode`.


# %%
def fill_for(target, engine_dir, tokenizer_dir, users, streams):
    """A repository at `target` for this engine and this service; returns its path."""
    # BEGIN SOLUTION
    # LAB: return None
    longest = engine.read(engine_dir).build_config.max_seq_len
    return repository.assemble(
        target,
        engine_dir,
        tokenizer_dir=tokenizer_dir,
        max_tokens_in_paged_kv_cache=users * longest,
        decoupled_mode=streams,
    )
    # END SOLUTION


# %%
check("2.3", fill_for)

# %% [markdown]
# <details><summary>Where to look</summary>The lecture's section "Four templates" lists all variables. The engine's limit:
# <code>engine.read(engine_dir).build_config.max_seq_len</code>, or <code>json.loads</code> of its
# <code>config.json</code>.</details>
#
# <details><summary>How to begin</summary><code>repository.assemble(target, engine_dir)</code> fills all that has a
# default. Each variable can be given by its name; try it with <code>Path(folder.name) / "filled"</code> and the lab's own
# engine, and look at the files.</details>
#
# <details><summary>The error you see</summary>"The templates have no variable …": a typo in a name, with the nearest that
# there is. "For a hidden engine, … is wanted": the check's engines differ from the lab's in every folder and limit, so
# nothing may be written down.</details>

# %% [markdown]
# ## Exercise 2.4: who takes this tensor?
#
# *importance 3/5 · difficulty 2/5 · 10 minutes*
#
# Before a tensor is renamed or removed, one wants to know who would miss it. Write `takers`: given a repository and the
# name that a tensor has in the ensemble, it returns the models that take it, each with the model's own name for it, as a
# list of pairs, in the order of the steps. For `"text_input"` that is `[("preprocessing", "QUERY")]`.
#
# - `repository.read_config(path)` gives a `config.pbtxt` as a message.
# - The steps are in `config.ensemble_scheduling.step`; each has a `model_name` and an `input_map`.


# %%
def takers(repo: Path, tensor: str) -> list[tuple[str, str]]:
    """(model, input) of each step of the ensemble that takes `tensor`, in order."""
    # BEGIN SOLUTION
    # LAB: return None
    config = repository.read_config(Path(repo) / "ensemble" / "config.pbtxt")
    return [
        (step.model_name, own)
        for step in config.ensemble_scheduling.step
        for own, shared in step.input_map.items()
        if shared == tensor
    ]
    # END SOLUTION


# %%
check("2.4", takers)

# %% [markdown]
# <details><summary>Where to look</summary>In the ensemble's <code>config.pbtxt</code>: in an <code>input_map</code> the key
# is the model's own name, and the value the ensemble's. Look for the value.</details>
#
# <details><summary>How to begin</summary>Two loops: over the steps, and over
# <code>step.input_map.items()</code>.</details>
#
# <details><summary>The error you see</summary>"argument of type … is not iterable": you read the message itself. Its parts
# are attributes: <code>config.ensemble_scheduling.step</code>. "In a hidden ensemble …": the check asks about ensembles
# that it makes up, in the folder that it gives you.</details>

# %% [markdown]
# ## Bonus
#
# See your `mask` at work, with the real engine: this one gives back the prompt, as it saw it, in front of its answer.
# `repository.refit` puts another engine and other settings into a repository; tensors and code stay yours, and later labs
# serve it in this way. Then find out what your `mask` costs: ask a hundred times with it and without.

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
        "Who is ada@example.org, please?", max_tokens=24
    )
    print(answer.text)

# %% [markdown]
# ## Elsewhere
#
# Three questions of transfer, without running anything.
#
# 1. The service moves to a server with TensorRT-LLM and two GPUs, and the engine to another folder. Which of your files
#    change?
#
# <details><summary>Answer</summary>Only values: the engine's folder, the backend of <code>tensorrt_llm</code>, and where
# the tokenizer lies. <code>mask</code> and its place in the ensemble stay, as far as the release has the same names of
# tensors.</details>
#
# 2. The service begins to stream. Your `mask` is a step of a decoupled ensemble now. How often does it run for one
#    request? And could it do the same for the answer, behind `postprocessing`?
#
# <details><summary>Answer</summary>Once, as it stands before the engine. Behind it, it would run for each piece, and an
# address that is spread over several pieces would pass: it would have to remember the end of the piece
# before.</details>
#
# 3. A client was written for the ensemble before `mask` was there. Does it still work? And one that asked
#    `preprocessing` itself, as some do?
#
# <details><summary>Answer</summary>The first works and is protected. The second works too, and its addresses reach the
# model: an ensemble protects only those who use it, so the other models have to be closed to clients.</details>

# %% tags=["nbval-ignore-output"]
session.running()

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
