"""The time of an iteration over that of reading memory: what is read, what is divided by what, and by which kind."""

import dataclasses
import json

import pytest

from inflight import engine
from inflight.bench import bandwidth, floor
from inflight.checkpoint import GgufFile
from inflight.engine import openvino_profile
from inflight.engine.config import ExecutorConfig, Request
from inflight.engine.executor import Executor
from inflight.errors import CourseError
from tests.engines import SMALL_LAYERS, SMALL_VOCAB, TINY_LLAMA, build_small, build_tiny, write_tiny

PRODUCTS = (openvino_profile.ATTENTION, openvino_profile.FEED_FORWARD, openvino_profile.OUTPUT)


@pytest.fixture(scope="module")
def source(small_checkpoint):
    return GgufFile(small_checkpoint.path)


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch):
    """These tests look at figures that do not depend on how fast memory is."""
    monkeypatch.setattr(bandwidth, "CPU_BUFFER_BYTES", 2**22)


def test_the_weights_count_as_the_checkpoint_stores_them(checkpoint, source):
    stored = floor.weight_bytes(GgufFile(checkpoint.path))
    assert 0.97 * checkpoint.path.stat().st_size < stored["all"] < checkpoint.path.stat().st_size
    small = floor.weight_bytes(source)
    assert small["embedding"] == SMALL_VOCAB * 576 * 2  # 16 bits a weight, and the output's matrix is the same one
    assert small["all"] == sum(value for kind, value in small.items() if kind != "all")


def test_of_an_embedding_that_is_not_the_outputs_matrix_a_row_is_read(source, monkeypatch):
    table = source.tensor_table()
    [embedding] = [row for row in table if row["name"] == "token_embd.weight"]
    monkeypatch.setattr(source, "tensor_table", lambda: [*table, {**embedding, "name": "output.weight"}])
    assert floor.weight_bytes(source)["embedding"] == embedding["bytes"]


def test_the_floor_is_bytes_over_bandwidth():
    assert floor.floor_ms(3e9, 6e9) == 500


def test_the_bandwidth_is_that_of_a_memory():
    assert 1e8 < bandwidth.read_bandwidth() < 1e14
    assert 1e8 < bandwidth.read_bandwidth(threads=1) < 1e14


def test_only_iterations_of_all_requests_and_no_prompt_are_timed(small_engine):
    requests = [Request([5, 6, 7], 20) for _ in range(3)]
    with Executor.load(small_engine) as executor:
        assert floor.iteration_ms(executor, requests) > 0
        with pytest.raises(CourseError, match="Only 2 iterations had all 3 sequences"):
            floor.iteration_ms(executor, [dataclasses.replace(one, request_output_len=4) for one in requests])


def test_rows_kinds_and_ratios_fit_together(small_checkpoint, small_engine):
    steps: list[str] = []
    result = floor.bench(small_engine, small_checkpoint, 3, (1, 4), 16, 24, progress=steps.append)
    assert set(result) == {"machine", "devices", "settings", "rows", "rows_by_kind", "ratios"}
    assert result["devices"] == dict.fromkeys(("1 sequences", "4 sequences"), result["machine"]["cpu"])
    assert set(result["ratios"]) == {"iteration_over_floor_1", "iteration_over_floor_4"}
    assert json.loads(json.dumps(result)) == result
    info = engine.read(small_engine)
    for row in result["rows"]:
        assert row["kv_mb"] * 1e6 == pytest.approx(row["requests"] * (16 + 12) * info.kv_cache_bytes_per_token)
        needed_ms = (row["weight_mb"] + row["kv_mb"]) * 1e6 / (row["read_gb_per_s"] * 1e9) * 1000
        assert row["floor_ms"] == pytest.approx(needed_ms)
        spread = result["ratios"][f"iteration_over_floor_{row['requests']}"]
        assert 0 < spread["min"] <= spread["median"] == row["ratio"] <= spread["max"]
        kinds = [one for one in result["rows_by_kind"] if one["requests"] == row["requests"]]
        assert [one["kind"] for one in kinds] == [*openvino_profile.KINDS, floor.BETWEEN]
        assert sum(one["floor_ms"] or 0 for one in kinds) == pytest.approx(row["floor_ms"])
    assert sum(step.startswith("round 2 of 3") for step in steps) == 3


@pytest.mark.parametrize("shares", [True, False])
def test_of_an_engine_of_pytorch_what_it_reads_for_a_token_counts(small_checkpoint, tmp_path, shares):
    tiny = write_tiny("llama", small_checkpoint.path, tmp_path / "tiny", tie_word_embeddings=shares)
    folder = build_tiny(tiny, tmp_path / "engine")
    result = floor.bench(folder, tiny, 1, (1, 2), 16, 24)
    assert "rows_by_kind" not in result and set(result["devices"].values()) == {result["machine"]["cpu"]}
    info = engine.read(folder)
    numbers = info.pretrained_config["num_parameters"]
    unread = 0 if shares else SMALL_VOCAB * TINY_LLAMA["hidden_size"]
    assert [row["weight_mb"] for row in result["rows"]] == pytest.approx([4 * (numbers - unread) / 1e6] * 2, rel=0.02)
    assert result["rows"][1]["kv_mb"] == pytest.approx(2 * 28 * info.kv_cache_bytes_per_token / 1e6)


@pytest.mark.parametrize(
    "batches, prompt_tokens, answer_tokens, message",
    [((1, 5), 16, 8, "has 4 slots and 5 are needed"), ((1,), 49, 8, "do not fit"), ((1,), 48, 48, "do not fit")],
)
def test_an_engine_that_is_too_small_is_refused(
    small_checkpoint, small_engine, batches, prompt_tokens, answer_tokens, message
):
    with pytest.raises(CourseError, match=message):
        floor.bench(small_engine, small_checkpoint, 1, batches, prompt_tokens, answer_tokens)


def test_no_round_is_refused(small_checkpoint, small_engine):
    with pytest.raises(CourseError, match="0 rounds"):
        floor.bench(small_engine, small_checkpoint, 0)


# The profile ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quant_algo", ["W4A16", "W4A8", "W8A16", None])
def test_every_product_of_the_graph_is_known_by_its_kind(small_checkpoint, tmp_path, quant_algo):
    """Seven products a layer, one for the logits; one more makes the angles of the rotary embedding.

    The exact products of 4-bit weights are four a layer, each with the sums of its input.
    """
    info = engine.read(build_small(small_checkpoint, tmp_path / "engine", quant_algo=quant_algo))
    model = openvino_profile._ProfiledModel(info)
    kinds = list(model._products.values())
    counts = [kinds.count(kind) for kind in (*PRODUCTS, openvino_profile.ROTARY)]
    feed_forward = 4 if (quant_algo or "").startswith("W4") else 3
    assert counts == [4 * SMALL_LAYERS, feed_forward * SMALL_LAYERS, 1, 1]
    ran = model.profile(floor._iteration([[5], [6]], 10, info), 3)
    assert all(ran.ms[kind] > 0 and ran.kernels[kind] for kind in (*PRODUCTS, openvino_profile.KERNEL))
    products = {node.node_name for node in model._request.profiling_info if node.node_type.startswith("FullyConnected")}
    assert products and products <= set(model._products)  # none is among the rest


def test_the_kernels_are_those_of_the_iteration(small_engine):
    info = engine.read(small_engine)
    one, four = openvino_profile.profile(info, [floor._iteration([[5]] * n, 60, info) for n in (1, 4)], 5)
    for found in (one, four):
        assert list(found.ms) == list(openvino_profile.KINDS)
        assert sum(found.ms.values()) > 0
        assert any("avx" in name or "gemm" in name or "ref" in name for name in found.kernels[PRODUCTS[0]])


def test_an_engine_in_service_takes_no_times(small_engine):
    with Executor.load(small_engine, ExecutorConfig()) as executor:
        assert executor.model._compiled.get_property("PERF_COUNT") == "NO"
        assert executor.model._graph is None
