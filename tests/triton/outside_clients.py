"""What clients of the TensorRT-LLM backend and of public workshops send, release by release, and how they read answers.

Each function does what one client does with the wire: the same tensors by name, type and shape, the same outputs asked
for by name or none, the same indices into what comes back. The numbers are releases of TensorRT-LLM.
"""

from __future__ import annotations

import queue

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import np_to_triton_dtype

LIBRARIES = {"grpc": grpc, "http": http}


def one(value, dtype) -> np.ndarray:
    """A value as every client sends it: [1, 1]."""
    return np.array([[value]], dtype)


def text(value: str) -> np.ndarray:
    return np.array([[value]]).astype(object)


def inputs(arrays: dict[str, np.ndarray], library=grpc) -> list:
    made = []
    for name, array in arrays.items():
        made.append(library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array)
    return made


# How they send --------------------------------------------------------------------------------------------------------


def infer(server, protocol: str, model: str, arrays: dict[str, np.ndarray], request_id: str = "1"):
    """One request, one answer."""
    library, url = LIBRARIES[protocol], {"grpc": server.grpc_url, "http": server.http_url}[protocol]
    with library.InferenceServerClient(url.removeprefix("http://")) as client:
        return client.infer(model, inputs(arrays, library), request_id=request_id)


def infer_at_once(server, protocol: str, model: str, requests: list[dict[str, np.ndarray]]) -> list:
    """All of them, each with its number as its name, without waiting for answers in between."""
    if protocol == "http":
        url = server.http_url.removeprefix("http://")
        with http.InferenceServerClient(url, concurrency=128) as client:
            sent = [client.async_infer(model, inputs(each, http), request_id=str(i)) for i, each in enumerate(requests)]
            return [request.get_result() for request in sent]
    arrived = Arrived()
    with grpc.InferenceServerClient(server.grpc_url) as client:
        for i, each in enumerate(requests):
            client.async_infer(model, inputs(each), callback=arrived, request_id=str(i))
        return [arrived.next() for _ in requests]


def infer_on_stream(server, model: str, arrays: dict[str, np.ndarray], outputs=None, request_id: str = "") -> list:
    """Every response to one request on a stream, which is closed when the request is sent."""
    arrived = Arrived()
    with grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(callback=arrived)
        named = None if outputs is None else [grpc.InferRequestedOutput(name) for name in outputs]
        client.async_stream_infer(model, inputs(arrays), outputs=named, request_id=request_id)
        client.stop_stream()
    return arrived.all()


class Arrived:
    """A callback of tritonclient's, and what it was called with."""

    def __init__(self) -> None:
        self._queue: queue.Queue = queue.Queue()

    def __call__(self, result, error) -> None:
        self._queue.put((result, error))

    def next(self):
        result, error = self._queue.get(timeout=120)
        if error is not None:
            raise error
        return result

    def all(self) -> list:
        return [self.next() for _ in range(self._queue.qsize())]


# inflight_batcher_llm_client.py: tokens -------------------------------------------------------------------------------


def core_request(release: str, ids: list[int], output_len: int, streaming: bool) -> dict[str, np.ndarray]:
    """What it always sends to `tensorrt_llm`."""
    whole_number = np.uint32 if release == "0.5" else np.int32
    arrays = {
        "input_ids": np.array([ids], np.int32),
        "input_lengths": one(len(ids), np.int32),
        "request_output_len": one(output_len, whole_number),
        "beam_width": one(1, whole_number),
        "temperature": one(1.0, np.float32),
        "streaming": one(streaming, bool),
    }
    if release == "0.5":
        return arrays
    arrays |= {"end_id": one(2, np.int32), "pad_id": one(2, np.int32)}
    arrays |= {"runtime_top_k": one(1, np.int32), "runtime_top_p": one(0.0, np.float32)}
    if release in ("0.9", "0.13"):
        arrays["return_log_probs"] = one(False, bool)
    if release == "0.14":
        arrays["num_return_sequences"] = one(1, np.int32)
    return arrays


def stop_request(release: str) -> dict[str, np.ndarray]:
    return {
        "input_ids": np.empty([1, 1], np.int32),
        "input_lengths": one(0, np.int32),
        "request_output_len": one(0, np.uint32 if release == "0.5" else np.int32),
        "stop": one(True, bool),
    }


def read_core(release: str, result) -> list[int]:
    output_ids = result.as_numpy("output_ids")
    if release == "0.5":
        return output_ids[0][0].tolist()
    length = result.as_numpy("sequence_length")[0][0]
    sequence_index = result.as_numpy("sequence_index")
    assert release in ("0.9", "0.13") or sequence_index is None or sequence_index[0][0] == 0
    return output_ids[0][0][:length].tolist()


def core_whole(server, release: str, ids: list[int], output_len: int) -> list[int]:
    """--request-output-len N: it sends `parameters`, which no server reads, and names no output."""
    arrived = Arrived()
    with grpc.InferenceServerClient(server.grpc_url) as client:
        arrays = core_request(release, ids, output_len, streaming=False)
        client.async_infer(
            "tensorrt_llm", inputs(arrays), request_id="1", callback=arrived, parameters={"Streaming": False}
        )
        return read_core(release, arrived.next())


def core_streamed(server, release: str, ids: list[int], output_len: int) -> list[int]:
    """--streaming: the tokens of all responses in a row."""
    results = infer_on_stream(server, "tensorrt_llm", core_request(release, ids, output_len, streaming=True))
    return [token for result in results for token in read_core(release, result)]


def core_streamed_and_stopped(server, release: str, ids: list[int], output_len: int) -> list[int]:
    """--streaming --stop-after-ms: the stop request goes down the same stream, here after the first tokens."""
    arrived = Arrived()
    with grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(callback=arrived)
        arrays = core_request(release, ids, output_len, streaming=True)
        client.async_stream_infer("tensorrt_llm", inputs(arrays), request_id="12345")
        tokens = read_core(release, arrived.next())
        client.async_stream_infer(
            "tensorrt_llm", inputs(stop_request(release)), request_id="12345", parameters={"Streaming": True}
        )
        client.stop_stream()
    return tokens + [token for result in arrived.all() for token in read_core(release, result)]


def core_whole_and_stopped(server, release: str, ids: list[int], output_len: int, wait) -> list[list[int]]:
    """--stop-after-ms: two answers, that of the request and that of the stop request, in whichever order.

    `wait` is called between the two requests.
    """
    arrived = Arrived()
    with grpc.InferenceServerClient(server.grpc_url) as client:
        arrays = core_request(release, ids, output_len, streaming=False)
        client.async_infer("tensorrt_llm", inputs(arrays), request_id="12345", callback=arrived)
        wait()
        client.async_infer("tensorrt_llm", inputs(stop_request(release)), request_id="12345", callback=arrived)
        return [read_core(release, arrived.next()) for _ in range(2)]


# end_to_end_grpc_client.py: text --------------------------------------------------------------------------------------


def text_request(release: str, prompt: str, output_len: int, streaming: bool) -> dict[str, np.ndarray]:
    """What it always sends to `ensemble`."""
    arrays = {
        "text_input": text(prompt),
        "max_tokens": one(output_len, np.int32),
        "stream": one(streaming, bool),
        "beam_width": one(1, np.int32),
        "temperature": one(1.0, np.float32),
    }
    if release == "0.14":
        arrays["num_return_sequences"] = one(1, np.int32)
    if release == "0.19":
        arrays["exclude_input_in_output"] = one(False, bool)
    return arrays


def text_client(
    server, release: str, prompt: str, output_len: int, streaming: bool, model: str = "ensemble", **more
) -> str:
    """Its text; `more` are inputs of options that were chosen. It opens a stream for whole answers too."""
    names_outputs = release not in ("0.9", "0.13")
    arrays = {**text_request(release, prompt, output_len, streaming), **more}
    found = ""
    for result in infer_on_stream(server, model, arrays, ["text_output"] if names_outputs else None):
        output, batch_index = result.as_numpy("text_output"), result.as_numpy("batch_index")
        if release == "0.13":
            assert batch_index[0][0] == 0
        else:
            assert batch_index is None or batch_index[0][0] == 0
        sequence_index = result.as_numpy("sequence_index")
        assert sequence_index is None or sequence_index[0][0] == 0
        piece = output[0].decode("utf-8")
        found = found + piece if streaming else piece
    return found


def text_client_batch(
    server, release: str, prompts: list[str], output_lens: list[int], streaming: bool, **more
) -> list:
    """--batch-inputs: all prompts in one request, and each one's text put together by `batch_index`."""
    requests = [text_request(release, *pair, streaming) for pair in zip(prompts, output_lens, strict=True)]
    arrays = {name: np.concatenate([request[name] for request in requests]) for name in requests[0]} | more
    found = [""] * len(prompts)
    for result in infer_on_stream(server, "ensemble", arrays, ["text_output", "batch_index"]):
        found[result.as_numpy("batch_index")[0][0]] += result.as_numpy("text_output")[0].decode("utf-8")
    return found


# end_to_end_test.py: each model, then the ensemble --------------------------------------------------------------------


def by_hand_and_by_ensemble(server, release: str, protocol: str, prompt: str, output_len: int) -> tuple:
    """The text of the three models asked one after the other, and the ensemble's; which the client compares."""
    whole_number = np.uint32 if release == "0.5" else np.int32
    words, length = text(""), np.ones_like([[prompt]], dtype=whole_number) * whole_number(output_len)
    arrays = {"QUERY": text(prompt), "BAD_WORDS_DICT": words, "STOP_WORDS_DICT": words, "REQUEST_OUTPUT_LEN": length}
    before = infer(server, protocol, "preprocessing", arrays, "0")
    arrays = {
        "input_ids": before.as_numpy("INPUT_ID"),
        "input_lengths": before.as_numpy("REQUEST_INPUT_LEN"),
        "request_output_len": before.as_numpy("REQUEST_OUTPUT_LEN"),
    }
    if release not in ("0.5", "0.9"):
        arrays |= {
            "decoder_input_ids": before.as_numpy("DECODER_INPUT_ID"),
            "end_id": before.as_numpy("OUT_END_ID"),
            "pad_id": before.as_numpy("OUT_PAD_ID"),
        }
    answer = infer(server, protocol, "tensorrt_llm", arrays, "0")
    arrays = {"TOKENS_BATCH": answer.as_numpy("output_ids")}
    if release != "0.5":
        arrays["SEQUENCE_LENGTH"] = answer.as_numpy("sequence_length")
    by_hand = infer(server, protocol, "postprocessing", arrays, "0").as_numpy("OUTPUT")
    arrays = {"text_input": text(prompt), "max_tokens": length, "bad_words": words, "stop_words": words}
    return by_hand, infer(server, protocol, "ensemble", arrays, "0").as_numpy("text_output")


# benchmark_core_model.py, identity_test.py: lengths -------------------------------------------------------------------


def benchmark_lengths(server, release: str, protocol: str, prompts: list[list[int]], output_lens: list[int]) -> list:
    """Tokens of each answer: the third dimension of the first output, less the prompt's; by order, of gRPC alone."""
    requests = []
    for ids, output_len in zip(prompts, output_lens, strict=True):
        arrays = {"input_ids": np.array([ids], np.int32), "input_lengths": one(len(ids), np.int32)}
        if release == "0.5":
            arrays["request_output_len"] = one(output_len, np.uint32)
        else:
            arrays["request_output_len"] = one(output_len, np.int32)
            arrays |= {"end_id": one(-1, np.int32), "pad_id": one(-1, np.int32)}
        requests.append(arrays)
    results = infer_at_once(server, protocol, "tensorrt_llm", requests)
    if protocol == "http":
        return [result.get_response()["id"] for result in results]
    shapes = {}
    for result in results:
        response = result.get_response(as_json=True)
        shapes[int(response["id"])] = int(response["outputs"][0]["shape"][2])
    return [shapes[i] - len(ids) for i, ids in enumerate(prompts)]


# The first workshops --------------------------------------------------------------------------------------------------


def workshop_request(model: str, prompt: str, max_tokens: int) -> dict[str, np.ndarray]:
    """To the ensemble of 0.5, or to `llama-python` beside it, which has no batch dimension there."""
    if model == "ensemble":
        blank = np.array([[""]], dtype=object)
        length = np.ones_like([[prompt]], dtype=np.uint32) * np.uint32(max_tokens)
        return {"text_input": text(prompt), "max_tokens": length, "bad_words": blank, "stop_words": blank}
    return {"text_input": np.array([prompt]).astype(object), "max_tokens": np.array([max_tokens]).astype(np.uint32)}


def workshop_streaming_client(server, model: str, prompt: str, max_tokens: int) -> list[str]:
    """Every response's `output[0]`, which it prints."""
    results = infer_on_stream(server, model, workshop_request(model, prompt, max_tokens))
    return [result.as_numpy("text_output")[0].decode("utf-8") for result in results]


def backend_streaming_client(server, prompt: str, max_tokens: int, streaming: bool) -> list[str]:
    """end_to_end_streaming_client.py of 0.5: the same with two inputs more; it prints each array."""
    arrays = workshop_request("ensemble", prompt, max_tokens)
    arrays |= {"stream": one(streaming, bool), "beam_width": one(1, np.uint32)}
    results = infer_on_stream(server, "ensemble", arrays, request_id="1")
    return [result.as_numpy("text_output").reshape(-1)[0].decode("utf-8") for result in results]


# llmapi_client.py: TensorRT-LLM's model of today ----------------------------------------------------------------------


def llmapi_request(prompt: str, output_len: int) -> dict[str, np.ndarray]:
    """What it sends, without a batch dimension."""
    return {
        "text_input": np.array([prompt], dtype=object),
        "sampling_param_max_tokens": np.array([output_len], dtype=np.int32),
    }


def llmapi_stop() -> dict[str, np.ndarray]:
    return {"text_input": np.empty([1], dtype=np.bytes_), "stop": np.array([True])}


def llmapi_client(server, prompt: str, output_len: int, wait=None) -> list:
    """Results and errors as they come: one of the request or, with `wait`, also that of the stop request after it."""
    arrived: queue.Queue = queue.Queue()
    callback = lambda result, error: arrived.put(error or result)
    options = {"request_id": "1", "callback": callback, "parameters": {"Streaming": False}}
    with grpc.InferenceServerClient(server.grpc_url) as client:
        client.async_infer("tensorrt_llm", inputs(llmapi_request(prompt, output_len)), **options)
        if wait is None:
            return [arrived.get(timeout=120)]
        wait()
        client.async_infer("tensorrt_llm", inputs(llmapi_stop()), **options)
        return [arrived.get(timeout=120) for _ in range(2)]
