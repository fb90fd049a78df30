# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **choose** between `guaranteed_no_evict` and `max_utilization` for a service, with figures of your own;
# - **measure** what a small KV cache costs: guests who wait, guests who are paused, tokens computed twice;
# - **protect** readers from a long prompt, and spare users a prompt that others have sent before.
#
# You need nothing but this notebook: engines, repository and server are made here.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# In-flight batching keeps eight slots busy. But a guest needs more than a slot: each token of a prompt and of an
# answer leaves its keys and values in the [KV cache](00_start_here.ipynb#KV-cache), in
# [blocks](00_start_here.ipynb#Block) of 32 tokens. Call them plates. A guest gathers plates while eating, and
# gives all of them back when leaving.
#
# Memory is finite, so one evening that happens. You can refuse guests at the door until enough plates for their whole
# meal are certain. Or you can let them in, and take the plates back from somebody when it gets tight. That is
# `batch_scheduler_policy`:
#
# - **`guaranteed_no_evict`**: a request sits down when the blocks for its prompt and its whole answer can be had.
# - **`max_utilization`**: a request sits down when its next iteration fits. When blocks run out, the youngest request
#   is **paused**: it loses its blocks, and computes them again later. What it has already said stays said.

# %% [markdown]
# ## Predict
#
# The cache below has room for a few whole meals only, and there are eight slots. Commit yourself:

# %% tags=["nbval-ignore-output"]
from inflight.notebook import progress, widgets

guess = widgets.predict(
    "Which policy makes more tokens a second when the cache is tight?",
    [
        "guaranteed_no_evict: it computes nothing twice",
        "no difference worth the name",
        "max_utilization: it fills more slots",
    ],
)
guess

# %% [markdown]
# ## Who comes
#
# Sixteen guests in one burst: prompts and answers of different lengths, the same ones each time. The engine takes at
# most 1,024 tokens a request (`max_seq_len`), so the cache can be made as small as that.

# %% tags=["nbval-ignore-output"]
import random

from inflight import engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig

with progress.wait("The engine, built the first time"):
    options = BuildConfig(max_input_len=512, max_seq_len=1024)
    tight_engine = engine.cached(fetch(), options)
tokenizer = load_tokenizer(tight_engine)
choose = random.Random(5)
input_lens, output_lens = (
    choose.choices((45, 70, 130, 190), k=16),
    choose.choices((40, 70, 110, 170), k=16),
)
guests = zip(workload.prompts_of(input_lens, tokenizer), input_lens, output_lens)
requests = [
    workload.TimedRequest(text, output_len, place * workload.TRACE_GAP_S, input_len)
    for place, (text, input_len, output_len) in enumerate(guests)
]
print("prompts:", *input_lens, "\nanswers:", *output_lens)

# %% [markdown]
# ## On paper first
#
# A request needs its prompt and its answer in blocks, rounded up. The last token of an answer is never read again, but
# the promise is made for it too.

# %%
build = engine.read(tight_engine).build_config
cache_tokens = 1024
num_blocks = cache_tokens // build.tokens_per_block
meals = [
    -(-(request.input_len + request.max_tokens) // build.tokens_per_block)
    for request in requests
]
openings = [-(-request.input_len // build.tokens_per_block) for request in requests]
mean_meal, mean_opening = sum(meals) / len(meals), sum(openings) / len(openings)
print(f"{num_blocks} blocks, {build.max_batch_size} slots")
print(
    f"a whole meal takes {mean_meal:.1f} blocks on average: "
    f"{num_blocks / mean_meal:.1f} guests are safe at once"
)
print(
    f"a prompt alone takes {mean_opening:.1f}: "
    f"{num_blocks / mean_opening:.1f} guests could begin at once"
)

# %% [markdown]
# So `guaranteed_no_evict` will leave slots empty, and `max_utilization` will let in more than can finish. The first
# policy is simple enough to be played on paper, one round of tokens at a time:


# %%
def rounds_on_paper(guests, num_blocks, slots):
    """Iterations under guaranteed_no_evict.

    A guest is (blocks of the whole meal, tokens of the answer).
    """
    waiting, table, rounds = list(guests), [], 0
    while waiting or table:
        while (
            waiting
            and len(table) < slots
            and sum(meal for meal, _ in table) + waiting[0][0] <= num_blocks
        ):
            table.append(waiting.pop(0))
        table = [(meal, tokens - 1) for meal, tokens in table if tokens > 1]
        rounds += 1
    return rounds


on_paper = rounds_on_paper(zip(meals, output_lens), num_blocks, build.max_batch_size)
print(f"guaranteed_no_evict: {on_paper} iterations for {sum(output_lens)} tokens")

# %% [markdown]
# The other policy is more work to play by hand, so here the engine's own scheduler plays both, without a model. Make
# the cache larger, then the answers longer: where do the two lines meet, and who pays with pauses?

# %% tags=["nbval-ignore-output"]
from inflight.notebook import explorables

both_on_paper = explorables.policies_on_paper(list(zip(input_lens, output_lens)), build)
both_on_paper

# %% [markdown]
# ## Run: refuse at the door

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    tight_engine,
    iteration_log_path=log_path,
    batch_scheduler_policy="guaranteed_no_evict",
    max_tokens_in_paged_kv_cache=cache_tokens,
)
server = Server(repo).start()
client = Client(server.grpc_url)
print("ready:", client.ask("Name the capital of France.").text)

# %% [markdown]
# `trace_run.run` is lesson 04's: it sends all guests and waits for the last answer. `requests` has a row a guest, `log` a
# row an iteration.

# %% tags=["nbval-ignore-output"]
from inflight.bench import trace_run

with progress.wait("Sixteen guests eat"):
    no_evict = trace_run.run(client, requests, log_path)
log = no_evict.log
held_back = log[(log["waiting"] > 0) & (log["empty_seats"] > 0)]
print(
    f"{no_evict.tokens_per_s:.0f} tokens a second; "
    f"{log['scheduled'].mean():.1f} guests at the table on average"
)
print(
    f"In {len(held_back)} of {len(log)} iterations somebody waited "
    "although a slot was free, "
    f"with {held_back['kv_blocks_free'].mean():.0f} of {num_blocks} blocks lying idle."
)

# %% [markdown]
# Idle, but promised: they are for the end of answers that have only begun.
#
# ## Run: take a plate back
#
# One key is edited in the protobuf, and the running server loads the model again.

# %%
print(repository.edit(repo, "tensorrt_llm", batch_scheduler_policy="max_utilization"))
server.load("tensorrt_llm")

# %% tags=["nbval-ignore-output"]
client.ask(
    "Name the capital of France."
)  # a fresh engine's first request is its slowest: not counted
with progress.wait("Sixteen guests eat"):
    utilization = trace_run.run(client, requests, log_path)
log = utilization.log
print(
    f"{utilization.tokens_per_s:.0f} tokens a second; "
    f"{log['scheduled'].mean():.1f} guests at the table on average"
)
print(
    f"In {(log['paused'] > 0).sum()} of {len(log)} iterations somebody was paused, "
    f"at most {log['paused'].max()} at once."
)

# %% [markdown]
# ## See
#
# Above the line, the blocks: each area is a request, the oldest at the bottom. Below the line, those without a slot.
# Both are drawn from the iteration log, on one scale.

# %% tags=["nbval-ignore-output"]
from IPython.display import Markdown, display

from inflight.notebook import charts

runs = {"guaranteed_no_evict": no_evict.log, "max_utilization": utilization.log}
summary = charts.kv_blocks_summary(runs)
charts.show(charts.kv_blocks(runs), summary)
display(Markdown(summary))

# %% [markdown]
# Above, the white below the dashed line is what was promised and not yet used; it shrinks as the answers grow. Below,
# there is little white. When the pile reaches the dashed line, the youngest request falls out of it and shows up
# hatched; where it comes back, an orange edge says how many blocks are computed again.
#
# ## Explain: the price of a pause
#
# A pause costs no answer and no token, but work. A paused request comes back with its prompt and with all that it had
# answered so far, as one long prompt. So the iteration log has more context tokens than the prompts have:

# %% tags=["nbval-ignore-output"]
prompt_tokens, answer_tokens = sum(input_lens), sum(output_lens)


def computed_twice(log):
    return log["context_tokens"].sum() - prompt_tokens


twice = computed_twice(utilization.log)
print(
    f"prompts {prompt_tokens}, context computed {prompt_tokens + twice}: "
    f"{twice} tokens twice, "
    f"{100 * twice / (prompt_tokens + answer_tokens):.0f} % more work"
)
print(f"guaranteed_no_evict: {computed_twice(no_evict.log)} tokens twice")
fewer = len(no_evict.log) / len(utilization.log)
faster = utilization.tokens_per_s / no_evict.tokens_per_s
print(
    f"On paper guaranteed_no_evict takes {on_paper} iterations; "
    f"counted: {len(no_evict.log)}."
)
print(
    f"max_utilization needs {fewer:.2f} times fewer, "
    f"and makes {faster:.2f} times as many tokens a second."
)
ahead = "max_utilization" if faster > 1 else "guaranteed_no_evict"
print(guess.score("no difference" if 0.95 < faster < 1.05 else ahead))

# %% [markdown]
# Where paper and count differ by more than a few, guests came through the door in another order than on the list: they
# are only milliseconds apart. Fuller iterations are the gain, tokens computed twice are the price, and which is larger
# depends on how tight the cache is. So vary it:

# %% tags=["nbval-ignore-output"]
import pandas as pd


def measure(policy, cache_tokens):
    server.load(
        "tensorrt_llm",
        batch_scheduler_policy=policy,
        max_tokens_in_paged_kv_cache=cache_tokens,
    )
    client.ask("Name the capital of France.")
    return trace_run.run(client, requests, log_path)


trials = {
    ("guaranteed_no_evict", cache_tokens): no_evict,
    ("max_utilization", cache_tokens): utilization,
}
more = [(policy, size) for size in (1536, 2560) for policy in runs]
for trial in progress.over(more, "Run", "{0[0]}, {0[1]:,} tokens".format):
    trials[trial] = measure(*trial)
print(f"{len(trials)} runs of {len(requests)} requests")

# %% tags=["nbval-ignore-output"]
columns = [
    "policy",
    "cache",
    "tokens_per_s",
    "p50_s",
    "p99_s",
    "most waiting",
    "most paused",
    "twice",
    "in use (%)",
]
rows = [
    (
        policy,
        size,
        one.tokens_per_s,
        *(one.requests["latency_ms"].quantile([0.5, 0.99]) / 1000),
        one.log["waiting"].max(),
        one.log["paused"].max(),
        computed_twice(one.log),
        100 * (one.log["kv_blocks_used"] / one.log["kv_blocks_max"]).mean(),
    )
    for (policy, size), one in trials.items()
]
table = pd.DataFrame(rows, columns=columns)
iterations = [len(one.log) for one in trials.values()]
both_on_paper.measured(
    table.assign(iterations=iterations), slots=build.max_batch_size, times=1.0
)
charts.table(table)

# %% tags=["nbval-ignore-output"]
by = table.set_index(["policy", "cache"])["tokens_per_s"]
gain = by["max_utilization"] / by["guaranteed_no_evict"]
summary = (
    "Throughput and P99 of latency against the size of the cache, a line a policy. "
    "max_utilization makes "
    + ", ".join(
        f"{ratio:.2f} times as many tokens a second with {size:,} tokens of cache"
        for size, ratio in gain.items()
    )
    + "."
)
charts.show(charts.policies(table), summary)
display(Markdown(summary))

# %% [markdown]
# The picture under *On paper first* has these runs now, as diamonds.
#
# Single runs on a machine that does other things too: trust the counts (waiting, paused, twice), and take the times
# with a grain of salt. So here is the same question without the machine's moods. Lesson 04's `iteration_cost` reads
# from all logs what an iteration costs by the number of answers in it, and a token of a prompt on top. With those
# prices, where do the seconds of the tightest cache go?

# %% tags=["nbval-ignore-output"]
from inflight.engine import iteration_cost

cost = iteration_cost(pd.concat([one.log for one in trials.values()]))
rows = []
for policy, one in (
    ("guaranteed_no_evict", no_evict),
    ("max_utilization", utilization),
):
    answers = one.log["requests"].map(
        lambda shares: sum(share[2] > 0 for share in shares)
    )
    rows.append(
        (
            policy,
            len(one.log),
            answers.mean(),
            answers.map(cost.answers_ms).sum() / 1000,
            prompt_tokens * cost.prompt_token_ms / 1000,
            computed_twice(one.log) * cost.prompt_token_ms / 1000,
        )
    )
columns = [
    "policy",
    "iterations",
    "answers in each",
    "answers (s)",
    "prompts (s)",
    "computed twice (s)",
]
seconds = pd.DataFrame(rows, columns=columns)
charts.table(seconds, decimals=2)

# %% tags=["nbval-ignore-output"]
saved, paid = (
    seconds["answers (s)"][0] - seconds["answers (s)"][1],
    seconds["computed twice (s)"][1],
)
print(
    f"Fuller iterations save {saved:.1f} s, tokens computed twice cost {paid:.1f} s: "
    f"max_utilization is {abs(saved - paid):.1f} s "
    f"{'ahead' if saved > paid else 'behind'} at these prices."
)

# %% [markdown]
# The two pull in opposite directions. Longer answers and a tighter cache mean more pauses; where prompts are cheap
# beside answers, as on a GPU, so is a pause. And with a cache in which all eight slots fit, nobody is ever paused or
# held back: both policies are the same one.
#
# ## Turn the knob
#
# The dashboard edits the config, has the running server load it, sends the sixteen guests and draws while they eat.
# The run before stays above, on the same scale. Try:
#
# 1. `max_utilization` with 1,024 tokens, then with 1,280: how many pauses does a quarter more memory save?
# 2. `guaranteed_no_evict` with 2,048: does anybody wait beside a free slot?
# 3. The smallest cache at which nobody is ever paused.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import boards

board = boards.policies(server, requests, log_path)
board

# %% tags=["nbval-ignore-output"]
with progress.wait("The dashboard runs"):
    last = board.run()
charts.show(*last)

# %% [markdown]
# The cell above pressed Run once, so that there is a picture to keep. Every other key of the engine is in lesson 02's
# editor; Apply writes the file and has the server load it, Undo takes it back:

# %% tags=["nbval-ignore-output"]
widgets.ConfigEditor(repo, "tensorrt_llm", server)

# %% [markdown]
# ## A long prompt arrives
#
# Plates are one way in which guests feel each other. Here is another: seven people read their streams, and an eighth
# sends a prompt of 1,500 tokens. All of it is computed in one iteration, and in that iteration everybody waits.
#
# Chunked context cuts it: an iteration takes at most `max_num_tokens` tokens, answers first, and the prompt gets what
# is left of it. `max_num_tokens` is decided when the engine is built, so there are two engines. Streaming needs a
# decoupled repository.

# %% tags=["nbval-ignore-output"]
from inflight.bench import prompts_that_fit, send_while_others_read

client.close()
server.stop()
whole, in_chunks = (
    engine.cached(fetch(), BuildConfig(max_input_len=1536, max_num_tokens=most))
    for most in progress.over((2048, 256), "Engine", "of {} tokens an iteration".format)
)
repo = repository.assemble(
    Path(workdir.name) / "long",
    whole,
    decoupled_mode=True,
    iteration_log_path=log_path,
)
server = Server(repo).start()
client = Client(server.grpc_url)
long_prompt, instructions = prompts_that_fit(client, [1500, 800], tokenizer)
prompt_ids = tokenizer.encode(tokenizer.chat(long_prompt))
print(f"a prompt of {len(prompt_ids)} tokens: {long_prompt[:60]} …")

# %% tags=["nbval-ignore-output"]
ways = {
    "the whole prompt in one iteration": {"gpt_model_path": whole},
    "at most 256 tokens in an iteration": {
        "gpt_model_path": in_chunks,
        "enable_chunked_context": True,
    },
}
gaps, rows = {}, []
for way, options in progress.over(ways.items(), "Run", lambda item: item[0]):
    server.load("tensorrt_llm", **options)
    client.ask_tokens(prompt_ids, 2)  # a warm-up
    gaps[way], newcomer = send_while_others_read(client, prompt_ids)
    times, first_s = gaps[way]["time_s"], newcomer.time_to_first_s
    parts = {
        "before": times < 0,
        "during": times.between(0, first_s),
        "after": times > first_s,
    }
    rows.append(
        (
            way,
            *(gaps[way]["gap_ms"][part].median() for part in parts.values()),
            gaps[way]["gap_ms"].max(),
            first_s * 1000,
        )
    )
felt = pd.DataFrame(
    rows,
    columns=[
        "prompt",
        "ITL before (ms)",
        "during",
        "after",
        "longest ITL",
        "newcomer's TTFT",
    ],
)
charts.table(felt, decimals=0)

# %% tags=["nbval-ignore-output"]
longest, ttft = felt["longest ITL"], felt["newcomer's TTFT"]
summary = (
    "Each dot is a token of one reader, as high as the reader waited for it. "
    f"Computed whole, the prompt makes everybody wait {longest[0]:.0f} ms once; "
    f"in chunks no reader waits longer than {longest[1]:.0f} ms, but several times. "
    f"The newcomer's own first token comes after {ttft[0]:.0f} and {ttft[1]:.0f} ms."
)
charts.show(
    charts.token_gaps({way: rows[rows["reader"] == 0] for way, rows in gaps.items()}),
    summary,
)
display(Markdown(summary))

# %% [markdown]
# The picture has one reader of the seven; all get their tokens in the same iterations. The arithmetic: seven readers
# take 7 of the 256 tokens, the prompt gets the rest.

# %%
room = 256 - 7
print(
    f"{len(prompt_ids)} tokens in parts of {room}: "
    f"{-(-len(prompt_ids) // room)} iterations, "
    f"each as long as {room} tokens of a prompt take."
)

# %% [markdown]
# No work is saved: it is cut into slices, and the readers get a token after each. Smaller slices hurt the readers less.
# For the newcomer it depends: every slice brings the cost of one more iteration, and on a GPU slices that are too small
# leave it idle; on a CPU, slices that fit its caches may even be the faster way.
#
# ## One system prompt, many users
#
# Most services put the same long instructions before every question. Their keys and values are the same each time, as
# long as they come first. With `enable_kv_cache_reuse`, full blocks stay in the cache after their request has left,
# and a prompt that begins with the same tokens starts from there.

# %% tags=["nbval-ignore-output"]
questions = [
    f"{instructions} {question}"
    for question in (
        "What time is it?",
        "Who sells the bread?",
        "Where does the river end?",
        "How many bridges are there?",
        "Name a flower.",
        "What do children count?",
    )
]
ttft_ms = {}
for reuse in progress.over((False, True), "Six users, reuse"):
    server.load("tensorrt_llm", enable_kv_cache_reuse=reuse)
    client.stream(long_prompt, 2).read()  # a warm-up that begins otherwise
    answers = [client.stream(question, 4, end_id=-1).read() for question in questions]
    ttft_ms["reuse" if reuse else "no reuse"] = [
        answer.time_to_first_s * 1000 for answer in answers
    ]
ttft_ms = pd.DataFrame(ttft_ms)

# %% tags=["nbval-ignore-output"]
first, later = ttft_ms["reuse"][0], ttft_ms["reuse"][1:].median()
summary = (
    f"TTFT of {len(questions)} users who ask one after the other. "
    f"With reuse the first still pays {first:.0f} ms for the instructions; "
    f"the later ones wait {later:.0f} ms, {first / later:.0f} times less."
)
charts.show(charts.first_tokens(ttft_ms), summary)
display(Markdown(summary))

# %% [markdown]
# How many blocks was that? What two prompts share at their beginning counts, in full blocks. The engine's own count is
# in the iteration log, and in `/metrics` under the label `reused`.

# %% tags=["nbval-ignore-output"]
from inflight.triton import telemetry

ids = [tokenizer.encode(tokenizer.chat(question)) for question in questions]
shared = next(place for place, tokens in enumerate(zip(*ids)) if len(set(tokens)) > 1)
reused = telemetry.iterations(log_path)["kv_blocks_reused"].iloc[-1]
page = telemetry.metrics_with(server.metrics_url, "reused", reused)
print(
    f"{shared} shared tokens are {shared // 32} full blocks; "
    f"{len(ids) - 1} later users: {shared // 32 * (len(ids) - 1)}"
)
print(f"counted by the engine: {reused}")
page[page["name"] == "nv_trt_llm_kv_cache_block_metrics"].set_index("label")[
    "value"
].to_frame()

# %% [markdown]
# Reuse costs nothing here: a kept block is given up as soon as somebody needs it. What it needs from you is order: put
# what is the same for all first, and what differs (a date, a name) last.
#
# ## Which policy for which service?
#
# | Service | Policy | Why |
# |---|---|---|
# | Chat, streamed to people | `guaranteed_no_evict` | a pause stops a stream in mid-sentence; a longer wait for the first word is easier to bear |
# | Batch work over night: summaries, labels | `max_utilization` | nobody watches; fuller iterations are worth some work done twice |
# | Answers that mostly end long before `max_tokens` | `max_utilization` | promises for the whole answer are mostly air, and pauses are rare |
# | Answers of known length, close to `max_tokens` | `guaranteed_no_evict` | the promises come true, so every early admission ends in a pause |
# | Cache larger than all slots need | either | nothing is ever short |
#
# Chunked context belongs where long prompts meet readers of streams. Reuse belongs wherever prompts begin alike.
#
# ## On the lab GPU
#
# The keys are TensorRT-LLM's own, in the same `tensorrt_llm/config.pbtxt`, and lesson 01's engine serves both policies.
#
# {{name.tried}}
#
# | Step | Here | With TensorRT-LLM |
# |---|---|---|
# | No pauses | `guaranteed_no_evict` | `lab.sh fill inflight_fused_batching guaranteed_no_evict True` |
# | Pauses | `max_utilization`, 1,024 tokens of cache | `lab.sh fill inflight_fused_batching max_utilization True 0 enable_chunked_context:True max_tokens_in_paged_kv_cache:4096` |
# | Size of the cache | `max_tokens_in_paged_kv_cache`, or `kv_cache_free_gpu_mem_fraction` of the host's memory; the smaller wins | the same keys; the fraction is of the GPU memory that is free once the engine is loaded |
# | Reuse, chunked context | one key each | `lab.sh fill … enable_kv_cache_reuse:True enable_chunked_context:True`, and an engine built with `--use_paged_context_fmha enable`, as `lab.sh build` does |
# | Tokens an iteration | `BuildConfig(max_num_tokens=256)` | `MAX_NUM_TOKENS=256 lab.sh build` |
# | Block | 32 tokens, fixed by the kernel | `--tokens_per_block` when building, 64 unless one says otherwise; `lab.sh build` says 32 |
# | See it | iteration log; `paused_requests`, `waiting`, `reused` in `/metrics` | `lab.sh iterations`; the same labels in `/metrics`, of which two mean something else |
#
# What to know there:
#
# - On a large GPU nothing is ever short: with TinyLlama the default share is room for millions of tokens. Cap the cache by
#   `max_tokens_in_paged_kv_cache`, not by the fraction, and by no less than the engine's `max_seq_len`.
# - `waiting` counts those who have a seat and were not in this iteration; requests before the door are in no gauge.
# - `paused_requests` counts who was paused *in this iteration*, not who is still paused: afterwards they count as `waiting`.
# - A stream under `max_utilization` is refused where prompt and answer may be longer than a prompt may be, since a paused
#   request comes back as one long prompt. Chunked context lifts that, or `guaranteed_no_evict`.
#
# Tutorials of other years spell things otherwise:
#
# | In a tutorial | What it really does |
# |---|---|
# | `batch_scheduler_policy: guaranteed_completion` | never a value of TensorRT-LLM's backend, which warns and takes its default, `guaranteed_no_evict`; our engine takes it for the older spelling that it is meant as |
# | `max_utilization` with `decoupled_mode` | up to 0.11 the backend took `guaranteed_no_evict` whenever the model was decoupled; since 0.12 both go together |
# | nothing about `enable_kv_cache_reuse` | off up to 0.18, on from 0.19 on: the same benchmark, other figures |
# | a misspelt policy or boolean | a warning in the log, and the default; here it is refused |
#
# What `max_utilization` gained here, and on GPUs, in a cache as tight (there with the skewed trace of lesson 04):

# %% tags=["nbval-ignore-output"]
from inflight.bench import recorded

here = pd.DataFrame({"ratio": ["throughput"], "median": [gain[cache_tokens]]})
lab = recorded.table(
    "compare-in-process-guaranteed_no_evict-max_utilization", "ratios", gpus_only=True
)
summary = charts.lab_results_summary(here, lab, "ratio", "median")
charts.show(
    charts.lab_results(
        here, lab, "ratio", "median", "max_utilization over guaranteed_no_evict"
    ),
    summary,
)

# %% [markdown]
# ## What breaks
#
# **A cache that one longest request does not fit into.** It could wait for ever, so the engine refuses to load, and
# the server goes on with what it had:

# %%
from inflight import CourseError


def first_line(error):
    return str(error).splitlines()[0]


try:
    server.load("tensorrt_llm", max_tokens_in_paged_kv_cache=512)
except CourseError as error:
    print(first_line(error))
print("still ready:", client.is_ready())

# %% [markdown]
# TensorRT-LLM refuses too, in these words: `maxTokensInPagedKvCache … must be large enough to process at least 1
# sequence`. The ways out are the same: more tokens, or an engine with a smaller `max_seq_len`.
#
# **Small iterations without chunked context.** A long prompt would never fit into one:

# %%
try:
    server.load("tensorrt_llm", gpt_model_path=in_chunks, enable_chunked_context=False)
except CourseError as error:
    print(first_line(error))

# %% [markdown]
# ## Recap
#
# - A request needs blocks for every token of its prompt and its answer; blocks, not slots, are often what is short.
# - `guaranteed_no_evict` promises whole meals: nobody is ever paused, promised blocks lie idle, guests wait outside.
# - `max_utilization` admits whom it can: fuller iterations, paid for with pauses and tokens computed twice.
# - Chunked context cuts a long prompt into slices, so that readers wait often and briefly instead of once and long.
# - Reuse keeps full blocks of what prompts have in common at their beginning: later users skip that work.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A cache of 40 blocks of 32 tokens; every request has a prompt of 100 tokens and asks for 220. How
# many sit down at once under each policy?</summary>
#
# A whole meal is 320 tokens, 10 blocks: four under <code>guaranteed_no_evict</code>. A prompt is 4 blocks: ten under
# <code>max_utilization</code>, if there are ten slots; when they grow, most of them will be paused.
# </details>
#
# <details><summary>2. In this engine's <code>/metrics</code>, <code>waiting</code> is 12 and 30 % of the blocks are free, hour after hour.
# Which policy is it, and is something wrong?</summary>
#
# <code>guaranteed_no_evict</code>: the free blocks are promised. Nothing is wrong; but if answers mostly end long before
# <code>max_tokens</code>, ask for fewer tokens or change the policy.
# </details>
#
# <details><summary>3. You put the time of day at the top of the system prompt. What happens to reuse?</summary>
#
# It ends at the first token that differs, so nearly at once: keys and values depend on every token before them. Put the
# time at the end.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: who forms the batches of a model that has no
# engine?
#
# ## What runs
#
# The server belongs to this notebook, and so the widgets above go on working. It ends with the notebook's kernel, or when
# you stop it here. After a restarted kernel, or where a widget reads *model not found*, run the notebook again.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
