# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **read** a GPT-2's forward pass for many texts at once, and serve it so that newcomers join at every pass;
# - **count** what it costs to compute a text again for every token, and **build** the KV cache that ends it;
# - **say** what an LLM engine has that your hundred lines lack.
#
# You need lesson 07 (the model that asks to be called again), and some PyTorch: the shape of a tensor, a slice of it.
# vLLM and TensorRT-LLM have a ragged batch and a KV cache too. Only the frame around them is Triton's.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# The research group next door has a model of its own. No LLM engine knows its architecture: there is a class in PyTorch
# and a checkpoint. Four users want to stream from it side by side. In lesson 07 a model gave a text back word by word,
# and Triton called it again for each. Now each word is computed: every call is a forward pass.
#
# A GPT-2 of 7.6 million parameters, trained for this course, stands for the group's model.

# %%
import os
import runpy
import sys
import tempfile
import textwrap
import timeit
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.express as px
import torch
import transformers

from inflight import CourseError
from inflight.checkpoint import load_tokenizer
from inflight.lessons import iterative_gpt2 as lesson
from inflight.lessons.iterative_gpt2 import gpt2_client
from inflight.models import gpt2_checkpoint
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.triton import Server, repository

session.others()

# %% [markdown]
# You write two models that differ in one file, `step.py`; the course's own stands beside them.

# %%
folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
repo = Path(folder.name) / "repo"
checkpoint_dir = gpt2_checkpoint.find("course-gpt2")
settings = {"gpt2_checkpoint_dir": checkpoint_dir, "gpt2_dtype": "float32"}
repository.assemble(repo, models=("iterative-gpt2",), **settings)
os.environ["OMP_NUM_THREADS"] = "1"  # each GPT-2 computes with one thread
with progress.wait("The server starts and loads a model"):
    server = Server(repo).start()
by_hand, cached = repo / "hand-gpt2", repo / "cached-gpt2"
for model in by_hand, cached:
    (model / "1").mkdir(parents=True)
    (model / "1" / "checkpoint").symlink_to(checkpoint_dir)
    (model / "config.pbtxt").write_text(lesson.config(model.name))
for same_file in "network.py", "model.py":
    (cached / "1" / same_file).symlink_to(by_hand / "1" / same_file)

# %% [markdown]
# ## One pass for many texts
#
# GPT-2 is a stack of layers. Each adds to a token's vector what attention finds, and then what a small network, the MLP,
# makes of it. Norms, matrices and MLP treat each token by itself, so the tokens of all texts may stand one after the
# other, without [padding](glossary.md#Padding):
#
# - `ids` are the tokens, `positions` their places in their own texts;
# - `cu_seqlens`, the *cumulative sequence lengths*, say where each text ends: three texts of 6, 5 and 7 tokens give
#   0, 6, 11, 18.
#
# The field calls this a [ragged](glossary.md#Ragged-batch) or *varlen* batch. FlashAttention's varlen functions take
# `cu_seqlens`; in vLLM the same list is `query_start_loc`, in FlashInfer `qo_indptr`. Between the first layer and the
# last only attention has to know whose a token is, so `attend` is handed in:

# %%
# %%writefile {by_hand}/1/network.py
# import torch
# import transformers
#
#
# class Network:
#     def __init__(self, folder):
#         load = transformers.GPT2LMHeadModel.from_pretrained
#         self.gpt2 = load(folder, dtype=torch.float32)
#
#     @torch.inference_mode()
#     def next_tokens(self, ids, positions, cu_seqlens, attend):
#         body, heads = self.gpt2.transformer, self.gpt2.config.n_head
#         x = body.wte.weight[ids] + body.wpe.weight[positions]  # [tokens, width]
#         for layer, h in enumerate(body.h):
#             qkv = h.attn.c_attn(h.ln_1(x)).view(len(ids), 3, heads, -1)
#             x = x + h.attn.c_proj(attend(layer, qkv).flatten(1))
#             x = x + h.mlp(h.ln_2(x))
#         # your line: the places in x of the last token of each text
#         last = [end - 1 for end in cu_seqlens[1:]]
#
#         return self.gpt2.lm_head(body.ln_f(x[last])).argmax(-1).tolist()

# %% [markdown]
# `qkv` has a query, a key and a value of each token: [tokens, 3, heads, size]. The first version computes every text
# whole, in every pass:

# %%
# %%writefile {by_hand}/1/step.py
# from functools import partial
# from itertools import pairwise
#
# import torch
# from network import Network
# from torch.nn.functional import scaled_dot_product_attention
#
#
# class Gpt2(Network):
#     def step(self, texts):
#         """The next token of each text, and how many of its tokens were computed."""
#         ids, positions, cu_seqlens = [], [], [0]
#         for text in texts.values():  # token ids, by the text's number
#             ids += text
#             positions += range(len(text))
#             cu_seqlens.append(len(ids))
#         attend = partial(self.attend, cu_seqlens)
#         tokens = self.next_tokens(ids, positions, cu_seqlens, attend)
#         return tokens, [end - start for start, end in pairwise(cu_seqlens)]

# %% [markdown]
# `attend` goes from text to text. `permute` puts the axes into the order [3, heads, tokens, size];
# `scaled_dot_product_attention` weighs the values by how well each query fits the keys. With `is_causal`, no token looks at
# a later one.

# %%
# %%writefile -a {by_hand}/1/step.py
#
#     def attend(self, cu_seqlens, layer, qkv):
#         found = []
#         for start, end in pairwise(cu_seqlens):
#             query, key, value = qkv[start:end].permute(1, 2, 0, 3)
#             heads = scaled_dot_product_attention(query, key, value, is_causal=True)
#             found.append(heads.transpose(0, 1))  # [tokens, heads, size] again
#         return torch.cat(found)
#
#     def forget(self, number):
#         pass  # nothing is kept here

# %% [markdown]
# Try it before Triton does. `transformers` computes the same texts one by one:

# %%
prompts = [
    "Programming in C++ is like",
    "Once upon a time there was",
    "In the middle of the night",
    "The weather in the mountains",
]
tokenizer = load_tokenizer(checkpoint_dir)
ids = {user: tokenizer.encode(prompt) for user, prompt in enumerate(prompts)}

# %%
transformers.logging.disable_progress_bar()
sys.path.append(f"{by_hand}/1")
sys.modules.pop("network", None)  # the file may be a new one
gpt2 = runpy.run_path(f"{by_hand}/1/step.py")["Gpt2"](checkpoint_dir)
together, computed = gpt2.step(ids)
logits = [gpt2.gpt2(torch.tensor([text])).logits for text in ids.values()]
print("cu_seqlens:  ", *np.cumsum([0, *computed]))
print("together:    ", [tokenizer.decode([token]) for token in together])
print("transformers:", [tokenizer.decode([one[0, -1].argmax()]) for one in logits])

# %% [markdown]
# 27 rows, one pass, and each text gets the token that it gets alone.
#
# ## The frame
#
# Around it stands the frame of lesson 07. Its config has eight slots and an idle time of 60 s, and hands in the correlation
# id as `number`; `max_tokens` is a parameter of the request. The list of words is now a list of tokens. After each pass the model notes in a log what went through it.

# %%
# %%writefile {by_hand}/1/model.py
# import json
# from pathlib import Path
#
# import numpy as np
# import step  # the file beside this one
# import transformers
# import triton_python_backend_utils as pb_utils
#
# FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
# HERE = Path(__file__).parent
#
#
# def value(request, name):
#     return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()

# %%
# %%writefile -a {by_hand}/1/model.py
#
#
# class TritonPythonModel:
#     def initialize(self, args):
#         self.gpt2 = step.Gpt2(HERE / "checkpoint")
#         self.tokenizer = transformers.AutoTokenizer.from_pretrained(HERE / "checkpoint")
#         self.texts, self.left = {}, {}  # by number: token ids, tokens still wanted
#         self.log = (HERE / "passes.jsonl").open("a")
#
#     def begin(self, number, request):
#         prompt = value(request, "text_input").decode()
#         self.texts[number] = self.tokenizer.encode(prompt)
#         self.left[number] = json.loads(request.parameters())["max_tokens"]

# %%
# %%writefile -a {by_hand}/1/model.py
#
#     def execute(self, requests):
#         ready = [request for request in requests if value(request, "ready")]
#         batch = {value(request, "number"): request for request in ready}
#         for number, request in batch.items():
#             if value(request, "start"):
#                 self.begin(number, request)
#         texts = {number: self.texts[number] for number in batch}
#         tokens, computed = self.gpt2.step(texts)
#         print(json.dumps(dict(zip(batch, computed))), file=self.log, flush=True)
#         for (number, request), token in zip(batch.items(), tokens):
#             self.answer(number, request, token)

# %%
# %%writefile -a {by_hand}/1/model.py
#
#     def answer(self, number, request, token):
#         self.texts[number].append(token)
#         self.left[number] -= 1
#         piece = self.tokenizer.decode([token]).encode()
#         tensor = pb_utils.Tensor("text_output", np.array([[piece]], object))
#         response, flags = pb_utils.InferenceResponse([tensor]), 0
#         if self.left[number]:
#             request.set_release_flags(AGAIN)
#         else:
#             flags = FINAL
#             del self.texts[number], self.left[number]
#             self.gpt2.forget(number)
#         request.get_response_sender().send(response, flags=flags)

# %% [markdown]
# ## Run
#
# Each user wants 48 tokens; the end token ends nothing here, so every answer has them. The second sends its prompt when
# the first has 4 tokens, the third at 8, the fourth at 12. `gpt2_client` has a connection for each.

# %%
wanted, apart = 48, 4


def stream(model, prompts, max_tokens=wanted, apart=apart):
    """The tokens as they came, and what went through the model in each pass."""
    log_path = repo / model / "1" / "passes.jsonl"
    start = log_path.stat().st_size
    tokens = gpt2_client.run(server.grpc_url, model, prompts, max_tokens, apart)
    return tokens, lesson.passes(log_path, start)


# %% tags=["nbval-ignore-output"]
with progress.wait("hand-gpt2 is loaded"):
    server.load("hand-gpt2")
    stream("hand-gpt2", prompts[:1], 4)  # a warm-up
tokens, through = stream("hand-gpt2", prompts)
texts = {"hand-gpt2": tokens.groupby("stream")["text"].agg("".join)}
run = {"without a cache": through}
summary = lesson.through_each_pass_summary(run)
charts.show(lesson.through_each_pass(run), summary)
print(textwrap.fill(summary, 88))
joined = through.groupby("stream")["pass"].min().tolist()
print("The users joined in passes", *joined, "of", through["pass"].max())

# %% tags=["remove-cell"]
assert 56 <= through["pass"].max() < 80
assert tokens.groupby("stream").size().tolist() == [wanted] * 4

# %% [markdown]
# A prompt sent after pass 4 joins in pass 5, or in 6 if pass 5 has begun. The last one is sent after pass 12 and needs 48:
# 60 passes give all 192 tokens, or 61 if it misses one. This is in-flight batching, and no engine did it.
#
# The picture also shows what is wrong: every pass computes all texts again, each a token longer.
#
# ## The waste
#
# Count the tokens that an answer of 96 costs:

# %%
prompt_length, length = len(ids[0]), 96
# your line: a list of 96 numbers, the tokens that go into each pass
per_pass = [prompt_length + before for before in range(length)]

# %%
_, counted = stream("hand-gpt2", prompts[:1], length)
different = prompt_length + length - 1  # the last token goes into no pass
print(f"The first token of the prompt goes through the model {len(per_pass)} times.")
print(f"On paper {sum(per_pass):,} tokens go in, counted {counted['tokens'].sum():,}.")
print(f"{different} differ: {sum(per_pass) / different:.0f} times as many go in.")

# %% [markdown]
# In each layer, attention makes a query, a key and a value of each token. The query is used once, key and value again for
# every token that follows. A token looks only at those before it, so later ones change neither.
# Keep them, in a [KV cache](glossary.md#KV-cache), and each token goes through the model once.
#
# ## Predict

# %%
guess = widgets.predict(
    "The cache saves 50 of 51 tokens. How many times as long does an answer of 96 tokens take without it?",
    {
        "The same time: every pass reads all weights, for one token or a hundred": 1,
        "4 times: a pass with one token has a price, most of which is not the token's": 4,
        "25 times: the matrices are saved, attention to the whole text stays": 25,
        "51 times: so many more tokens go through every layer": 51,
    },
)
guess

# %% [markdown]
# ## The cache
#
# The batch has eight slots, so the cache has eight, each with room for the longest text. `cu_seqlens` now says where each
# text's new tokens end. How many keys a text has is a second list, vLLM's `seq_lens`; here it is `len(text)`:

# %%
# %%writefile {cached}/1/step.py
# from functools import partial
# from itertools import pairwise
#
# import torch
# from network import Network
# from torch.nn.functional import scaled_dot_product_attention
#
# SLOTS = 8  # as many as the batch has
#
#
# class Gpt2(Network):
#     def __init__(self, folder):
#         super().__init__(folder)
#         at = self.gpt2.config
#         room = (SLOTS, at.n_head, at.n_positions, at.n_embd // at.n_head)
#         self.cache = torch.zeros(at.n_layer, 2, *room)  # 2: keys, values
#         self.free, self.slots, self.known = list(range(SLOTS)), {}, {}

# %%
# %%writefile -a {cached}/1/step.py
#
#     def step(self, texts):
#         ids, positions, cu_seqlens = [], [], [0]
#         for number, text in texts.items():
#             if number not in self.slots:
#                 self.slots[number], self.known[number] = self.free.pop(), 0
#             known = self.known[number]  # so many of its tokens are in the cache
#             # your line: add to ids the tokens that have to be computed
#             ids += text[known:]
#             positions += range(known, len(text))
#             cu_seqlens.append(len(ids))
#         attend = partial(self.attend, texts, cu_seqlens)
#         tokens = self.next_tokens(ids, positions, cu_seqlens, attend)
#         self.known.update({number: len(text) for number, text in texts.items()})
#         return tokens, [end - start for start, end in pairwise(cu_seqlens)]

# %% [markdown]
# `attend` writes the new keys and values into the text's slot, behind those of earlier passes, and reads all of them. A
# prompt needs `is_causal`, with which the first query sees the first key only, the second two, and so on. A single new token
# must see everything, so it goes without. The third case, several new tokens behind
# known ones, is what chunked prefill, prefix reuse and the verification of a draft need.

# %%
# %%writefile -a {cached}/1/step.py
#
#     def attend(self, texts, cu_seqlens, layer, qkv):
#         found = []
#         for (number, text), (start, end) in zip(texts.items(), pairwise(cu_seqlens)):
#             known = self.known[number]
#             query, *new = qkv[start:end].permute(1, 2, 0, 3)
#             keys, values = self.cache[layer, :, self.slots[number], :, : len(text)]
#             keys[:, known:], values[:, known:] = new
#             kv, causal = (keys, values), not known
#             heads = scaled_dot_product_attention(query, *kv, is_causal=causal)
#             found.append(heads.transpose(0, 1))
#         return torch.cat(found)
#
#     def forget(self, number):
#         self.free.append(self.slots.pop(number))
#         del self.known[number]

# %% tags=["nbval-ignore-output"]
with progress.wait("cached-gpt2 is loaded"):
    server.load("cached-gpt2")
    stream("cached-gpt2", prompts[:1], 4)
tokens, through = stream("cached-gpt2", prompts)
texts["cached-gpt2"] = tokens.groupby("stream")["text"].agg("".join)
same = sum(texts["hand-gpt2"] == texts["cached-gpt2"])
run["with a KV cache"] = through
charts.show(lesson.through_each_pass(run), lesson.through_each_pass_summary(run))
print(f"{same} of {len(prompts)} texts of {wanted} tokens are equal. The first one:")
print(textwrap.fill(prompts[0] + texts["cached-gpt2"][1], 88))

# %% tags=["remove-cell"]
assert same >= 3
assert through["tokens"].sum() == sum(len(ids[user]) + wanted - 1 for user in ids)

# %% [markdown]
# Each token goes through once: a prompt when it joins, then one token of each stream.
#
# ## What a token costs
#
# Both models give the answer of 96 tokens seven times, in alternating order. The time to the first token is left out.

# %% tags=["nbval-ignore-output"]
ways = {"without a cache": "hand-gpt2", "with a KV cache": "cached-gpt2"}
tables = []
for turn in progress.over(range(7), "96 tokens"):
    for way in list(ways)[:: (-1) ** turn]:
        tokens, _ = stream(ways[way], prompts[:1], length)
        ms = 1000 * tokens["time_s"].diff()
        so_far = prompt_length + tokens["token"] - 1  # tokens of text before this one
        each = {"way": way, "turn": turn, "so far": so_far, "ms": ms}
        tables.append(pd.DataFrame(each))
costs = pd.concat(tables).dropna()
medians = costs.groupby(["way", "so far"], sort=False)["ms"].median().reset_index()
seconds = costs.groupby(["way", "turn"], sort=False)["ms"].sum() / 1000
gain = told_apart(*(seconds[way].to_numpy() for way in ways))
interval = f"{gain.low:.2f} to {gain.high:.2f} in 7 rounds, 95 % confidence"
print("From the first token to the last, the answer without a cache took", end=" ")
print(f"{gain.ratio:.2f} times as long ({interval}).")
print(guess.score(round(gain.ratio, 2), "the mean ratio of 7 rounds"))

# %% tags=["remove-cell", "nbval-ignore-output"]
ratios = seconds["without a cache"] / seconds["with a KV cache"]
ratio = ratios.agg(["median", "min", "max"]).round(2)
print(ratio.to_frame("kv_cache_over_recompute").to_json())  # for programs

# %% [markdown]
# Why so much less than 51? The cache saves tokens, not passes: with it or without, the answer takes 96. A pass
# with 54 tokens, the average without a cache, takes about four times as long as with one, not 54 times: the cell below the
# picture measures both. For an 8B model in 16 bits on an H100 the first option would be nearly right: below
# some 300 tokens a pass (lesson 01), reading the weights decides.

# %% tags=["nbval-ignore-output"]
figure = px.line(medians, x="so far", y="ms", color="way", line_dash="way")
titles = {"xaxis_title": "tokens of text so far", "yaxis_title": "ms per token"}
figure.update_layout(**titles, legend_title="", yaxis_rangemode="tozero")
summary = "Milliseconds per token over the text so far, without a cache and with one."
charts.show(figure, summary)

# %% tags=["nbval-ignore-output"]
torch.set_num_threads(1)  # as in the server
on_average, pass_ms = round(np.mean(per_pass[1:])), {}  # tokens a pass without a cache
for count in 1, on_average:
    text = {0: (ids[0] * length)[:count]}
    took = timeit.repeat(partial(gpt2.step, text), number=1, repeat=101)
    pass_ms[count] = 1000 * np.median(took)
(_, one), (count, many) = pass_ms.items()
print(
    f"Outside Triton a pass takes {one:.1f} ms with one token, {many:.1f} with {count}."
)
with_cache = medians[medians["way"] == "with a KV cache"]["ms"].median()
added = with_cache - one  # what Triton and the client add to a pass
print(f"Triton and the client add {added:.1f} ms. With {count} tokens a pass", end=" ")
print(f"takes {(many + added) / with_cache:.1f} times as long as with one.")

# %% [markdown]
# In tokens the gain grows with the answer: *n* tokens after a prompt of *p* cost *np* + *n*(*n* − 1)/2 without a cache,
# and *p* + *n* − 1 with one.
#
# The line with a cache is nearly flat only because the text is so short. Attention still reads the keys and values of the
# whole text for each token. In Llama 3.1 8B with 16 bits they are 128 KiB a token of text: some 120,000 tokens, of
# one user or of many, are as many bytes as the weights.
#
# ## The same four users elsewhere
#
# `transformers` also batches continuously; its manager has the cache in pages. It takes the same GPT-2, without a server.
# The course's engine computes a Llama-family model. A text holds whole slots,
# pages or blocks, so the last column is calculated.

# %% tags=["nbval-ignore-output"]
rows = []
with lesson.rivals(checkpoint_dir, prompts, wanted, apart) as others:
    yours = lesson.Rival(lambda: stream("cached-gpt2", prompts)[1]["pass"].max(), 1024)
    servers = {"hundred lines": yours, **others}
    for _ in progress.over(range(7), "Four users"):
        for name, (run, page) in servers.items():
            held = len(prompts) * page * -(-(prompt_length + wanted - 1) // page)
            rows.append((name, run(), held))
columns = ["server", "passes, median of 7", "positions held, on paper"]
table = pd.DataFrame(rows, columns=columns).groupby("server", sort=False).median()
table = table.astype(int)
table

# %% tags=["remove-cell"]
assert table["passes, median of 7"].between(56, 120).all()
assert table["positions held, on paper"].tolist() == [4096, 1024, 256]

# %% [markdown]
# In memory they differ. The four users need 215 positions; slots hold
# sixteen times what blocks hold. Lab 8.3 serves eight readers from a quarter of a slot.
#
# ## What breaks
#
# **Clients leave.** Nobody tells the model (lesson 07), and now each also keeps a slot of the cache. Eight clients,
# one after the other, read a token and leave. Then one more asks:


# %% tags=["nbval-ignore-output"]
def leave(model, clients):
    """This many clients, one after the other, read a token and leave."""
    for _ in range(clients):
        reading = gpt2_client.race(server.grpc_url, model, prompts[:1], 900)
        next(filter(None, reading))  # the first token
        reading.close()


leave("cached-gpt2", 8)
try:
    gpt2_client.run(server.grpc_url, "cached-gpt2", prompts[:1], 4)
except CourseError as error:
    print("cached-gpt2:", textwrap.fill(error.sentence, 75))
leave("iterative-gpt2", 9)
answer = gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts[:1], 12)
print("iterative-gpt2:", "".join(answer["text"]))

# %% [markdown]
# `iterative-gpt2` has eight slots, nine clients have left, and it answers: in each call it asks the response sender of every
# sequence that is not in the batch whether its client has gone. Lab 8.2's `Gpt2Model` does it in these lines:
#
# ```python
# for number in [number for number in self.texts if number not in batch]:
#     if self.texts[number].sender.is_cancelled():
#         self.forget(number)
# ```
#
# ## Turn the knob
#
# Apply a change in the editor, then race.
#
# 1. `kv_cache` `off`, two streams of 192 tokens, offset 0.4 s; then `on`. When does a line bend?
# 2. `kv_cache_slots` 2, four streams with offset 0. Who waits, and for whom?
#
# <details><summary>What to see</summary>
#
# 1. Without a cache both lines flatten as they grow. With one, their slope changes where the other stream joins or ends.
# 2. Two streams begin when the other two are over. The batch has slots for them, the cache none.
#
# </details>

# %% tags=["nbval-ignore-output"]
widgets.ConfigEditor(server, "iterative-gpt2", ["kv_cache", "kv_cache_slots"])

# %% tags=["nbval-ignore-output"]
board = lesson.board(server, ("iterative-gpt2",))
board.controls["offset_s"].value = 0.4
board.run()
board

# %% [markdown]
# ## Elsewhere
#
# | | vLLM | TensorRT-LLM | your hundred lines |
# |---|---|---|---|
# | A text's memory | blocks, often of 16 tokens | blocks, often of 32 | a slot for the longest text |
# | Prompts | in chunks under `max_num_<wbr>batched_tokens` | whole or in chunks | whole: a long one makes all streams wait |
# | A text too long | refused alone | refused alone | an exception: every stream of that call ends |
# | The same beginning twice | found again | found again | computed again |
# | Attention of a batch | with FlashAttention, one kernel over all texts and their blocks | one kernel for prompts, one for those that decode | one call a text |
# | The next token | sampled, or under a grammar | sampled, or under a grammar | the likeliest |
# | Watch | `vllm:iteration_<wbr>tokens_total`, `vllm:kv_cache_<wbr>usage_perc` | its iteration statistics | your log, `passes.jsonl` |
#
# For a model that no engine knows there are three other ways. A class that meets [these
# conventions](https://docs.vllm.ai/en/latest/models/supported_models/#writing-custom-models) of `transformers` runs in
# vLLM (`--model-impl transformers --trust-remote-code`), or in [`transformers`' own
# manager](https://huggingface.co/docs/transformers/main/continuous_batching). For any other class you write a
# [plugin](https://docs.vllm.ai/en/latest/design/plugin_system/) with vLLM's attention layer, and get its scheduler and
# blocks.
#
# `iterative-gpt2` also runs [on a GPU](../assets/elsewhere.md#08-Iterative-GPT-2).
#
# ## Recap
#
# Once. The keys and values of the first token stay, and every later token reads them.
#
# - The tokens of all texts stand in one ragged batch. In the layers, attention alone has to know whose a token is.
# - Without a cache an answer of 96 tokens computes 5,136 tokens, with one 101. The time falls much less: a pass has
#   a price of its own.
# - A model that asks to be called again has in-flight batching: a newcomer waits for a pass, not for an answer.
# - The cache makes memory the scarce thing. Engines cut it into blocks; your slots hold room for the longest text.
#
# <details><summary>1. A prompt of 10 tokens, an answer of 100, no cache. How many times does the model compute the tenth
# token of the answer?</summary>
#
# It is in every pass after the one that made it: 90 times.
# </details>
#
# <details><summary>2. The same four users, but each sends when the first stream has 12 tokens more. How many passes, and how
# many tokens with a cache?</summary>
#
# 3 × 12 + 48 = 84 passes, if the last prompt does not just miss one. The tokens stay 215: each goes through once.
# </details>
#
# <details><summary>3. A pass of your model takes 1.5 s, and <code>max_sequence_idle_microseconds</code> is the default, one
# second. What do your users see?</summary>
#
# Answers that stop in the middle. Triton takes their sequences for idle while they are computed, and gives them up; the
# stream hangs. Set it well above the slowest pass.
# </details>
#
# Now [do the lab]({lab}): new tokens behind known ones, few slots for many readers, and blocks in their place. Or go on with {next}.
