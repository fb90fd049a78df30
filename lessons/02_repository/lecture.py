# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **assemble** a model repository;
# - **trace** every tensor through it;
# - **repair** one that does not load.
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

# %%
import re
import subprocess
import tempfile
import textwrap
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd
import tritonclient.grpc as triton
from IPython.display import Markdown, display
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

pd.set_option("display.max_colwidth", None)  # messages are to be read to their end

# %% tags=["nbval-ignore-output"]
from inflight import CourseError
from inflight.checkpoint import fetch
from inflight.engine import cached
from inflight.notebook import charts, widgets
from inflight.triton import Client, Server, repository

engine_dir = cached(fetch())
folder = tempfile.TemporaryDirectory()  # it goes with the notebook's kernel
print(f"engine: {engine_dir.name}")

# %% [markdown]
# ## Predict
#
# A client sends two tensors, a text and the most tokens it wants, and gets its answer. Between the two, three models
# hand each other tensors: text to token ids, token ids to more token ids, token ids to text.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "How many tensors are handed over in all, those of the client included?"
)
guess

# %% [markdown]
# ## Assemble
#
# A **model repository** is a folder with one folder a model. `config.pbtxt` says what flows in and out and how the
# model is run; the folder `1` holds version 1 of the model itself. `assemble` makes one from the templates in
# `assets/repository/`, and fills in what depends on your machine: where the engine is.

# %%
repo = repository.assemble(Path(folder.name) / "repo", engine_dir)
configs = {
    model: repository.read_config(repo / model / "config.pbtxt")
    for model in repository.models(repo)
}
overview = pd.DataFrame(
    {
        model: {
            "run by": config.backend or config.platform,
            "inputs": len(config.input),
            "outputs": len(config.output),
            "parameters": len(config.parameters),
            "decoupled": config.model_transaction_policy.decoupled,
        }
        for model, config in configs.items()
    }
).T
overview

# %% [markdown]
# Three models are run by the Python **backend**: Triton loads their `model.py`. The fourth, the **ensemble**, has no
# code. It is a list of steps, and Triton itself carries the tensors between them; its folder `1` is empty.
# **Decoupled** means that a request may get more than one response; streaming needs it, and here it is off. Most of
# the engine's inputs are there for outside clients alone: [Whose clients?](#Whose-clients?) says why.

# %%
text = (repo / "postprocessing" / "config.pbtxt").read_text()
print(text.partition("instance_group")[0])

# %% [markdown]
# One file, read aloud: the model takes token ids, `[-1, -1]` for any number of beams and any length, and gives text.
# `max_batch_size` adds one more dimension in front of all of them. The two optional inputs let it join a streamed text
# without losing a space or half a character.

# %%
problems = repository.check(repo)
print(
    f"{len(problems)} problems in {len(configs)} files, found without starting anything"
)

# %% [markdown]
# ## Run
#
# Triton reads the same files. One state a model: READY, or UNAVAILABLE with a reason.

# %%
server = Server(repo).start()
client = Client(server.grpc_url)
pd.DataFrame(server.models())

# %% tags=["nbval-ignore-output"]
question = "Name the capital of France."
answer = client.ask(question)
print(
    f"{answer.text!r} after {answer.latency_s * 1000:.0f} ms, "
    f"through {len(configs)} models"
)

# %% [markdown]
# ## See
#
# The repository as a tree, and each model's folder at the height of the model it describes. An arrow is read from the
# ensemble's `output_map` and `input_map`: two steps are connected where both use the same name for a tensor. At the
# arrow: what the sender calls it, what the receiver calls it, its type, its shape without the batch dimension.

# %%
edges = pd.DataFrame(repository.ensemble_edges(repo))
files = [
    str(path.relative_to(repo))
    for path in sorted(repo.rglob("*"))
    if path.suffix in (".pbtxt", ".py")
]
optional = edges[edges.optional]
alt = (
    f"A tree of {len(files)} files in {len(configs)} folders beside a graph. "
    "The client's request goes down through preprocessing, tensorrt_llm and "
    "postprocessing, and back to the client, "
    f"over {len(edges)} possible tensors. {len(optional)} of them are optional, "
    f"and {sum(optional.source == 'client')} of the optional ones come from the client."
)
charts.show(charts.repository_map(files, edges), alt)
Markdown(alt)

# %% [markdown]
# The optional ones, by name. The client's go past preprocessing, straight to the engine, unless they are words that
# have to become token ids first.

# %%
optional.groupby(["source", "target"]).tensor.agg(["count", ", ".join]).rename(
    columns={"join": "tensors"}
)

# %% [markdown]
# ## Explain
#
# An optional tensor of the client travels only when it is sent. What a model puts out always travels. So the files
# alone tell the number for a request with nothing optional:

# %%
sent = edges[~((edges.source == "client") & edges.optional)]
counts = sent.groupby(["source", "target"], sort=False).size()
for (source, target), count in counts.items():
    print(f"{count}  from {source} to {target}")
print(f"{counts.sum()}  in all")

# %% [markdown]
# Now be the ensemble. `call` asks one model with plain `tritonclient`, which knows nothing but tensor names;
# `hand_over` does what the maps say: it picks one model's outputs and renames them to the next one's inputs.


# %%
def call(model: str, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    inputs = [
        triton.InferInput(
            name, array.shape, np_to_triton_dtype(array.dtype)
        ).set_data_from_numpy(array)
        for name, array in tensors.items()
    ]
    result = plain_client.infer(model, inputs, headers=server.headers)
    return {
        output.name: result.as_numpy(output.name)
        for output in result.get_response().outputs
    }


def hand_over(source: str, target: str, tensors: dict) -> dict:
    rows = edges[(edges.source == source) & (edges.target == target)]
    return {
        row.input: tensors[row.output]
        for row in rows.itertuples()
        if row.output in tensors
    }


plain_client = triton.InferenceServerClient(server.grpc_url)

# %%
request = {
    "text_input": np.array([[question.encode()]], object),
    "max_tokens": np.array([[16]], np.int32),
}
to_preprocessing = hand_over("client", "preprocessing", request)
ids = call("preprocessing", to_preprocessing)
to_engine = hand_over("preprocessing", "tensorrt_llm", ids)
tokens = call("tensorrt_llm", to_engine)
to_postprocessing = hand_over("tensorrt_llm", "postprocessing", tokens)
words = call("postprocessing", to_postprocessing)
to_client = hand_over("postprocessing", "client", words) | hand_over(
    "tensorrt_llm", "client", tokens
)
print(
    "by hand and by the ensemble the same text:",
    to_client["text_output"].item().decode() == answer.text,
)

# %% tags=["nbval-ignore-output"]
handed = {
    "preprocessing": to_preprocessing,
    "tensorrt_llm": to_engine,
    "postprocessing": to_postprocessing,
    "client": to_client,
}
pd.DataFrame(
    [
        {
            "to": target,
            "tensor": name,
            "type": np_to_triton_dtype(array.dtype),
            "shape": str(array.shape),
            "value": str(array.reshape(-1).tolist())[:60],
        }
        for target, tensors in handed.items()
        for name, array in tensors.items()
    ]
)

# %%
moved = sum(len(tensors) for tensors in handed.values())
prompt_tokens = to_engine["input_ids"].shape[1]
Markdown(
    f"The files said {counts.sum()}; **{moved}** were handed over. "
    f"{guess.score(moved)} "
    f"The {len(question)} characters became {prompt_tokens} token ids, because the "
    "chat template puts its own words around them. The batch dimension in front is 1: "
    "one request. Only the text comes without it, as TensorRT-LLM's clients expect."
)

# %% [markdown]
# ## The same edit, three ways
#
# You want another scheduling policy. In a TensorRT-LLM lab you would meet `sed` or `fill_template.py`, which is
# Python's `Template.safe_substitute` behind a command line. Both change text. The course changes the file as what it
# is, a **protobuf** message of type `ModelConfig`, with `repository.edit`.

# %%
template = (repository.TEMPLATES / "tensorrt_llm" / "config.pbtxt").read_text()
config_file = repo / "tensorrt_llm" / "config.pbtxt"


def with_sed(name, value):
    done = subprocess.run(
        ["sed", f"s/${{{name}}}/{value}/"],
        input=template,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CourseError(done.stderr.strip())
    return done.stdout


# %%
def with_template(name, value):
    return Template(template).safe_substitute({name: value})


def with_protobuf(name, value):
    repository.edit(repo, "tensorrt_llm", **{name: value})
    return config_file.read_text()


# %% [markdown]
# And one that tells what an edit came to. It fills the rest of the template, so that a file that got broken is noticed,
# and puts the repository back as it was.


# %%
def outcome(edit, name, value):
    before = config_file.read_text()
    try:
        after = edit(name, value)
    except CourseError as error:
        return f"refused: {error}"
    finally:
        config_file.write_text(before)
    try:
        written = repository.get_parameter(
            repository.fill(after, repository.DEFAULTS), name
        )
    except CourseError as error:
        return f"broke the file: {error}"
    return "wrote it" if written == value else "changed nothing, said nothing"


# %% tags=["nbval-ignore-output"]
attempts = {
    "all as it should be": ("batch_scheduler_policy", "max_utilization"),
    "typo in the name": ("batch_schedular_policy", "max_utilization"),
    "typo in the value": ("batch_scheduler_policy", "max_utilisation"),
    "a path as value": ("iteration_log_path", "/tmp/iterations.jsonl"),
    "quotes in the value": ("iteration_log_path", 'my "best" log'),
}
ways = {"sed": with_sed, "fill_template": with_template, "protobuf": with_protobuf}
outcomes = pd.DataFrame(
    {
        way: {what: outcome(edit, *attempt) for what, attempt in attempts.items()}
        for way, edit in ways.items()
    }
)
outcomes

# %%
silent = (outcomes == "changed nothing, said nothing").sum()
Markdown(
    f"Edits that came to nothing without a word: `sed` **{silent['sed']}**, "
    f"`fill_template` **{silent['fill_template']}**, protobuf "
    f"**{silent['protobuf']}**. Text tools also take any value: the backend would "
    "start with its default policy, and write one line of warning into a long log."
)

# %% [markdown]
# Protobuf has its price. A message has no comments, so whoever writes it back loses them:

# %%
comments = {
    name: file.count("#")
    for name, file in (("template", template), ("repository", config_file.read_text()))
}
print(
    f"comments in the template: {comments['template']}, in the assembled file: "
    f"{comments['repository']}"
)

# %% [markdown]
# ## Turn the knob
#
# The same edit with a mouse. Every key of `tensorrt_llm` has a field; what it does not take is refused before
# anything is written. **Apply** writes the file and loads the model again; **Undo** goes one step back. Try:
#
# - `exclude_input_in_output` at `false`, then **Apply**: what does `client.ask(question).text` give in a cell of your
#   own?
# - `max_tokens_in_paged_kv_cache` at `many`, then at `64`: who refuses each of them?

# %% tags=["nbval-ignore-output"]
editor = widgets.ConfigEditor(repo, "tensorrt_llm", server)
editor

# %% [markdown]
# The next cells press the same buttons, whatever you left in the fields. With `exclude_input_in_output` off, the engine gives back the prompt too, as
# it saw it.

# %% tags=["nbval-ignore-output"]
display(Markdown(editor.apply(exclude_input_in_output="false")))
with_prompt = client.ask(question).text
print(with_prompt)

# %% [markdown]
# There they are, the tokens that your question did not have: the chat template's words, and the roles. Now two values
# that are refused:

# %% tags=["nbval-ignore-output"]
for value in ("many", "64"):
    said = editor.apply(max_tokens_in_paged_kv_cache=value)
    display(Markdown(f"`{value}`: {said}"))

# %% [markdown]
# The first is no number, so the file was never touched. The second is one, and only the engine knows that it is too
# small: it was written, loaded, refused, and the file put back. Meanwhile the server went on with the model it had.

# %% tags=["nbval-ignore-output"]
display(Markdown(editor.undo()))
print(
    f"the answer has {len(with_prompt)} characters before Undo, "
    f"{len(client.ask(question).text)} after"
)

# %% [markdown]
# ## On the lab GPU
#
# The same repository with TensorRT-LLM {{name.tensorrt_llm}}. The templates come from the container, never from the
# course or from a tutorial: their variables change from release to release.
#
# {{name.tried}}
#
# | Step | Here | There |
# |---|---|---|
# | take the templates | `assemble("repo", engine)` | copy `all_models/inflight_batcher_llm`, without `tensorrt_llm_bls` |
# | fill them | in the same call | `{{line.fill}}`, once a file |
# | look for what was forgotten | `repository.check("repo")` | `grep` for `${` outside quotes |
# | start | `Server("repo").start()` | `{{line.launch}}` |
#
# All but the last is `lab.sh fill`:
#
# ```bash
# {{function.fill_model}}
#
# {{function.fill}}
# ```
#
# For lesson 03, which streams: `lab.sh fill inflight_fused_batching guaranteed_no_evict True`. What to know there:
#
# - A variable inside quotes may stay unfilled and means "default"; one outside quotes makes the file unreadable, and the
#   model is missing. `max_queue_delay_microseconds` is one of those, and releases bring new ones:
#   `encoder_input_features_data_type` in 0.15, `logits_datatype` in 0.17.
# - A variable that is not in the file is ignored up to 0.18, and an `AssertionError` from 0.19 on. Hence `fill_model`,
#   which looks first; and fresh templates each time, for a filled file has no variables left.
# - A comma or a colon inside a value ends the script with an error; from 0.16 a comma can be escaped, as in `0\,1`.
#   No blank may follow a comma between two variables.
# - `decoupled_mode` is decided here: `True` for streams, `False` for `benchmark_core_model.py`, `infer` and V1.
# - `tensorrt_llm_bls`, a fifth model, does in Python what the ensemble does with maps. It is copied along, and unfilled
#   it cannot be read: fill it or delete it.
# - Up to 0.8 two templates had `tokenizer_type`, which the first workshops filled with `llama`; later the tokenizer's own
#   files tell. `batch_scheduler_policy:guaranteed_completion`, from the same time: lesson 05.
# - The templates leave the chat template to the client; `apply_chat_template` is the course's own.
# - The launcher starts Triton without explicit control of its models, so a changed file needs a restart; on one GPU
#   `lab.sh serve` starts it with.

# %% [markdown]
# ## Whose clients?
#
# Names, types and shapes of the outer tensors are a **contract** with every client ever written. TensorRT-LLM's has
# changed since its first release, mostly by additions. The course's repository has the one of 0.9 to 0.19: fields that
# this engine has no use for are taken when they ask for nothing, and refused with the reason when they do. Clients of
# the first workshops, of 0.5, are served by `assemble(…, contract="0.5")`, on the command line `--contract 0.5`.

# %%
charts.table(pd.DataFrame(repository.contract_differences()))

# %% [markdown]
# Each row has broken somebody's client: at its first request when a type or a required input changed, or with a wrong
# figure and no error at all when the prompt came to be left out of the answer.

# %% [markdown]
# ## What breaks
#
# Five repositories, one fault each. Some are seen by the check, before anything starts. Some only by Triton, when it
# loads the model. And there is a third possibility.

# %%
FAULTS = {  # what is wrong: file, what stands there, what stands there instead
    "a variable is not filled": (
        "preprocessing/config.pbtxt",
        r"max_batch_size: \d+",
        "max_batch_size: ${triton_max_batch_size}",
    ),
    "a type does not fit": (
        "postprocessing/config.pbtxt",
        r'(TOKENS_BATCH"\s+data_type: )TYPE_INT32',
        r"\1TYPE_INT64",
    ),
    "the engine is elsewhere": (
        "tensorrt_llm/config.pbtxt",
        re.escape(str(engine_dir)),
        "/engines/model",
    ),
    "model.py has a typo": (
        "postprocessing/1/model.py",
        r"triton_model\.parameters",
        "triton_mode.parameters",
    ),
    "stop and bad words are crossed": (
        "ensemble/config.pbtxt",
        "(STOP|BAD)_WORDS_DICT",
        lambda match: {"STOP": "BAD", "BAD": "STOP"}[match[1]] + "_WORDS_DICT",
    ),
}
WHO = ["the check", "only Triton", "nobody"]

# %% tags=["nbval-ignore-output"]
guesses = {name: widgets.predict(f"{name}: who sees it?", WHO) for name in FAULTS}
display(*guesses.values())


# %% [markdown]
# `attempt` makes the fault, lets the check look, makes Triton load the changed model, asks a question whose answer
# is to stop at the word "of", and repairs the file.


# %%
def triton_says(model: str) -> str:
    try:
        plain_client.load_model(
            model, headers=server.headers
        )  # they carry a key: nobody else may
    except InferenceServerException as error:
        return error.message().partition("\n")[0]
    gone = [row for row in server.models() if row.state != "READY"]
    return f"{gone[0].name} is {gone[0].state}: {gone[0].reason}" if gone else ""


def stopped_answer() -> str:
    try:
        return "the answer " + repr(
            client.ask(question, max_tokens=24, stop_words=[" of"]).text
        )
    except CourseError as error:
        return f"the error {str(error)!r}"


# %%
def attempt(name: str) -> None:
    file, old, new = FAULTS[name]
    path, intact = repo / file, (repo / file).read_text()
    path.write_text(re.sub(old, new, intact))
    found, refused, answer = (
        repository.check(repo),
        triton_says(file.split("/")[0]),
        stopped_answer(),
    )
    path.write_text(intact)
    server.load(file.split("/")[0])
    caught[name] = WHO[0] if found else WHO[1] if refused else WHO[2]
    report = {
        "the check says": found[0] if found else "nothing",
        "Triton says": refused or "READY",
        "meanwhile a client gets": answer,
        "it was": caught[name],
        "you": guesses[name].score(caught[name]),
    }
    for who, what in report.items():
        print(
            textwrap.fill(
                f"{who}: {what}".replace(f"{repo}/", ""), 110, subsequent_indent="    "
            )
        )


# %% tags=["nbval-ignore-output"]
caught = {}
print("in good order, a client gets", stopped_answer())

# %% tags=["nbval-ignore-output"]
attempt("a variable is not filled")

# %% [markdown]
# The check names file, line and variable. Triton's answer names none of them; only its log does. The client noticed
# nothing: a model that cannot be loaded again goes on as it was. After a restart it would be gone.

# %% tags=["nbval-ignore-output"]
attempt("a type does not fit")

# %% [markdown]
# Triton is content with `postprocessing` alone, and then takes the ensemble away, because its parts no longer fit. The
# model that you changed is READY; the one that clients use is not.

# %% tags=["nbval-ignore-output"]
attempt("the engine is elsewhere")

# %% [markdown]
# The path is well-formed, and whether it leads anywhere is known only on the machine that serves. So the check passes
# it, and the engine speaks up.

# %% tags=["nbval-ignore-output"]
attempt("model.py has a typo")

# %% [markdown]
# No file but `config.pbtxt` is checked. Python is only read when it runs.

# %% tags=["nbval-ignore-output"]
attempt("stop and bad words are crossed")

# %% [markdown]
# Both tensors are STRING `[-1]`, so names, types and shapes all fit, and every model is READY. But the word at which
# the answer should stop is now one that it may not use. TensorRT-LLM 0.5 shipped with a relative of this fault: its
# maps left the stop words unconnected, and they had no effect. Only a test that asks for the behaviour finds it.

# %%
assert len(repository.check(repo)) == 0 and set(caught) == set(FAULTS)
right = sum(guesses[name].value == who for name, who in caught.items())
display(
    pd.DataFrame(
        {
            "you said": {name: guesses[name].value or "nothing" for name in caught},
            "it was": caught,
        }
    )
)
print(f"{right} of {len(caught)} as you said; the repository is whole again")

# %% [markdown]
# The course's own `Server` runs the check first, so it does not even start on a repository that cannot work:

# %%
broken = repository.assemble(Path(folder.name) / "broken", engine_dir)
broken_file = broken / "ensemble" / "config.pbtxt"
broken_file.write_text(
    broken_file.read_text().replace(
        'value: "_TOKENS_BATCH"', 'value: "_TOKEN_BATCH"', 1
    )
)
try:
    Server(broken).start()
except CourseError as error:
    print(str(error).replace(f"{broken}/", ""))

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()  # the widgets above need the server: it ends with the notebook

# %% [markdown]
# ## Recap
#
# - A model repository is a folder a model; `config.pbtxt` names what flows in and out, `1/` holds the model.
# - An ensemble is maps, not code: two steps are connected where they use the same name for a tensor.
# - `-1` in a shape fits any length, and `max_batch_size` adds one dimension in front of every shape.
# - Text tools write typos without a word. Protobuf knows fields and types, and the course's check knows keys and
#   values.
# - Ask in this order: what does the check say, what is each model's state, what does the log's last error say, and
#   does the answer do what was asked?
#
# Three questions, without running anything:
#
# <details><summary>1. The ensemble has an optional input <code>temperature</code>. Which models get a tensor when a
# client does not send it?</summary>None. An optional tensor that was not sent is not handed over, and
# <code>tensorrt_llm</code> uses its default.</details>
#
# <details><summary>2. You fill <code>engine_dir</code> with <code>sed s/…/…/</code> and the path has slashes. What
# happens?</summary><code>sed</code> takes the first slash of the path as the end of the pattern's replacement, and
# stops with an error. That is its good case: with a typo in the name it says nothing.</details>
#
# <details><summary>3. A model was edited, could not be loaded again, and clients are still served. Is all
# well?</summary>No. The server goes on with what it had loaded, and the file on disk is broken. The next restart
# brings the fault to light.</details>

# %% [markdown]
# Now the [lab]({lab}), then the next lesson: {next}.
