"""Which tier a machine runs, with a stand-in for the driver's nvidia-smi and for PyTorch's build."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inflight import machine, tiers
from inflight.engine import builder
from inflight.engine.config import BuildConfig
from inflight.errors import CourseError
from inflight.triton import process, repository

H200 = "0, GPU-aaaa-1, NVIDIA H200, 143771, 143000, 580.65.06, 9.0"
T4 = "0, GPU-tttt-1, Tesla T4, 15360, 15000, 580.65.06, 7.5"
FOR_GPUS, FOR_CPUS = ("2.13.0+cu130", "13.0"), ("2.13.0+cpu", None)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine whose nvidia-smi prints these rows, and whose PyTorch is the build for GPUs."""
    monkeypatch.setenv(tiers.VISIBLE, "")  # so that it is put back, too, where it was not set
    monkeypatch.delenv(tiers.VISIBLE)
    monkeypatch.setattr(tiers, "ELSEWHERE", ())
    monkeypatch.setattr(tiers, "torch_build", lambda: FOR_GPUS)

    def shows(*rows: str, script: str = "") -> None:
        tiers._found.cache_clear()
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\n" + (script or "".join(f"echo '{row}'\n" for row in rows)))
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    yield shows
    tiers._found.cache_clear()


def test_a_gpu_that_pytorch_can_use_is_the_tier_cuda(driver):
    driver(H200)
    found = tiers.here()
    assert (found.name, found.fix) == ("cuda", "") and machine.tier() == "cuda"
    assert found.why == ("NVIDIA H200, 139.6 of 140.4 GiB free, driver 580.65.06, PyTorch's build for CUDA 13.0")
    facts = machine.describe()
    assert (facts["gpu"], facts["driver"], facts["tier"]) == ("NVIDIA H200, 140.4 GiB", "580.65.06", "cuda")
    assert machine.device_name() == machine.device_name("cuda") == "NVIDIA H200"
    assert machine.device_name("cpu") == facts["cpu"]


def test_doctor_names_the_tier_and_why(driver):
    driver(H200)
    [row] = [check for check in machine.checks() if check.name == "tier"]
    assert row.ok and row.have.startswith("cuda: NVIDIA H200, 139.6 of 140.4 GiB free, driver 580.65.06")
    driver(H200.replace("580.65.06", "535.183.01"))
    [row] = [check for check in machine.checks() if check.name == "tier"]
    assert (
        not row.ok and not row.required and row.have.startswith("cpu: NVIDIA H200 is not used: its driver 535.183.01")
    )
    assert row.fix.startswith("update the driver, or set the course up again with PIP_EXTRA_INDEX_URL")


@pytest.mark.parametrize(
    "row, build, why, fix",
    [
        (
            H200.replace("580.65.06", "570.124.06"),
            FOR_GPUS,
            "its driver 570.124.06 is older than 580, which PyTorch's build for CUDA 13.0 needs",
            "update the driver, or set the course up again with PIP_EXTRA_INDEX_URL as "
            "https://pytorch.org/get-started/locally/ names it for CUDA 12: `make clean setup`",
        ),
        (
            H200,
            FOR_CPUS,
            "PyTorch 2.13.0+cpu is the build for CPUs",
            "set the course up again where pip finds the build for GPUs, with no PIP_EXTRA_INDEX_URL that names "
            "PyTorch's index for CPUs: `make clean setup`",
        ),
        (H200, None, "PyTorch is not installed", "set the course up: `make setup`"),
        (
            "0, GPU-v, Tesla V100-SXM2-16GB, 16384, 16000, 580.65.06, 7.0",
            FOR_GPUS,
            "it has compute capability 7.0, and PyTorch's build for CUDA 13.0 needs 7.5",
            "set the course up again with PIP_EXTRA_INDEX_URL as https://pytorch.org/get-started/locally/ names it for "
            "CUDA 12: `make clean setup`",
        ),
    ],
)
def test_a_gpu_that_is_not_used_says_why_and_what_to_do(driver, monkeypatch, row, build, why, fix):
    monkeypatch.setattr(tiers, "torch_build", lambda: build)
    driver(row)
    found, name = tiers.here(), row.split(", ")[2]
    assert (found.name, found.why, found.fix) == ("cpu", f"{name} is not used: {why}", fix)
    assert tiers.device() == "cpu" and tiers.VISIBLE not in os.environ


@pytest.mark.parametrize("setting", ["", "-1", "NoDevFiles"])
def test_cuda_visible_devices_can_hide_every_gpu(driver, monkeypatch, setting):
    driver(H200)
    monkeypatch.setenv(tiers.VISIBLE, setting)
    assert (tiers.here().name, tiers.here().why) == ("cpu", "CUDA_VISIBLE_DEVICES hides the GPU")
    assert tiers.device() == "cpu" and os.environ[tiers.VISIBLE] == setting


def test_pytorchs_build_is_read_without_loading_it():
    script = "import sys; from inflight import tiers; print(*tiers.torch_build()); print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    import torch

    assert printed == [torch.__version__, str(torch.version.cuda), "False"]


def test_a_model_that_is_to_compute_on_a_gpu_where_none_is_used_says_so(driver):
    driver(H200.replace("580.65.06", "535.183.01"))
    assert tiers.checked(None) == "cpu" and tiers.checked("cpu") == "cpu"
    with pytest.raises(CourseError, match="A model is to compute on a GPU, and NVIDIA H200 is not used: its driver"):
        tiers.checked("cuda:0")


@pytest.mark.parametrize("row, dtype", [(H200, "bfloat16"), (T4, "float16")])
def test_an_engine_for_a_gpu_without_bfloat16_is_built_in_float16(driver, row, dtype):
    driver(row)
    assert builder._resolved(BuildConfig(), "cuda").dtype == dtype
    assert builder._resolved(BuildConfig(), "cpu").dtype == "float32"
    assert builder._resolved(BuildConfig(dtype="float32"), "cuda").dtype == "float32"


@pytest.mark.parametrize("rows, kind", [((), "KIND_CPU"), ((H200,), "KIND_GPU")])
def test_the_models_without_an_engine_follow_the_tier(driver, tmp_path, rows, kind):
    driver(*rows)
    names = (*repository.GPT2, "text-embedding")
    folders = {"gpt2_checkpoint_dir": tmp_path, "checkpoint_dir": tmp_path}
    (tmp_path / "model.safetensors").touch()
    repo = repository.assemble(tmp_path / "repository", models=names, **folders)
    for name in names:
        assert f"kind: {kind}\n" in (repo / name / "config.pbtxt").read_text()
    by_hand = repository.assemble(tmp_path / "other", models=names[:1], instance_kind="KIND_CPU", **folders)
    assert "kind: KIND_CPU\n" in (by_hand / names[0] / "config.pbtxt").read_text()


def test_the_server_has_the_drivers_library_and_the_chosen_gpu(driver, tmp_path, monkeypatch):
    driver(H200)
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}/driver")
    found = process.environment(Path("/opt/tritonserver/lib"))
    assert found["LD_LIBRARY_PATH"].endswith(f":{tmp_path}/driver") and "/nowhere" not in found["LD_LIBRARY_PATH"]
    assert found[tiers.VISIBLE] == "GPU-aaaa-1"
