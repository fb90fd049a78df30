"""The runner for PyTorch, on the CPU: the tokens of Hugging Face's own code, whatever the executor makes of a request.

What only a GPU has is tested where there is one, and its arithmetic everywhere.
"""

import contextlib
import dataclasses
import inspect
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from inflight.checkpoint import GgufFile, as_huggingface, tokenizer
from inflight.checkpoint import sources as checkpoints
from inflight.engine import model as engine_model
from inflight.engine.building import builder as engine
from inflight.engine.drafts import IterationPrices
from inflight.engine.executor import Executor
from inflight.engine.folder import read
from inflight.engine.messages import Chunk, Request
from inflight.engine.settings import ExecutorConfig
from inflight.engine.torch import attention, runner
from inflight.engine.torch.graphs import StepBuffers
from inflight.engine.torch.runner import TorchModel
from inflight.errors import CourseError
from tests.engines import SMALL_BUILD, SMALL_VOCAB, build_small, build_tiny, write_tiny

with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
MAX_OUTPUT = 24
PROMPTS = [
    [(7 * length + 31 * index) % SMALL_VOCAB for index in range(length)] for length in (1, 2, 9, 31, 32, 33, 40, 48)
]
# OpenVINO's kernels round elsewhere than PyTorch's, which stay within 0.0001 of Hugging Face's own code: of logits up
# to 60, no more than this.
OPENVINO_TOLERANCE = 0.05


def greedy(checkpoint, prompts=PROMPTS, length=MAX_OUTPUT):
    """Hugging Face's greedy answers, each computed alone in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32).eval()
    answers = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            answer = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False, eos_token_id=None
            )
            answers.append(answer[0, len(prompt) :].tolist())
    return answers


@pytest.fixture(scope="module")
def tiny(tiny_llama):
    """A tiny checkpoint, and Hugging Face's answers to `PROMPTS`."""
    return SimpleNamespace(checkpoint=tiny_llama, answers=greedy(tiny_llama))


@pytest.fixture(scope="module")
def tiny_engine(tiny, tmp_path_factory):
    return build_tiny(tiny.checkpoint, tmp_path_factory.mktemp("tiny") / "engine")


# The tokens of Hugging Face -------------------------------------------------------------------------------------------


def test_the_answers_differ(tiny):
    assert len({tuple(answer) for answer in tiny.answers}) == len(PROMPTS)
    assert max(len(set(answer)) for answer in tiny.answers) > 8


def test_prompts_and_answers_in_one_pass_get_the_tokens_of_hugging_face(tiny, tiny_engine):
    with Executor.load(tiny_engine) as executor:
        responses = executor.generate_all([Request(prompt, MAX_OUTPUT) for prompt in PROMPTS])
        rows = list(executor.iteration_stats)
    assert [response.token_ids for response in responses] == tiny.answers
    assert any(row.context_tokens and row.generation_tokens for row in rows)


@pytest.mark.parametrize("tokens_per_block", [64, 256])
def test_blocks_of_every_size_hold_them(tiny, tmp_path, tokens_per_block):
    folder = build_tiny(tiny.checkpoint, tmp_path / "engine", tokens_per_block=tokens_per_block)
    with Executor.load(folder) as executor:
        responses = executor.generate_all([Request(prompt, MAX_OUTPUT) for prompt in PROMPTS])
    assert [response.token_ids for response in responses] == tiny.answers


def test_a_llama_with_slowed_rotations_gets_them_too(small_checkpoint, tmp_path):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    slowed = write_tiny(small_checkpoint.path, tmp_path / "llama", rope_parameters=rope)
    expected = greedy(slowed, PROMPTS[-2:])
    with Executor.load(build_tiny(slowed, tmp_path / "engine")) as executor:
        responses = executor.generate_all([Request(prompt, MAX_OUTPUT) for prompt in PROMPTS[-2:]])
    assert [response.token_ids for response in responses] == expected


def test_logits_are_openvinos_and_so_are_tokens_while_the_two_best_differ_by_more(small_checkpoint, tmp_path):
    """The same weights, with all of their digits, in the GGUF file and in a Hugging Face folder."""
    (tmp_path / "hf").mkdir()
    as_huggingface.save(as_huggingface.dequantized(small_checkpoint.path, "float32"), tmp_path / "hf")
    tokenizer.write_files(small_checkpoint, GgufFile(small_checkpoint.path).metadata, tmp_path / "hf")
    folders = (
        build_small(small_checkpoint, tmp_path / "a", quant_algo=None),
        build_tiny(checkpoints.fetch(tmp_path / "hf"), tmp_path / "b"),
    )
    models = [engine_model.load(folder) for folder in folders]
    for model in models:
        model.allocate_kv_cache(12)
    chunks = [Chunk(prompt, 0, blocks) for prompt, blocks in zip(PROMPTS[-4:], _blocks(12, 3))]
    compared = 0
    for _ in range(MAX_OUTPUT):
        theirs, ours = (np.array(model.forward(chunks)) for model in models)
        assert np.abs(theirs - ours).max() < OPENVINO_TOLERANCE
        second, first = np.sort(theirs, axis=1)[:, -2:].T
        clear = first - second > 2 * OPENVINO_TOLERANCE
        assert (theirs.argmax(1) == ours.argmax(1))[clear].all()
        compared += clear.sum()
        chunks = [
            Chunk([int(row.argmax())], chunk.num_past + len(chunk.token_ids), chunk.blocks)
            for row, chunk in zip(theirs, chunks)
        ]
    assert compared > MAX_OUTPUT


def _blocks(number: int, each: int) -> list[list[int]]:
    order = np.random.default_rng(0).permutation(number).tolist()
    return [order[start : start + each] for start in range(0, number, each)]


# Precisions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_precision_runs_and_is_near_the_checkpoint(tiny, tmp_path, dtype):
    folder = build_tiny(tiny.checkpoint, tmp_path / "engine", dtype=dtype)
    exact = build_tiny(tiny.checkpoint, tmp_path / "exact")
    logits = []
    for each in (folder, exact):
        model = engine_model.load(each)
        model.allocate_kv_cache(4)
        logits.append(np.array(model.forward([Chunk(PROMPTS[-1], 0, [2, 0]), Chunk(PROMPTS[2], 0, [1])])))
    error = np.abs(logits[0] - logits[1]).max() / np.abs(logits[1]).max()
    assert 0 < error <= {"bfloat16": 0.1, "float16": 0.02}[dtype]


# Attention ------------------------------------------------------------------------------------------------------------


def example(cache, counts, most_tokens) -> runner.Step:
    """Sequences of several lengths, some of them in more than one block, that lie anywhere in the cache."""
    num_blocks, width = cache.shape[:2]
    order = np.random.default_rng(0).permutation(num_blocks).tolist()
    chunks = []
    for index, count in enumerate(counts):
        length = max(count, min(most_tokens, num_blocks // len(counts) * width) - index * (width // 2 + 1))
        blocks = [order.pop() for _ in range(-(-length // width))]
        chunks.append(Chunk([1] * count, length - count, blocks))
    return runner.step_of(chunks, width)


def random_case(shape, heads, counts, most_tokens, **options):
    """Queries, cache and step; the cache is of `shape`, [blocks, tokens of a block, 2 × KV heads, head size]."""
    random = torch.Generator().manual_seed(1)
    cache, queries = (torch.randn(size, generator=random) for size in (shape, (sum(counts), heads, shape[-1])))
    return queries.to(**options), cache.to(**options), example(cache, counts, most_tokens)


def paged(queries, keys, values, tables, lengths, begins):
    """What a kernel over blocks computes, sequence by sequence, from the arguments that it is given."""
    parts = []
    for index, length in enumerate(lengths.tolist()):
        own = queries[begins[index] : begins[index + 1]]
        blocks = tables[index, : -(-length // keys.shape[1])].long()
        own_keys, own_values = (part[blocks].flatten(0, 1)[:length].transpose(0, 1)[None] for part in (keys, values))
        seen = torch.ones(len(own), length, dtype=torch.bool).tril(length - len(own))
        attended = torch.nn.functional.scaled_dot_product_attention(
            own.transpose(0, 1)[None], own_keys, own_values, attn_mask=seen, enable_gqa=True
        )
        parts.append(attended[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [5, 1, 3, 1], [1, 9], [4]])
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (9, 3)])
def test_gathering_is_attention(counts, heads, kv_heads):
    queries, cache, step = random_case((9, 8, 2 * kv_heads, 16), heads, counts, 24)
    found = attention.by_gathering(step)(queries, cache)
    expected = paged(queries, *cache.chunk(2, 2), step.tables, step.lengths, step.begins)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_flash_attention_is_given_what_it_takes(monkeypatch):
    """A stand-in for the kernel, which a CPU has not: the arguments are bound to the real function's signature."""
    from torch.nn.attention import varlen

    signature, calls = inspect.signature(varlen.varlen_attn), []

    def stand_in(*positional, **named):
        given = SimpleNamespace(**signature.bind(*positional, **named).arguments)
        for indices in (given.cu_seq_q, given.seqused_k, given.block_table):
            assert indices.dtype == torch.int32 and indices.is_contiguous()
        assert all(tensor.stride(-1) == 1 for tensor in (given.query, given.key, given.value))
        assert given.max_q >= given.cu_seq_q.diff().max() and given.max_k >= given.seqused_k.max()
        assert (given.window_size, given.enable_gqa, given.num_splits) == ((-1, 0), True, 1)
        calls.append(given.max_q)
        return paged(given.query, given.key, given.value, given.block_table, given.seqused_k, given.cu_seq_q)

    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    for counts in ([1, 1, 1, 1], [5, 1, 2]):
        queries, cache, step = random_case((9, 256, 4, 16), 4, counts, 600)
        found, expected = (way(step)(queries, cache) for way in (attention.by_flash_attention, attention.by_gathering))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert calls == [1, 5]


@with_gpu
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 5e-2), (torch.float16, 1e-2)])
def test_flash_attention_reads_the_blocks_where_they_lie(dtype, most, kv_heads):
    for counts in ([1, 1, 1, 1], [5, 1, 2]):
        queries, cache, step = random_case((17, 256, 2 * kv_heads, 64), 4, counts, 1024, dtype=dtype, device="cuda")
        assert attention.choose(cache) is attention.by_flash_attention
        with torch.inference_mode():
            found = attention.by_flash_attention(step.to("cuda"))(queries, cache)
            expected = attention.by_gathering(step.to("cuda"))(queries, cache)
        assert (found.float() - expected.float()).abs().max() <= most


# Graphs ---------------------------------------------------------------------------------------------------------------


class StandInGraph:
    """Stands in for a CUDA graph on a CPU: a replay computes again, into the tensors that the recording gave."""

    recording = None

    def replay(self):
        for kept, new in zip(self.found, self.again()):
            kept.copy_(new)


@pytest.fixture
def graphs_without_gpu(monkeypatch):
    """`torch.cuda` as far as recording needs it; gives the number of sequences of each recording, in their order."""
    recorded = []

    @contextlib.contextmanager
    def record(graph, pool, capture_error_mode):
        StandInGraph.recording = graph
        yield
        StandInGraph.recording = None

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandInGraph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    compute, step_in_buffer = TorchModel._compute, StepBuffers.step

    def computed(model, step):
        found = compute(model, step)
        if graph := StandInGraph.recording:
            recorded.append(len(step.counts))
            graph.found, graph.again = found, lambda: compute(model, graph.step())
        return found

    def step(buffers, size):
        if graph := StandInGraph.recording:
            graph.step = lambda: step_in_buffer(buffers, size)
        return step_in_buffer(buffers, size)

    monkeypatch.setattr(TorchModel, "_compute", computed)
    monkeypatch.setattr(StepBuffers, "step", step)
    return recorded


DRAFTS = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3}
FREE = IterationPrices(4, [1, 2, 5], [1, 1, 1], [1, 1, 1])
KNOWS = """
TEXTS = {texts}

class Drafter:
    def propose(self, token_ids, k):
        [text] = [text for text in TEXTS if text[:len(token_ids)] == token_ids]
        return text[len(token_ids):][:k]
"""


@pytest.fixture(params=[False, True], ids=["", "drafts"])
def drafting(request, tiny, tmp_path):
    """An executor's settings: without drafts, and with those of a drafter that knows the answers."""
    if not request.param:
        return ExecutorConfig()
    own = tmp_path / "drafter.py"
    own.write_text(KNOWS.format(texts=[prompt + answer for prompt, answer in zip(PROMPTS, tiny.answers)]))
    return ExecutorConfig(speculative_config=DRAFTS, drafter_path=own)


def test_recorded_steps_give_the_tokens_of_hugging_face(tiny, tiny_engine, graphs_without_gpu, monkeypatch, drafting):
    sizes = [20, 16, 8, 4, 2, 1] if drafting.speculative_config else [4, 2, 1]
    allocate = TorchModel.allocate_kv_cache

    def allocate_and_record(model, num_blocks, tokens_of_answer):
        allocate(model, num_blocks, tokens_of_answer)
        with torch.inference_mode():
            model._graphs = model._recorded(num_blocks, tokens_of_answer)

    monkeypatch.setattr(TorchModel, "allocate_kv_cache", allocate_and_record)
    with Executor(engine_model.load(tiny_engine), drafting, prices=FREE) as executor:
        assert graphs_without_gpu == sizes
        responses = executor.generate_all([Request(prompt, MAX_OUTPUT) for prompt in PROMPTS])
        assert {row.scheduled for row in executor.iteration_stats} >= {1, 2, 3, 4} - {2}
        assert any(row.accepted for row in executor.iteration_stats) == bool(drafting.speculative_config)
    assert [response.token_ids for response in responses] == tiny.answers
    assert graphs_without_gpu == sizes  # recorded once


def test_an_answers_tokens_have_the_logits_of_a_prompts_also_where_no_graph_has_room(tiny_engine, graphs_without_gpu):
    model, tokens = engine_model.load(tiny_engine), PROMPTS[3]
    model.allocate_kv_cache(4)
    model.forward([Chunk(tokens[:20], 0, [2, 0])])
    expected = np.array(model.forward([Chunk(tokens[20:], 20, [2, 0], num_logits=11)]))
    with torch.inference_mode():
        model._graphs = model._recorded(4, 1)
    found = np.array(model.forward([Chunk(tokens[20:], 20, [2, 0], is_context=False, num_logits=11)]))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@with_gpu
def test_a_recorded_step_gives_what_the_same_step_gives_eagerly(tiny, tmp_path, drafting):
    folder = engine.build(
        tiny.checkpoint, dataclasses.replace(SMALL_BUILD, quant_algo=None), tmp_path / "engine", tier="cuda"
    )
    with Executor(engine_model.load(folder), drafting, prices=FREE) as executor:
        assert executor.model._graphs is not None
        responses = executor.generate_all([Request(prompt, MAX_OUTPUT) for prompt in PROMPTS])
    assert [response.token_ids for response in responses] == tiny.answers


# What is built --------------------------------------------------------------------------------------------------------


def test_the_config_says_what_the_engine_is_for(tiny, tiny_engine):
    content = json.loads((tiny_engine / "config.json").read_text())
    assert (content["tier"], content["device"]) == ("cuda", "cpu")
    assert content["version"] == engine.engine_version("cuda") == f"torch {torch.__version__.partition('+')[0]}"
    assert content["pretrained_config"]["architecture"] == "LlamaForCausalLM"
    assert {file.name for file in tiny_engine.iterdir()} >= {"model.safetensors", "tokenizer.json"}


def test_the_number_of_parameters_is_the_checkpoints(tiny, tiny_engine):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny.checkpoint.path)
    assert read(tiny_engine).pretrained_config["num_parameters"] == model.num_parameters()


def change_config(checkpoint, folder, **changed):
    """A copy of a Hugging Face folder with another config."""
    folder.mkdir()
    for file in checkpoint.path.iterdir():
        os.link(file, folder / file.name)
    (folder / "config.json").unlink()
    content = json.loads((checkpoint.path / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps(content))
    return checkpoints.fetch(folder)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"model_type": "gpt2"}, "holds a 'gpt2' model, and the engine computes models of the Llama family"),
        ({"hidden_act": "gelu"}, "has hidden_act = 'gelu', and the engine computes 'silu' only"),
        ({"attention_bias": True}, "has attention_bias = True, and the engine computes False only"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "has rope_type = 'linear', and the engine computes"),
        ({"num_hidden_layers": 3}, "cannot be read .*model.layers.2.input_layernorm.weight"),
    ],
    ids=str,
)
def test_a_model_that_is_not_computed_is_refused_and_nothing_is_left(tiny_llama, tmp_path, changed, message):
    checkpoint = change_config(tiny_llama, tmp_path / "changed", **changed)
    with pytest.raises(CourseError, match=message):
        build_tiny(checkpoint, tmp_path / "engine")
    assert [path.name for path in tmp_path.iterdir()] == ["changed"]


def test_weights_that_are_cut_short_are_refused(tiny_llama, tmp_path):
    folder = build_tiny(tiny_llama, tmp_path / "engine")
    os.truncate(folder / "model.safetensors", 1000)
    with pytest.raises(CourseError, match=r"engine cannot be loaded \(.+\). Build it again: `inflight build"):
        Executor.load(folder)


# Where it runs --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_engine_for_a_gpu_is_refused_in_a_sentence_where_there_is_none(tiny_llama, tmp_path):
    config = dataclasses.replace(SMALL_BUILD, quant_algo=None)
    folder = engine.build(tiny_llama, config, tmp_path / "engine", tier="cuda")
    assert json.loads((folder / "config.json").read_text())["device"] == "cuda"
    message = (
        r"is for an NVIDIA GPU \(tier cuda\), and PyTorch can use none here \(.+\)\. Load it on a machine with one"
    )
    for load in (Executor.load, engine_model.load):
        with pytest.raises(CourseError, match=message) as refusal:
            load(folder)
        assert "\n" not in str(refusal.value)
