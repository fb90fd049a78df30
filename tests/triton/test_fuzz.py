"""Requests at random to every model of a server: none ends a process, breaks another's stream or stays in the engine.

They are made from each model's config, so that most of them pass Triton's own checks, and go over gRPC or HTTP. By
hand, as many as one likes:

    INFLIGHT_FUZZ_REQUESTS=20000 python -m pytest tests/triton/test_fuzz.py -s

Each run has a seed of its own, which it prints; INFLIGHT_FUZZ_SEED gives it.
"""

import contextlib
import json
import os
import random
import re
import secrets
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

from inflight.models import huggingface
from inflight.triton import repository
from inflight.triton.client.client import Client
from inflight.triton.repository import BASELINE, BATCH_COST, EMBEDDING, GPT2, PIPELINE
from inflight.triton.serving.server import Server
from tests.engines import active_requests, metric, wait_until
from tests.tiny_gpt2 import tiny_gpt2

NUM_REQUESTS = int(os.environ.get("INFLIGHT_FUZZ_REQUESTS", "1000"))
# Against what hangs: no request takes a second of work, whatever its values are; see the fixture of the server.
DEADLINE_S = 600
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(2 * DEADLINE_S + NUM_REQUESTS)]

SEED = int(os.environ.get("INFLIGHT_FUZZ_SEED") or secrets.randbits(31))
AT_ONCE = 5
POSITIONS = 128  # of llama-python's model, which else makes answers of 8,000 tokens for who asks for them
MODELS = (*PIPELINE, EMBEDDING, BATCH_COST, *GPT2, BASELINE)
# A path, a traceback, or a second line.
NO_SENTENCE = re.compile(r"\n|Traceback|\bAt:|\.py\b|/(tmp|home|root|usr|opt|work|var)/")

TEXTS = [
    b"Say yes.",
    b"One, two",
    b"word " * 60,
    b"<|im_start|>user",
    "\u202eright to left".encode(),
    b"",
    b"\0",
    b"\xff",
]
WHOLE = [0, 1, 2, 5, 8, 1023, 1024, 49152, -1, 2**31 - 1, -(2**31), 2**63 - 1]
REAL = [0.0, 0.5, 1.0, 1.5, -1.0, 6e4, float("nan"), float("inf")]
SIZES = [0, 3, 10**6, 2**32, -1]  # of a dimension that is wrong; not what wraps, which SECURITY.md names
# Of these, most values are such that the request is computed.
USUAL = {
    **{key: [1, 2, 6] for key in ["max_tokens", "request_output_len", "REQUEST_OUTPUT_LEN"]},
    **dict.fromkeys(["text_input", "QUERY", "text"], TEXTS[:5]),
    **{key: [1, 5, 1000] for key in ["input_ids", "TOKENS_BATCH", "PRECEDING_IDS"]},
    **{key: [0, 3] for key in ["work", "runtime_top_k", "top_k", "min_length"]},
    **{key: [1] for key in ["beam_width", "num_return_sequences"]},
    "stop": [False],
}
PARAMETERS = {"max_tokens": [1, 6, 0, -3, True, "many"], "ignore_eos": [True, False, 1], "lora": [1.5, "x"]}


class Request:
    """A request to one of the models: name -> datatype, shape and values in a row of its tensors; parameters; an id."""

    def __init__(self, choose: random.Random, config):
        self.model, self.tensors = config.name, {}
        given = [tensor for tensor in config.input if not tensor.optional or choose.random() < 0.15]
        fault, victim = choose.choice([None] * 8 + ["shape", "datatype", "missing"]), choose.choice(given).name
        for tensor in given:
            kind = type(tensor).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
            datatype = kind.removeprefix("TYPE_").replace("STRING", "BYTES")
            shape = [1] * bool(config.max_batch_size) + [n if n > 0 else choose.randint(1, 4) for n in tensor.dims]
            values = self._values(choose, tensor.name, datatype, int(np.prod(shape)))
            if tensor.name == victim and fault == "missing":
                continue
            if tensor.name == victim and fault == "datatype":
                datatype, values = ("FP32", [1.0] * len(values)) if datatype != "FP32" else ("INT32", [1] * len(values))
            if tensor.name == victim and fault == "shape":
                shape[-1] = choose.choice(SIZES)
            self.tensors[tensor.name] = datatype, shape, values
        if "input_lengths" in self.tensors and "input_ids" in self.tensors:
            self.tensors["input_lengths"] = "INT32", [1, 1], [len(self.tensors["input_ids"][2])]
        self.parameters = {}
        if config.name in GPT2:
            self.parameters = {
                name: choose.choice(values) for name, values in PARAMETERS.items() if choose.random() < 0.8
            }
        self.id = choose.choice(["", "", "7", "request № 7", "i" * 2000])
        self.over_http = choose.random() < 0.5

    @staticmethod
    def _values(choose, name, datatype, number) -> list:
        if name in USUAL and choose.random() < 0.95:
            return choose.choices(USUAL[name], k=number)
        if datatype == "BYTES":
            return choose.choices([*TEXTS, b"x" * 300_000] if choose.random() < 0.1 else TEXTS, k=number)
        if datatype in ("BOOL", "FP16", "FP32"):
            return choose.choices([False, True] if datatype == "BOOL" else REAL, k=number)
        limits = np.iinfo(triton_to_np_dtype(datatype))
        return choose.choices([value for value in WHOLE if limits.min <= value <= limits.max], k=number)

    def message(self) -> service_pb2.ModelInferRequest:
        request = service_pb2.ModelInferRequest(model_name=self.model, id=self.id)
        kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
        for name, value in self.parameters.items():
            setattr(request.parameters[name], kinds[type(value)], value)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, (datatype, shape, values) in self.tensors.items():
            request.inputs.add(name=name, datatype=datatype, shape=shape)
            array = np.array(values, object if datatype == "BYTES" else triton_to_np_dtype(datatype))
            raw = serialize_byte_tensor(array).item() if datatype == "BYTES" and array.size else array.tobytes()
            request.raw_input_contents.append(raw)
        return request

    def body(self) -> str:
        """For `generate_stream`, which has no shapes."""
        fields = {"id": self.id, **self.parameters}
        for name, (_, _, values) in self.tensors.items():
            texts = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
            fields[name] = texts[0] if len(texts) == 1 else texts
        return json.dumps(fields)


def send(server, request: Request) -> str:
    """Why it was refused; blank when it was answered."""
    if request.over_http:
        url = f"{server.http_url}/v2/models/{request.model}/generate_stream"
        reply = httpx.post(url, content=request.body(), timeout=DEADLINE_S)
        lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        found = [json.loads(line) for line in lines]
        return next((line["error"] for line in found if "error" in line), "")
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for reply in stub.ModelStreamInfer(iter([request.message()]), timeout=DEADLINE_S):
            if reply.error_message or reply.infer_response.parameters["triton_final_response"].bool_param:
                return reply.error_message
    raise AssertionError("the stream ended without a final response")


@pytest.fixture(scope="module")
def server(small_engine, small_checkpoint, tmp_path_factory):
    """All models."""
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(folder / "home"))
        checkpoint_dir = shutil.copytree(huggingface.folder(small_checkpoint), folder / "checkpoint")
    config = json.loads((checkpoint_dir / "config.json").read_text())
    (checkpoint_dir / "config.json").write_text(json.dumps({**config, "max_position_embeddings": POSITIONS}))
    tiny_gpt2(folder / "gpt2")
    repo = repository.assemble(
        folder / "repo",
        small_engine,
        models=MODELS,
        decoupled_mode=True,
        apply_chat_template=False,
        checkpoint_dir=checkpoint_dir,
        gpt2_checkpoint_dir=folder / "gpt2",
        **dict.fromkeys(("gpt2_dtype", "llama_dtype", "embedding_dtype"), "float32"),
        batch_cost_fixed_ms=0,
        batch_cost_item_ms=0.01,  # half a second for 49,152 units of work; what takes a minute is refused
    )
    with Server(repo, drain_s=0) as server:
        yield server


@contextlib.contextmanager
def somebody_else(server):
    """A client that streams the same again and again; at the end, each of its answers must have been the first one."""
    client, over = Client(server.grpc_url), threading.Event()
    ask = lambda: client.stream("Once upon a time", 24, end_id=-1).read().text
    alone, answers = ask(), []

    def ask_on():
        while not over.is_set():
            answers.append(ask())

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_on)
        try:
            yield
        finally:
            over.set()
        asking.result()
    assert answers and set(answers) == {alone}


def processes(server) -> dict[int, float]:
    """The models' processes: number and when it began."""
    children = psutil.Process(server.pid).children(recursive=True)
    return {child.pid: child.create_time() for child in children if child.status() != psutil.STATUS_ZOMBIE}


def is_empty(server) -> bool:
    used = metric(server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used")
    return active_requests(server) == used == metric(server, "inflight_gpt2_kv_cache_slots", kind="used") == 0


def test_no_request_ends_a_process_breaks_a_stream_or_stays(server):
    print(f"{NUM_REQUESTS} requests, INFLIGHT_FUZZ_SEED={SEED}")
    choose, said = random.Random(SEED), Counter()
    configs = [repository.read_config(server.repo / name / repository.CONFIG) for name in MODELS]
    before = processes(server)
    with somebody_else(server), ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in range(NUM_REQUESTS // AT_ONCE):
            requests = [Request(choose, choose.choice(configs)) for _ in range(AT_ONCE)]
            for request, reason in zip(requests, pool.map(lambda request: send(server, request), requests)):
                said["refused" if reason else "answered"] += 1
                assert not NO_SENTENCE.search(reason), (reason, vars(request))
            assert processes(server) == before, f"a model's process is gone after {list(map(vars, requests))}"
    print(dict(said))
    assert min(said["refused"], said["answered"]) > NUM_REQUESTS / 10, said
    wait_until(lambda: is_empty(server), "the engine is empty")
