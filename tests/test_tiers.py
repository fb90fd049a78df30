"""Which tier a machine runs, with a stand-in for PyTorch's build for GPUs, which this machine need not have."""

import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest

from inflight import machine, tiers
from inflight.engine.building import builder
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.serving import process

H200 = SimpleNamespace(name="NVIDIA H200", total_memory=150754820096, major=9, minor=0)
T4 = SimpleNamespace(name="Tesla T4", total_memory=15828320256, major=7, minor=5)
V100 = SimpleNamespace(name="Tesla V100-SXM2-16GB", total_memory=16935682048, major=7, minor=0)
FOR_GPUS, FOR_CPUS = ("2.13.0+cu130", "13.0"), ("2.13.0+cpu", None)


@pytest.fixture
def pytorch(monkeypatch):
    """A machine whose PyTorch is the build for GPUs and finds this one; or None, with what it says of that."""
    monkeypatch.setattr(tiers, "torch_build", lambda: FOR_GPUS)

    def finds(gpu: SimpleNamespace | None, says: str = "") -> None:
        def is_available() -> bool:
            if says:
                warnings.warn(says, stacklevel=1)
            return gpu is not None

        tiers.here.cache_clear()
        cuda = SimpleNamespace(
            is_available=is_available,
            get_device_properties=lambda index: gpu,
            get_arch_list=lambda: ["sm_75", "sm_90", "sm_120", "compute_120"],
        )
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    yield finds
    tiers.here.cache_clear()


@pytest.fixture
def gpu_is_there(monkeypatch):
    """A machine that has an NVIDIA GPU."""
    monkeypatch.setattr(tiers.bootstrap, "has_nvidia_gpu", lambda: True)


def test_a_gpu_that_pytorch_can_use_is_the_tier_cuda(pytorch):
    pytorch(H200)
    found = tiers.here()
    assert (found.name, found.fix) == ("cuda", "")
    assert found.why == "NVIDIA H200, 140.4 GiB, PyTorch's build for CUDA 13.0"
    facts = machine.describe()
    assert (facts["gpu"], facts["tier"]) == ("NVIDIA H200, 140.4 GiB", "cuda")
    assert machine.device_name() == machine.device_name("cuda") == "NVIDIA H200"
    assert machine.device_name("cpu") == facts["cpu"]


def test_doctor_says_why_a_gpu_is_not_used_and_what_to_do(pytorch, gpu_is_there):
    pytorch(None, "The NVIDIA driver on your system is too old (found version 12040).\nMore of it.")
    [row] = [check for check in machine.checks() if check.name == "tier"]
    assert not row.ok and not row.required
    assert row.have.startswith("cpu: ") and row.have.endswith("is too old (found version 12040).")
    assert row.fix.startswith("update the NVIDIA driver, or set the course up again")


@pytest.mark.parametrize(
    "gpu, build, why",
    [
        (H200, FOR_CPUS, "there is an NVIDIA GPU, and PyTorch 2.13.0+cpu is the build for CPUs"),
        (H200, None, "there is an NVIDIA GPU, and PyTorch is not installed"),
        (V100, FOR_GPUS, "Tesla V100-SXM2-16GB is older than what PyTorch's build for CUDA 13.0 computes on"),
    ],
)
def test_a_gpu_that_is_not_used_says_why_and_what_to_do(pytorch, gpu_is_there, monkeypatch, gpu, build, why):
    pytorch(gpu)
    monkeypatch.setattr(tiers, "torch_build", lambda: build)
    found = tiers.here()
    assert (found.name, found.why) == ("cpu", why) and " make clean setup`" in found.fix


def test_pytorchs_build_is_read_without_loading_it():
    script = "import sys; from inflight import tiers; print(*tiers.torch_build()); print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    import torch

    assert printed == [torch.__version__, str(torch.version.cuda), "False"]


def test_where_every_gpu_is_hidden_there_is_none_and_a_model_for_one_says_so(pytorch, monkeypatch):
    monkeypatch.setattr(tiers.bootstrap, "has_nvidia_gpu", lambda: False)
    pytorch(None)
    assert (tiers.here().name, tiers.here().fix) == ("cpu", "")
    assert tiers.checked(None) == "cpu" and tiers.checked("cpu") == "cpu"
    with pytest.raises(CourseError, match="A model is to compute on a GPU, and PyTorch's build for CUDA 13.0 finds no"):
        tiers.checked("cuda:0")


@pytest.mark.parametrize("found, dtype", [(H200, "bfloat16"), (T4, "float16")])
def test_an_engine_for_a_gpu_without_bfloat16_is_built_in_float16(pytorch, found, dtype):
    pytorch(found)
    assert builder._resolved(BuildConfig(), "cuda").dtype == dtype
    assert builder._resolved(BuildConfig(), "cpu").dtype == "float32"
    assert builder._resolved(BuildConfig(dtype="float32"), "cuda").dtype == "float32"


@pytest.mark.parametrize("found, kind", [(None, "KIND_CPU"), (H200, "KIND_GPU")])
def test_the_models_without_an_engine_follow_the_tier(pytorch, tmp_path, found, kind):
    pytorch(found)
    names = (*repository.GPT2, "text-embedding")
    folders = {"gpt2_checkpoint_dir": tmp_path, "checkpoint_dir": tmp_path}
    repo = repository.assemble(tmp_path / "repository", models=names, **folders)
    for name in names:
        assert f"kind: {kind}\n" in (repo / name / "config.pbtxt").read_text()
    by_hand = repository.assemble(tmp_path / "other", models=names[:1], instance_kind="KIND_CPU", **folders)
    assert "kind: KIND_CPU\n" in (by_hand / names[0] / "config.pbtxt").read_text()


def test_the_server_has_the_drivers_library(tmp_path, monkeypatch):
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}/driver")
    found = process.environment(tmp_path)
    assert found["LD_LIBRARY_PATH"].endswith(f":{tmp_path}/driver") and "/nowhere" not in found["LD_LIBRARY_PATH"]
