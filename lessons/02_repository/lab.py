# %% [markdown]
# # {heading}
#
# Three exercises, 35 minutes. Each ends with a `check`, which never stops the notebook. Work on a copy of this file if
# you want to keep it.
#
# {navigation}

# %%
import tempfile
from pathlib import Path

import httpx
import pandas as pd

from inflight.checkpoint import fetch
from inflight.engine import cached
from inflight.notebook import break_repository, check
from inflight.triton import Server, repository

pd.set_option("display.max_colwidth", None)  # messages are to be read to their end
folder = tempfile.TemporaryDirectory()  # the last cell removes it

# %% tags=["nbval-ignore-output"]
engine_dir = cached(fetch())
repo = repository.assemble(Path(folder.name) / "repo", engine_dir)
print(f"engine: {engine_dir.name}")

# %% [markdown]
# ## Exercise 2.1 · Who takes this tensor?
#
# 10 minutes, easy. Write `takers`: given a repository and the ensemble's name of a tensor, it returns the models that
# take this tensor, each with the name of the model's own input, as a list of pairs. For `"text_input"` that is
# `[("preprocessing", "QUERY")]`.
#
# - `repository.read_config(path)` gives a `config.pbtxt` as a message.
# - The steps are in `config.ensemble_scheduling.step`, in order; each has a `model_name` and an `input_map`.


# %%
def takers(repo: Path, tensor: str) -> list[tuple[str, str]]:
    """(model, input) of each step of the ensemble that takes `tensor`, in order."""
    # BEGIN SOLUTION
    # LAB: return None
    steps = repository.read_config(
        Path(repo) / "ensemble" / "config.pbtxt"
    ).ensemble_scheduling.step
    return [
        (step.model_name, own)
        for step in steps
        for own, shared in step.input_map.items()
        if shared == tensor
    ]
    # END SOLUTION


# %%
for tensor in ("text_input", "_INPUT_ID", "_SEQUENCE_LENGTH"):
    print(tensor, takers(repo, tensor))

# %%
check("2.1", takers)

# %% [markdown]
# <details><summary>Hint 1</summary>In an <code>input_map</code> the key is the model's own name and the value is the
# ensemble's name. Look for the value.</details>
#
# <details><summary>Hint 2</summary>An <code>input_map</code> behaves like a dict: <code>for own, shared in
# step.input_map.items()</code>.</details>
#
# <details><summary>I get "argument of type … is not iterable"</summary>You read the message itself. Its parts are
# attributes: <code>config.ensemble_scheduling.step</code>.</details>

# %% [markdown]
# ## Exercise 2.2 · Four faults
#
# 15 minutes, medium. `break_repository` has put four faults into a repository. The check names three of them. The
# fourth it cannot see: two tensors of the same type and shape have changed places. Find it by looking at what
# is connected with what.
#
# Repair the files in the way you like: in JupyterLab's editor, with `repository.edit`, or with
# `repository.read_config` and `repository.write_config`. Then set `repaired` to `broken`.

# %%
broken = break_repository(repository.assemble(Path(folder.name) / "broken", engine_dir))
pd.DataFrame(repository.check(broken)).replace({f"{broken}/": ""}, regex=True)

# %%
repaired = None
# BEGIN SOLUTION
# LAB: # your repairs; then set repaired
file = broken / "postprocessing" / "config.pbtxt"
file.write_text(
    file.read_text().replace("data_type: TYPE_FP32", "data_type: TYPE_INT32")
)
file = broken / "tensorrt_llm" / "config.pbtxt"
file.write_text(
    file.read_text().replace("guaranteed_no_eviction", "guaranteed_no_evict")
)
file = broken / "ensemble" / "config.pbtxt"
config = repository.read_config(file)
engine_step = config.ensemble_scheduling.step[1]
engine_step.input_map["input_ids"] = "_INPUT_ID"
engine_step.input_map["input_lengths"] = "_REQUEST_INPUT_LEN"
engine_step.input_map["request_output_len"] = "_REQUEST_OUTPUT_LEN"
repository.write_config(config, file)
repaired = broken
# END SOLUTION

# %%
check("2.2", repaired)

# %% [markdown]
# <details><summary>Hint 1</summary>Repair what the check names and run it again. Each message ends with what to
# do.</details>
#
# <details><summary>Hint 2</summary>For the fourth, compare
# <code>pd.DataFrame(repository.ensemble_edges(broken))</code> with the same of <code>repo</code>, which is in good
# order.</details>
#
# <details><summary>Hint 3</summary>With this fault a question with <code>max_tokens</code> 4 is cut to its first four
# tokens, and the answer is as long as the question was.</details>

# %% [markdown]
# ## Exercise 2.3 · Tell the client how long its prompt was
#
# 10 minutes, medium. A service bills by the token, so it wants to know how many tokens a prompt came to.
# `preprocessing` knows it: its output `REQUEST_INPUT_LEN`. Give the ensemble in `repo` one more output,
# `prompt_tokens`, INT32 with `dims: [ 1 ]`, that carries it to the client. No Python has to be changed.
#
# - The ensemble's name of that tensor is `_REQUEST_INPUT_LEN` now. An output of the ensemble has the name of the tensor
#   that it carries.
# - Somebody else takes the tensor too, and must still get it. Your `takers` knows who.
#
# When it is done, set `extended` to `repo`.

# %%
extended = None
# BEGIN SOLUTION
# LAB: # your change of repo / "ensemble" / "config.pbtxt"; then set extended
file = repo / "ensemble" / "config.pbtxt"
text = file.read_text().replace('"_REQUEST_INPUT_LEN"', '"prompt_tokens"')
file.write_text(
    text + 'output { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ 1 ] }\n'
)
extended = repo
# END SOLUTION

# %%
check("2.3", extended)

# %% [markdown]
# <details><summary>Hint 1</summary>Rename the tensor wherever the ensemble uses it: in one <code>output_map</code>
# and in one <code>input_map</code>.</details>
#
# <details><summary>Hint 2</summary>Then add to the file:
# <code>output { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ 1 ] }</code>.</details>
#
# <details><summary>I get "needs the input … which the step does not give"</summary>The key of a map is the model's
# own name and stays. Change the value.</details>

# %% [markdown]
# When the check is content, see it at work: the new output arrives with the text.

# %% tags=["nbval-ignore-output"]
if extended is not None:
    with Server(extended) as server:
        url, body = (
            f"{server.http_url}/v2/models/ensemble/generate",
            {"text_input": "Hello", "max_tokens": 8},
        )
        reply = httpx.post(url, json=body, headers=server.headers, timeout=60).json()
    print(pd.Series(reply)[["text_output", "prompt_tokens"]])

# %%
folder.cleanup()

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
