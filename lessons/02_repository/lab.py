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

import httpx
import pandas as pd

from inflight import engine
from inflight.checkpoint import fetch
from inflight.notebook import broken_repositories, check, session
from inflight.triton import Server, repository

pd.set_option("display.max_colwidth", None)  # messages are to be read to their end
folder = tempfile.TemporaryDirectory()  # it goes with the notebook's kernel

# %% tags=["nbval-ignore-output"]
engine_dir = engine.cached(fetch())
repo = repository.assemble(Path(folder.name) / "repo", engine_dir)
(repo / "usage" / "1").mkdir(parents=True)
print(f"engine: {engine_dir.name}")

# %% [markdown]
# ## Exercise 2.1: a model of your own in the ensemble
#
# *Core · importance 5/5 · difficulty 3/5 · 20 minutes*
#
# A service bills by the token: each answer is to say how many tokens its prompt had, and how many it has itself. Write
# the model `usage` from blank files, and give the ensemble in `repo` one more output, `usage`, INT32 with `dims: [ 2 ]`:
# the two numbers, prompt first. No other model changes.
#
# | Tensor of `usage` | | Type | `dims` | What |
# |---|---|---|---|---|
# | `PROMPT_TOKENS` | in | INT32 | `[ 1 ]` | tokens of the prompt: what `preprocessing` calls `REQUEST_INPUT_LEN` |
# | `ANSWER_TOKENS` | in | INT32 | `[ -1 ]` | tokens of each beam of the answer: `sequence_length` of `tensorrt_llm` |
# | `USAGE` | out | INT32 | `[ 2 ]` | tokens of the prompt, and of all beams of the answer |
#
# Its `max_batch_size` is 64, as that of the others. So a request may have several rows, and each is billed for itself.
# First the code:

# %%
# %%writefile {repo}/usage/1/model.py
# # BEGIN SOLUTION
# # LAB: # your class TritonPythonModel
# import numpy as np
# import triton_python_backend_utils as pb_utils
#
#
# class TritonPythonModel:
#     """Prompt and answer of each row in tokens, for the bill."""
#
#     def execute(self, requests):
#         return [self.answer(request) for request in requests]
#
#     def answer(self, request):
#         prompt = pb_utils.get_input_tensor_by_name(request, "PROMPT_TOKENS").as_numpy()
#         beams = pb_utils.get_input_tensor_by_name(request, "ANSWER_TOKENS").as_numpy()
#         answer = beams.sum(axis=1, keepdims=True)
#         usage = np.hstack([prompt, answer]).astype(np.int32)
#         return pb_utils.InferenceResponse([pb_utils.Tensor("USAGE", usage)])
# # END SOLUTION

# %% [markdown]
# Then its config:

# %%
# %%writefile {repo}/usage/config.pbtxt
# # BEGIN SOLUTION
# # LAB: # your config
# name: "usage"
# backend: "python"
# max_batch_size: 64
# input [
#   { name: "PROMPT_TOKENS"  data_type: TYPE_INT32  dims: [ 1 ] },
#   { name: "ANSWER_TOKENS"  data_type: TYPE_INT32  dims: [ -1 ] }
# ]
# output [ { name: "USAGE"  data_type: TYPE_INT32  dims: [ 2 ] } ]
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
step = config.ensemble_scheduling.step.add(model_name="usage", model_version=-1)
step.input_map["PROMPT_TOKENS"] = "_REQUEST_INPUT_LEN"
step.input_map["ANSWER_TOKENS"] = "_SEQUENCE_LENGTH"
step.output_map["USAGE"] = "usage"
config.output.add(name="usage", data_type="TYPE_INT32", dims=[2])
repository.write_config(config, config_file)
extended = repo
# END SOLUTION

# %%
check("2.1", extended)

# %% [markdown]
# <details><summary>Where to look</summary>The lecture's section "A model by hand" has a model, its config and a step of an
# ensemble, each whole. Which names the ensemble has for the two tensors, its config says: look for
# <code>REQUEST_INPUT_LEN</code> and <code>sequence_length</code> in the <code>output_map</code>s.</details>
#
# <details><summary>How to begin</summary>Copy <code>to_ids</code>, give it two inputs, and let it return zeros of shape
# <code>[rows, 2]</code>. Load it by the check, and only then compute. <code>np.hstack</code> puts two arrays of
# <code>[rows, 1]</code> side by side.</details>
#
# <details><summary>The error you see</summary>"… which no earlier step and no input gives": the value in your
# <code>input_map</code> is none of the ensemble's names. "max_batch_size": that of a step is at least the ensemble's.
# "unexpected shape for output": the first dimension of what you give is the number of rows.</details>

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
# <details><summary>How to begin</summary>With <code>captions</code>, and with one file. In JupyterLab's editor a
# <code>config.pbtxt</code> is plain text; or use <code>repository.edit</code> for a key of
# <code>tensorrt_llm</code>.</details>
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
# - `users`: so many of them must fit into the KV cache at the same time, each with the longest sequence that the engine
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
# See your `usage` at work, with the real engine: each answer brings its bill. Then let it say a third number, the price,
# and find out what else has to change.

# %% tags=["nbval-ignore-output"]
if extended is not None:
    server = Server(extended).start()
    for prompt in ("Hello", "Name three rivers of Europe, and a town on each."):
        url = f"{server.http_url}/v2/models/ensemble/generate"
        body = {"text_input": prompt, "max_tokens": 24}
        reply = httpx.post(url, json=body, headers=server.headers, timeout=60).json()
        print(reply["usage"], repr(reply["text_output"]))

# %% [markdown]
# Another engine, other settings, and the tensors and the code are still yours: `repository.refit` puts them in, as later
# labs do.

# %%
if extended is not None:
    smaller = repository.refit(
        extended, Path(folder.name) / "smaller", engine_dir, decoupled_mode=True
    )
    print(*repository.models(smaller))

# %% [markdown]
# ## Elsewhere
#
# Three questions of transfer, without running anything.
#
# 1. The service moves to a server with TensorRT-LLM and two GPUs, and the engine to another folder. Which of your files
#    change?
#
# <details><summary>Answer</summary>Only values: the engine's folder, the backend of <code>tensorrt_llm</code>, and where
# the tokenizer lies. The ensemble's maps and <code>usage</code> stay as they are, as far as the release has the same
# names of tensors.</details>
#
# 2. The service begins to stream. Your `usage` is one step of a decoupled ensemble now. How often does it run for one
#    request, and what does each run say?
#
# <details><summary>Answer</summary>Once for each response of the engine, and each says the tokens of its own piece: the
# client adds up the second number and takes the first once. A model that sees single tensors cannot know the
# sum.</details>
#
# 3. A client was written for the ensemble before `usage` was there. Does it still work? And one that asked for
#    `usage` with `dims: [ 1 ]`?
#
# <details><summary>Answer</summary>The first works: an output more breaks nobody who does not ask for it. The second
# gets two numbers where it expects one. Names, types and shapes are a contract; to add is safe, to change is
# not.</details>

# %% tags=["nbval-ignore-output"]
session.running()

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
