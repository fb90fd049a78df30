"""Requests at random to every model of a server: none ends a process, breaks another's stream or stays in the engine.

They are made from each model's config.pbtxt, so that most of them pass Triton's own checks, and sent over gRPC (raw and
typed contents) and HTTP (JSON and binary). By hand, as many as one likes:

    INFLIGHT_FUZZ_REQUESTS=20000 python -m pytest tests/triton/test_fuzz.py -s

Each run has a seed of its own, which it prints; INFLIGHT_FUZZ_SEED gives it.
"""

import contextlib
import json
import os
import re
import secrets
import struct
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import httpx
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from inflight.models import huggingface
from inflight.models.gpt2_checkpoint import random_checkpoint
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.repository import BASELINE, BATCH_COST, EMBEDDING, GPT2, PIPELINE, RUNNING_SUM, contracts
from inflight.triton.server import Server
from tests.engines import active_requests, metric, wait_until

pytestmark = [pytest.mark.server, pytest.mark.slow]

NUM_REQUESTS = int(os.environ.get("INFLIGHT_FUZZ_REQUESTS", "1000"))
SEED = int(os.environ.get("INFLIGHT_FUZZ_SEED") or secrets.randbits(31))
BATCH = 5  # requests that are sent at once
DEADLINE_S = 60
OTHERS = (EMBEDDING, RUNNING_SUM, BATCH_COST, *GPT2, BASELINE)
MAX_TOKENS = 6

# What Triton says of a request that does not get to a model.
AT_THE_DOOR = re.compile(
    r"(?<!The )shape|byte size|batch size|batch-size|string (elements|data|length)|data-type|dimensions"
    r"|missing required|inference inputs?|correlation|sequence|parse|JSON|json"
    r"|decoupled|datatype|binary|unable to|Unexpected|expected"
)
# A path, a traceback, or a second line.
NO_SENTENCE = re.compile(r"\n|Traceback|\bAt:|\.py\b|/(tmp|home|root|usr|opt|work|var)/")


# Requests -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """A request: what it holds, and how it goes to the server.

    `tensors`: name -> datatype, shape and values in a row. `damage` is put in place of the raw bytes of its tensor.
    """

    model: str
    way: str
    tensors: dict[str, tuple[str, list[int], list]]
    parameters: dict = field(default_factory=dict)
    id: str = ""
    damage: tuple[str, bytes] | None = None

    def raw(self, name: str) -> bytes:
        if self.damage and self.damage[0] == name:
            return self.damage[1]
        datatype, _, values = self.tensors[name]
        if datatype == "BYTES":
            return b"".join(struct.pack("<I", len(value)) + value for value in values)
        return struct.pack(f"<{len(values)}{PACKED[datatype]}", *values)


PACKED = {"INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "UINT64": "Q", "BOOL": "?"}
TYPED = {  # FP16 goes in bytes alone
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "UINT64": "uint64_contents",
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
}
WRONG_DATATYPE = {
    "INT32": "FP32",
    "INT64": "INT32",
    "FP16": "INT32",
    "FP32": "INT32",
    "UINT64": "INT32",
    "BOOL": "INT32",
    "BYTES": "INT32",
}
WAYS = ("raw", "typed", "json", "binary")
IN_BYTES = ("raw", "binary")
# There are many of them, and most of their values are refused.
RARE = {
    name
    for tensor in contracts.table()
    if tensor.must_be and tensor.model != BASELINE
    for name in (tensor.name, tensor.ensemble)
}

INT32 = st.one_of(
    st.integers(-2, 12),
    st.integers(0, 1100),
    st.sampled_from([-(2**31), 2**31 - 1, -1, 0, 1023, 1024, 49152]),
    st.integers(-(2**31), 2**31 - 1),
)
TEXT = st.one_of(
    st.sampled_from(["Say yes.", "One, two", "word " * 60, "<|im_start|>user", "\u0301" * 40, "\u202eright to left"]),
    st.text(max_size=20),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
BYTES = st.one_of(
    TEXT, TEXT, TEXT, st.binary(max_size=12), st.sampled_from([b"", b"\0", b"\xed\xa0\x80", b"x" * 300_000])
)
VALUES = {
    "INT32": INT32,
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "FP16": st.one_of(st.just(0.0), st.floats(width=16)),
    "FP32": st.one_of(st.floats(0, 2, width=32), st.floats(width=32)),
    "UINT64": st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1)),
    "BOOL": st.booleans(),
    "BYTES": BYTES,
}
# Of these, most values are such that the request is computed.
USUAL = {
    **dict.fromkeys(["max_tokens", "request_output_len", "REQUEST_OUTPUT_LEN"], st.integers(1, MAX_TOKENS)),
    **dict.fromkeys(["text_input", "QUERY", "text"], TEXT.filter(bytes.strip)),
    **dict.fromkeys(["input_ids", "TOKENS_BATCH", "PRECEDING_IDS", "end_id", "END_ID"], st.integers(0, 1023)),
    **dict.fromkeys(["runtime_top_k", "top_k", "min_length"], st.integers(0, 8)),
    **dict.fromkeys(["temperature", "repetition_penalty"], st.sampled_from([0.5, 1.0, 1.5])),
    **dict.fromkeys(["runtime_top_p", "top_p"], st.floats(0, 1, width=32)),
    **dict.fromkeys(["presence_penalty", "frequency_penalty"], st.sampled_from([-1.0, 0.0, 0.5])),
    **dict.fromkeys(["work"], st.integers(0, 3)),
    **dict.fromkeys(["beam_width"], st.just(1)),
    **dict.fromkeys(["stop"], st.just(False)),
}
TOKEN_LIMITS = {"max_tokens"}  # of the baseline, which computes up to the model's positions
WORDS = {"stop_words_list", "bad_words_list"}
HUGE = [2**62, 2**61, 2**62 + 3, 2**32, 2**63 - 1, -1, 0, 10**6]
FAULTS = st.sampled_from([None] * 17 + ["shape", "shape", "datatype", "missing", "damage"])
PARAMETERS = st.dictionaries(
    st.sampled_from(["max_tokens", "ignore_eos", "temperature", "lora", "timeout_ms"]),
    st.one_of(st.integers(-3, 12), st.booleans(), st.text(max_size=8), st.floats(), st.integers(-(2**63), 2**63 - 1)),
    max_size=3,
)


@st.composite
def requests(draw, configs):
    """A request to any of the models."""
    config = draw(st.sampled_from(configs))
    some = lambda percent: draw(st.integers(0, 99)) < percent
    given = [tensor for tensor in config.input if not tensor.optional or some(1 if tensor.name in RARE else 35)]
    fault, victim = draw(FAULTS), draw(st.sampled_from(given)).name
    tensors = {
        tensor.name: _tensor(draw, some, config, tensor, fault if tensor.name == victim else None) for tensor in given
    }
    if fault == "missing":
        del tensors[victim]
    if "input_lengths" in tensors and "input_ids" in tensors and some(85):
        tensors["input_lengths"] = ("INT32", [1, 1], [len(tensors["input_ids"][2])])
    if "SEQUENCE_LENGTH" in tensors and "TOKENS_BATCH" in tensors and some(85):
        _, shape, _ = tensors["TOKENS_BATCH"]
        beams, length = shape[1:] if len(shape) == 3 and max(map(abs, shape)) < 100 else (1, 1)
        tensors["SEQUENCE_LENGTH"] = ("INT32", [1, beams], [length] * max(beams, 0))
    damage = (victim, draw(st.one_of(st.binary(max_size=20), st.just(b"\xff" * 4)))) if fault == "damage" else None
    parameters = draw(PARAMETERS) if some(15) else {}
    if config.name in GPT2 and some(85):
        parameters = {"max_tokens": draw(st.integers(1, MAX_TOKENS)), "ignore_eos": draw(st.booleans())}
    if config.name == RUNNING_SUM and some(90):  # else few get to the model
        parameters = {"sequence_id": draw(st.integers(1, 2**63 - 1)), "sequence_start": True, "sequence_end": some(85)}
    if some(5):
        parameters |= {"priority": draw(st.integers(0, 9)), "timeout": draw(st.integers(10**6, 10**9))}
    name = draw(st.text("abcXYZ0189-_ ", max_size=12)) if some(30) else "i" * 2000 if some(1) else ""
    ways = IN_BYTES if "FP16" in {datatype for datatype, _, _ in tensors.values()} else WAYS
    return Sent(config.name, draw(st.sampled_from(ways)), tensors, parameters, name, damage)


def _tensor(draw, some, config, tensor, fault) -> tuple[str, list[int], list]:
    datatype = {"TYPE_STRING": "BYTES"}.get(name := _type_name(tensor), name.removeprefix("TYPE_"))
    if tensor.name in WORDS and fault is None and some(80):
        words = draw(st.lists(st.lists(st.integers(0, 1023), min_size=1, max_size=3), min_size=1, max_size=3))
        ids = sum(words, [])
        ends = np.cumsum([len(word) for word in words]).tolist()
        return datatype, [1, 2, len(ids)], ids + ends + [-1] * (len(ids) - len(ends))
    batch = [1] if config.max_batch_size else []
    shape = batch + [size if size > 0 else draw(st.integers(1, 4)) for size in tensor.dims]
    values = USUAL[tensor.name] if tensor.name in USUAL and some(95) else VALUES[datatype]
    if config.name == BASELINE and tensor.name in TOKEN_LIMITS:
        values = st.integers(-2, MAX_TOKENS)
    if fault == "datatype":
        return WRONG_DATATYPE[datatype], shape, [1] * int(np.prod(shape))
    if fault == "shape":
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from(HUGE))
    count = min(abs(np.prod(shape, dtype=object)), draw(st.sampled_from([0, 0, 1, 3])) if max(shape) > 100 else 10**6)
    return datatype, shape, draw(st.lists(values, min_size=int(count), max_size=int(count)))


def _type_name(tensor) -> str:
    return type(tensor).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name


# Sending --------------------------------------------------------------------------------------------------------------


class Sender:
    """Sends requests to one server, each over the way it names, and gives what is said of each that is refused."""

    def __init__(self, server: Server, decoupled: set[str]):
        self._decoupled = decoupled
        self._channel = grpc.insecure_channel(server.grpc_url)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._http = httpx.Client(base_url=server.http_url, timeout=DEADLINE_S)
        self._pool = ThreadPoolExecutor(BATCH)

    def close(self):
        self._pool.shutdown()
        self._http.close()
        self._channel.close()

    def send_all(self, batch: list[Sent]) -> list[str | None]:
        """Why each was refused; None when it was answered."""
        return list(self._pool.map(self._send, batch))

    def _send(self, sent: Sent) -> str | None:
        if sent.way in ("json", "binary"):
            return self._generate(sent) if sent.model in self._decoupled else self._infer(sent)
        request = _message(sent)
        if sent.way == "raw" or sent.model in self._decoupled:
            return self._stream(request)
        error = self._stub.ModelInfer.future(request, timeout=DEADLINE_S).exception()
        assert error is None or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, "no answer came"
        return error and error.details()

    def _stream(self, request) -> str | None:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        replies = self._stub.ModelStreamInfer(iter([request]), timeout=DEADLINE_S)
        for reply in replies:
            if reply.error_message:
                replies.cancel()
                return reply.error_message
            if reply.infer_response.parameters["triton_final_response"].bool_param:
                return None
        raise AssertionError("the stream ended without a final response")

    def _infer(self, sent: Sent) -> str | None:
        """HTTP's infer, with the tensors in its JSON or as binary data after it.

        Never in JSON what claims more than a gigabyte: Triton 2.51 reserves the memory before it looks for the values,
        and ends when it cannot. No code of ours is asked before that.
        """
        inputs, tail = [], b""
        in_json = sent.way == "json" and all(
            np.prod(shape, dtype=object) < 2**28 for _, shape, _ in sent.tensors.values()
        )
        for name, (datatype, shape, values) in sent.tensors.items():
            entry = {"name": name, "datatype": datatype, "shape": shape}
            if in_json:
                entry["data"] = _json_values(values)
            else:
                tail += (raw := sent.raw(name))
                entry["parameters"] = {"binary_data_size": len(raw)}
            inputs.append(entry)
        head = json.dumps({"id": sent.id, "inputs": inputs, "parameters": sent.parameters}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))} if tail else {}
        reply = self._http.post(f"/v2/models/{sent.model}/infer", content=head + tail, headers=headers)
        return None if reply.status_code == 200 else _error(reply.text)

    def _generate(self, sent: Sent) -> str | None:
        fields = {name: _json_values(values) for name, (_, _, values) in sent.tensors.items()}
        fields = {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
        body = json.dumps({"id": sent.id, **fields, **sent.parameters})
        reply = self._http.post(f"/v2/models/{sent.model}/generate_stream", content=body)
        if reply.status_code != 200:
            return _error(reply.text)
        events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        return next((_error(event) for event in events if "error" in json.loads(event)), None)


def _message(sent: Sent) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=sent.model, id=sent.id)
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for name, value in sent.parameters.items():
        kind = "uint64_param" if name == "priority" else kinds[type(value)]
        setattr(request.parameters[name], kind, value)
    for name, (datatype, shape, values) in sent.tensors.items():
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        if sent.way == "raw":
            request.raw_input_contents.append(sent.raw(name))
        else:
            getattr(tensor.contents, TYPED[datatype]).extend(values)
    return request


def _json_values(values: list) -> list:
    return [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]


def _error(text: str) -> str:
    """The reason in an answer over HTTP, which of a stream is an event."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return json.loads(text.strip().removeprefix("data: "))["error"]
    return text


# The servers, and who else uses them ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(small_checkpoint, tmp_path_factory):
    """What the models without an engine load."""
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(folder / "home"))
        (folder / "checkpoint").symlink_to(huggingface.folder(small_checkpoint))
    random_checkpoint(folder / "gpt2", "gpt2-tiny")
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["decoupled", "whole"])
def server(request, small_engine, folder):
    """All models, those without an engine once."""
    repo = repository.assemble(
        folder / f"repo-{request.param}",
        small_engine,
        models=(*PIPELINE, *OTHERS) if request.param else PIPELINE,
        decoupled_mode=request.param,
        apply_chat_template=False,
        checkpoint_dir=folder / "checkpoint",
        gpt2_checkpoint_dir=folder / "gpt2",
        gpt2_dtype="float32",
        llama_dtype="float32",
        embedding_dtype="float32",
        batch_cost_fixed_ms=0,
        batch_cost_item_ms=1,
        running_sum_max_sequence_idle_microseconds=300_000,  # of those that are left without an end
    )
    with Server(repo) as server:
        yield server


@contextlib.contextmanager
def somebody_else(server, streams: bool):
    """A client that asks the same again and again; at the end, each of its answers must have been the first one."""
    client, over = Client(server.grpc_url), threading.Event()

    def ask():
        question = {"text": "Once upon a time", "max_tokens": 24, "end_id": -1}
        return client.stream(**question).read().text if streams else client.ask(**question).text

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


def processes(server) -> dict[int, str]:
    """The models' processes: number and when it began."""
    children = psutil.Process(server.pid).children(recursive=True)
    return {child.pid: child.create_time() for child in children if child.status() != psutil.STATUS_ZOMBIE}


def is_empty(server) -> bool:
    blocks = {
        kind: metric(server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind) for kind in ("max", "free")
    }
    slots = 0.0
    if BASELINE in repository.models(server.repo):
        slots = metric(server, "inflight_gpt2_kv_cache_slots", kind="used")
    return active_requests(server) == 0 and blocks["free"] == blocks["max"] and slots == 0


def test_no_request_ends_a_process_breaks_a_stream_or_stays(server):
    configs = [repository.read_config(server.repo / name / "config.pbtxt") for name in repository.models(server.repo)]
    decoupled = {config.name for config in configs if config.model_transaction_policy.decoupled}
    decoupled |= {"ensemble"} if "tensorrt_llm" in decoupled else set()
    before, said, sender = processes(server), Counter(), Sender(server, decoupled)
    print(f"{NUM_REQUESTS // 2} requests, INFLIGHT_FUZZ_SEED={SEED}")

    @seed(SEED)
    @settings(
        max_examples=NUM_REQUESTS // 2 // BATCH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(requests(configs), min_size=BATCH, max_size=BATCH))
    def fuzz(batch):
        for sent, reason in zip(batch, sender.send_all(batch)):
            at_the_door = reason is not None and AT_THE_DOOR.search(reason)
            said["answered" if reason is None else "at the door" if at_the_door else "refused"] += 1
            if reason is not None:
                assert reason and not NO_SENTENCE.search(reason), (reason, sent)
        assert processes(server) == before, f"a model's process is gone after {batch}"

    try:
        with somebody_else(server, streams=bool(decoupled)):
            fuzz()
    finally:
        sender.close()
    print(dict(said))
    assert said["answered"] + said["refused"] > said["at the door"], said
    wait_until(lambda: is_empty(server), "the engine is empty")
