"""An engine made step by step is the one that a build makes; each step changes what it says."""

import errno
import subprocess
import sys
from collections import Counter

import openvino as ov
import pytest

from inflight.checkpoint.sources import fetch
from inflight.checkpoint.weights import GgufFile
from inflight.engine.building import builder as engine
from inflight.engine.folder import MODEL_FILE, WEIGHTS_FILE, read
from inflight.engine.model import load
from inflight.engine.openvino import four_bits, steps
from tests.engines import SMALL_BUILD, SMALL_LAYERS, write_quantized


@pytest.fixture(scope="module")
def stored(small_checkpoint, tmp_path_factory):
    """The small model as people share it: a file of 4-bit weights, which its reader may not be allowed to write."""
    file = write_quantized(small_checkpoint.path, tmp_path_factory.mktemp("stored") / "stored.gguf", "Q4_1")
    file.chmod(0o444)
    return fetch(str(file))


@pytest.fixture
def by_hand(stored, tmp_path):
    """A folder with the graph as it is read, and the graph."""
    return tmp_path, steps.to_graph(stored.path, tmp_path)


def operations(graph):
    """How many operations of each type a graph has; its constants, which are data, are left out."""
    names = (node.get_type_name() for node in graph.get_ordered_ops())
    return Counter(name for name in names if name != "Constant")


def fused(program):
    """How many operations of each type a program has, as the runtime reports them; its constants are left out."""
    nodes = (node.get_rt_info()["layerType"].astype(str) for node in program.get_runtime_model().get_ordered_ops())
    return Counter(name for name in nodes if name != "Const")


def test_by_hand_it_is_the_same_as_built(stored, by_hand, tmp_path_factory):
    folder, graph = by_hand
    assert {path.name for path in folder.iterdir()} == {MODEL_FILE, WEIGHTS_FILE}
    assert four_bits.make_exact(graph, GgufFile(stored.path)) == 7 * SMALL_LAYERS
    steps.save(graph, folder)
    built = engine.build(stored, SMALL_BUILD, tmp_path_factory.mktemp("built") / "engine", tier="cpu")
    assert {path.name for path in folder.iterdir()} == {MODEL_FILE, WEIGHTS_FILE}
    assert (folder / WEIGHTS_FILE).read_bytes() == (built / WEIGHTS_FILE).read_bytes()
    assert operations(steps.read(folder)) == operations(steps.read(built)) == operations(graph)

    steps.with_pages(graph)
    steps.keep_last_tokens(graph)
    paged = operations(graph)
    assert paged["PagedAttentionExtension"] == SMALL_LAYERS and not paged["ScaledDotProductAttention"]
    assert {"block_indices", "past_lens", "last_tokens"} <= {port.get_any_name() for port in graph.inputs}
    program = steps.compiled(graph, SMALL_BUILD, "W4A16")
    joined = fused(program)
    assert joined["PagedAttention"] == SMALL_LAYERS and joined["RMS"] == 2 * SMALL_LAYERS + 1
    assert joined.total() < paged.total()
    assert steps.block_bytes(program) == load(built).block_bytes == 32 * read(built).kv_cache_bytes_per_token


def test_a_graph_that_cannot_be_written_leaves_the_old_one(by_hand, monkeypatch):
    folder, graph = by_hand
    before = (folder / MODEL_FILE).read_bytes()

    def fails(*args, **kwargs):
        raise RuntimeError("iostream error")

    monkeypatch.setattr(ov, "save_model", fails)
    with pytest.raises(OSError) as caught:
        steps.save(graph, folder)
    assert caught.value.errno == errno.ENOSPC
    assert (folder / MODEL_FILE).read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {MODEL_FILE, WEIGHTS_FILE}


MEMORY = """
import ctypes, sys
from inflight import processor
processor.KEPT_KERNELS = int(sys.argv[2])
from inflight.engine import Chunk, load

Mallinfo2 = type("Mallinfo2", (ctypes.Structure,), {"_fields_": [(f"field_{n}", ctypes.c_size_t) for n in range(10)]})
libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Mallinfo2
model = load(sys.argv[1])
model.allocate_kv_cache(64)
for tokens in [128, *range(1, 81)]:
    model.forward([Chunk([7] * tokens, 0, list(range(64)), num_logits=1)])
    if tokens in (40, 80):
        print(libc.mallinfo2().field_7)  # bytes in use
"""


def test_what_is_kept_for_lengths_that_were_met_has_a_bound(small_engine):
    def grown(kept):
        """Bytes that the second 40 lengths add."""
        command = [sys.executable, "-c", MEMORY, str(small_engine), str(kept)]
        first, second = map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
        return second - first

    assert grown(8) < grown(1000) / 4
