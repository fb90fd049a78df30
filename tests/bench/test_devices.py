"""Which device each side computes on, and what may be compared."""

import json

import pytest
from typer.testing import CliRunner

from inflight import machine, tiers
from inflight.bench import compare, devices, recorded, workload
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.tiers import Gpu, Tier

H200 = Gpu(0, "GPU-a", "NVIDIA H200", 2**37, 2**37, "580.65.06", (9, 0))


@pytest.fixture
def with_gpu(monkeypatch):
    """A machine that has a GPU which PyTorch could use."""
    monkeypatch.setattr(tiers, "here", lambda: Tier("cuda", "NVIDIA H200", H200))
    monkeypatch.setattr(tiers, "gpus", lambda: [H200])


def test_sides_on_one_device_may_be_compared():
    devices.check({"V1": "NVIDIA H200", "inflight_batching": "NVIDIA H200"})
    devices.check({"ours": "NVIDIA H200", "theirs": "nvidia h200"})


def test_sides_on_two_devices_may_be_compared_when_asked_for():
    sides = {"llama-python": "NVIDIA H200", "ensemble": "AMD EPYC"}
    devices.check(sides, mix_devices=True)
    with pytest.raises(CourseError) as refused:
        devices.check(sides)
    assert str(refused.value) == (
        "llama-python computes on NVIDIA H200 and ensemble computes on AMD EPYC: a ratio would compare the devices. "
        "Put both on one (an engine by `--tier`, all else by CUDA_VISIBLE_DEVICES), or ask for it with --mix-devices."
    )


def test_an_engine_of_the_cpu_is_not_compared_with_a_baseline_on_the_gpu(with_gpu, small_engine, tmp_path):
    requests = workload.trace("mild", load_tokenizer(small_engine), num_requests=1)
    with pytest.raises(CourseError, match="llama-python computes on NVIDIA H200 and ensemble computes on "):
        compare.compare("llama-python", "ensemble", small_engine, requests, tmp_path / "work")
    assert not (tmp_path / "work").exists()  # before anything starts


def test_an_engine_says_its_device_whatever_the_machine_has(with_gpu, small_engine):
    assert devices.of_engine(small_engine) == machine.describe()["cpu"]


# Results that are kept ------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch, tmp_path):
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    return tmp_path


def result(device: str, median: float) -> dict:
    return {
        "machine": {"cores": 16},
        "devices": {"V1": device, "inflight_fused_batching": device},
        "settings": {"rounds": 2},
        "rows": [{"way": "V1", "tokens_per_s": median}],
        "ratios": {"throughput": {"median": median, "min": 1.0, "max": 3.0}},
    }


def test_results_are_kept_by_benchmark_model_and_device(kept):
    path = recorded.save(result("NVIDIA H200", 2.5), "compare-V1", "random-llama-3-8b")
    assert path.name == "compare-v1_random-llama-3-8b_nvidia-h200.json"
    assert json.loads(path.read_text())["settings"] == {"rounds": 2, "checkpoint": "random-llama-3-8b"}
    recorded.save(result("AMD EPYC", 1.5), "compare-V1", "smollm2-135m-instruct")
    recorded.save(result("NVIDIA H200", 9.0), "floor", "random-llama-3-8b")
    table = recorded.table("compare-V1", "ratios")
    assert table.to_dict("list") == {
        "device": ["NVIDIA H200", "AMD EPYC"],
        "cores": [16, 16],
        "checkpoint": ["random-llama-3-8b", "smollm2-135m-instruct"],
        "ratio": ["throughput"] * 2,
        "median": [2.5, 1.5],
        "min": [1.0] * 2,
        "max": [3.0] * 2,
    }
    assert recorded.table("floor")["tokens_per_s"].tolist() == [9.0]


def test_every_result_in_the_repository_can_be_read():
    for path in recorded.RESULTS.glob("*.json"):
        benchmark = path.name.partition("_")[0]
        assert not recorded.table(benchmark).empty and not recorded.table(benchmark, "ratios").empty
        content = json.loads(path.read_text())
        device = " and ".join(dict.fromkeys(content["devices"].values()))
        assert path == recorded.path(benchmark, content["settings"]["checkpoint"], device)


# Every command that keeps its result ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, measures, kept_as",
    [
        (["serving-tax", "--engine-dir", "ENGINE"], "load_generator.serving_tax", "serving-tax_small"),
        (["compare", "V1", "inflight_batching"], "compare.compare", "compare-v1-inflight-batching_small"),
        (
            ["compare", "max_utilization", "guaranteed_no_evict", "--in-process", "--kv-cache-tokens", "1024"],
            "in_process.compare",
            "compare-in-process-max-utilization-guaranteed-no-evict_small",
        ),
        (["floor"], "floor.bench", "floor_small"),
        (["batchers"], "dynamic_batching.bench", "batchers_smollm2-135m-instruct"),
    ],
)
def test_a_command_keeps_what_it_printed(
    kept, small_engine, small_checkpoint, tmp_path, monkeypatch, arguments, measures, kept_as
):
    asked = []
    device = machine.device_name("cpu")
    measured = result(device, 2.5) | ({"cost": {}} if arguments[0] == "batchers" else {})
    monkeypatch.setattr(f"inflight.bench.{measures}", lambda *given, **named: asked.append(given) or dict(measured))
    monkeypatch.setattr("inflight.cli.terminal.fetch", lambda source: small_checkpoint)
    monkeypatch.setattr("inflight.engine.cached", lambda source, config, tier: small_engine, raising=False)
    monkeypatch.setattr("inflight.models.huggingface.folder", lambda source: tmp_path)
    monkeypatch.setattr("inflight.cli.bench._requests", lambda *given: [])
    filled = [str(small_engine) if word == "ENGINE" else word for word in arguments]
    ran = CliRunner().invoke(app, ["bench", *filled, "--save", "--json"])
    assert ran.exit_code == 0, ran.exception
    [path] = kept.glob("*.json")
    assert path == recorded.path(*kept_as.split("_"), device) and len(asked) == 1
    assert json.loads(path.read_text())["ratios"] == json.loads(ran.stdout)["ratios"] == measured["ratios"]
