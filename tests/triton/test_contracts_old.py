"""The contract of TensorRT-LLM 0.5: the clients of its time and of the first workshops, against `--contract 0.5`."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from tritonclient.grpc.model_config_pb2 import DataType

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.models import huggingface
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.repository import BASELINE, PIPELINE
from inflight.triton.server import Server
from tests import outside_clients as outside
from tests.engines import active_requests, build_small, clients, model_process, wait_until

MODELS = (*PIPELINE, BASELINE)
PROMPT = "One, two, three, four"
LENGTH = 12
LONG = 2000


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    sizes = {"max_seq_len": LONG + 256, "max_input_len": 256, "max_num_tokens": 256}
    return build_small(small_checkpoint, tmp_path_factory.mktemp("old") / "engine", **sizes)


@pytest.fixture(scope="module")
def checkpoint_dir(small_checkpoint, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        return huggingface.folder(small_checkpoint)


def serve(engine_dir, checkpoint_dir, folder, **values) -> Server:
    return Server(
        repository.assemble(
            folder / "repo",
            engine_dir,
            MODELS,
            contract="0.5",
            checkpoint_dir=checkpoint_dir,
            llama_dtype="float32",
            apply_chat_template=False,
            **values,
        )
    )


@pytest.fixture(scope="module")
def whole(engine_dir, checkpoint_dir, tmp_path_factory):
    with serve(engine_dir, checkpoint_dir, tmp_path_factory.mktemp("whole")) as server:
        yield server


@pytest.fixture(scope="module")
def streaming(engine_dir, checkpoint_dir, tmp_path_factory):
    with serve(engine_dir, checkpoint_dir, tmp_path_factory.mktemp("streaming"), decoupled_mode=True) as server:
        yield server


@pytest.fixture(scope="module")
def ids(engine_dir):
    return load_tokenizer(engine_dir).encode(PROMPT)


@pytest.fixture(scope="module")
def tokens(whole, ids):
    with Client(whole.grpc_url) as client:
        return client.ask_tokens(ids, LENGTH, exclude_input_in_output=True).token_ids


@pytest.fixture(scope="module")
def answers(whole):
    """Of each text model, without the prompt."""
    return {
        model: Client(whole.grpc_url, model).ask(PROMPT, LENGTH, exclude_input_in_output=True).text
        for model in ("ensemble", BASELINE)
    }


# Types and shapes -----------------------------------------------------------------------------------------------------

UINT32, INT32, STRING = DataType.TYPE_UINT32, DataType.TYPE_INT32, DataType.TYPE_STRING
OLD = {  # model -> tensor: type, dims, optional
    "ensemble": {
        "text_input": (STRING, [-1], False),
        "max_tokens": (UINT32, [-1], False),
        "bad_words": (STRING, [-1], False),
        "stop_words": (STRING, [-1], False),
        "end_id": (UINT32, [1], True),
        "pad_id": (UINT32, [1], True),
        "top_k": (UINT32, [1], True),
        "beam_width": (UINT32, [1], True),
        "min_length": (UINT32, [1], True),
        "random_seed": (DataType.TYPE_UINT64, [1], True),
        "text_output": (STRING, [-1, -1], False),
    },
    "preprocessing": {
        "QUERY": (STRING, [-1], False),
        "BAD_WORDS_DICT": (STRING, [-1], False),
        "STOP_WORDS_DICT": (STRING, [-1], False),
        "REQUEST_OUTPUT_LEN": (UINT32, [-1], False),
        "INPUT_ID": (INT32, [-1], False),
        "REQUEST_INPUT_LEN": (INT32, [1], False),
    },
    "tensorrt_llm": {
        "input_ids": (INT32, [-1], False),
        "input_lengths": (INT32, [1], False),
        "request_output_len": (UINT32, [1], False),
        "end_id": (UINT32, [1], True),
        "pad_id": (UINT32, [1], True),
        "beam_width": (UINT32, [1], True),
        "runtime_top_k": (UINT32, [1], True),
        "len_penalty": (DataType.TYPE_FP32, [1], True),
        "min_length": (UINT32, [1], True),
        "output_ids": (INT32, [-1, -1], False),
    },
    "postprocessing": {"TOKENS_BATCH": (INT32, [-1, -1], False), "OUTPUT": (STRING, [-1, -1], False)},
    BASELINE: {
        "text_input": (STRING, [-1], False),
        "max_tokens": (UINT32, [-1], False),
        "text_output": (STRING, [-1], False),
    },
}


@pytest.mark.parametrize("model", OLD)
def test_types_and_shapes_are_those_of_0_5(whole, model):
    config = repository.read_config(whole.repo / model / "config.pbtxt")
    found = {}
    for tensor in (*config.input, *config.output):
        found[tensor.name] = tensor.data_type, list(tensor.dims), tensor in config.input and tensor.optional
    assert {name: found[name] for name in OLD[model]} == OLD[model]
    assert (config.max_batch_size > 0) == (model != BASELINE)


def test_what_0_5_requires_is_all_that_is_required(whole):
    required = {}
    for model in OLD:
        config = repository.read_config(whole.repo / model / "config.pbtxt")
        required[model] = {tensor.name for tensor in config.input if not tensor.optional}
    assert required["ensemble"] == {"text_input", "max_tokens", "bad_words", "stop_words"}
    assert required["tensorrt_llm"] == {"input_ids", "input_lengths", "request_output_len"}
    assert required["postprocessing"] == {"TOKENS_BATCH"}
    assert required[BASELINE] == {"text_input", "max_tokens"}


def test_the_table_tells_what_the_contracts_differ_in(tmp_path):
    """Each tensor whose type, shape or need differs between the two stands in a row that has the option."""
    configs = {}
    for contract in repository.CONTRACTS:
        repo = repository.assemble(tmp_path / contract, "/engines/x", PIPELINE, contract=contract)
        configs[contract] = [repository.read_config(repo / model / "config.pbtxt") for model in PIPELINE]
    differing = set()
    for older, newer in zip(*configs.values(), strict=True):
        for one, other in ((older.input, newer.input), (older.output, newer.output)):
            there = {tensor.name: tensor for tensor in other}
            differing |= {
                tensor.name for tensor in one if tensor.SerializeToString() != there[tensor.name].SerializeToString()
            }
    table = pd.DataFrame(repository.contract_differences())
    changed = table[table["as before with"] == "--contract 0.5"]
    told = {name for names in changed["tensors"] for name in names.split(", ")}
    assert differing and differing <= told
    assert list(table) == ["since", "tensors", "before", "after", "what it breaks", "as before with"]
    assert (table.drop(columns="as before with") != "").all(axis=None)


# Clients of the backend -----------------------------------------------------------------------------------------------


def test_the_token_client_gets_prompt_and_answer(whole, ids, tokens):
    assert outside.core_whole(whole, "0.5", ids, LENGTH) == ids + tokens


def test_the_token_client_streams(streaming, ids, tokens):
    assert outside.core_streamed(streaming, "0.5", ids, LENGTH) == tokens


def test_the_token_client_stops(streaming, whole, ids):
    assert 0 < len(outside.core_streamed_and_stopped(streaming, "0.5", ids, LONG)) < LONG
    wait_until(lambda: active_requests(whole) == 0, "the gauge knows that the requests before have ended")
    begun = lambda: wait_until(lambda: active_requests(whole) == 1, "the request is in the engine")
    answers = outside.core_whole_and_stopped(whole, "0.5", ids, LONG, begun)
    assert sorted(map(bool, answers)) == [False, True] and max(map(len, answers)) < LONG


@pytest.mark.parametrize("streams", [False, True])
def test_the_backends_text_client(streaming, whole, answers, streams):
    pieces = outside.backend_streaming_client(streaming if streams else whole, PROMPT, LENGTH, streams)
    assert "".join(pieces) == ("" if streams else PROMPT) + answers["ensemble"]
    assert (len(pieces) > 1) == streams


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_models_one_by_one_give_what_the_ensemble_gives(whole, answers, protocol):
    by_hand, by_ensemble = outside.by_hand_and_by_ensemble(whole, "0.5", protocol, PROMPT, LENGTH)
    assert by_hand == by_ensemble and by_hand[0].decode() == PROMPT + answers["ensemble"]


def test_the_benchmark_counts_the_tokens_of_the_answers(whole, ids):
    """identity_test.py takes the prompt's length off."""
    lengths = [3, 8, 5, 12, 1]
    assert outside.benchmark_lengths(whole, "0.5", "grpc", [ids] * 5, lengths) == lengths
    assert len(outside.benchmark_lengths(whole, "0.5", "http", [ids] * 5, lengths)) == 5


def test_an_end_id_of_minus_one_in_unsigned_numbers_is_no_token(whole, ids):
    arrays = outside.core_request("0.5", ids, 30, streaming=False)
    found = outside.infer(whole, "grpc", "tensorrt_llm", {**arrays, "end_id": outside.one(2**32 - 1, np.uint32)})
    assert len(outside.read_core("0.5", found)) == len(ids) + 30


# Clients of the workshops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["whole", "streaming"])
@pytest.mark.parametrize("model", ["ensemble", BASELINE])
def test_the_workshops_streaming_client(request, kind, model, answers):
    """It asks for no stream, and prints each response's text, which repeats the prompt."""
    texts = outside.workshop_streaming_client(request.getfixturevalue(kind), model, PROMPT, LENGTH)
    assert texts == [PROMPT + answers[model]]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["ensemble", BASELINE])
def test_the_workshops_benchmark(whole, model, protocol, answers):
    """identity_test_python_vs_trtllm.py: one after the other, then all at once."""
    request = outside.workshop_request(model, PROMPT, LENGTH)
    warm = outside.infer(whole, protocol, model, request)
    assert warm.as_numpy("text_output").reshape(-1)[0].decode() == PROMPT + answers[model]
    assert len(outside.infer_at_once(whole, protocol, model, [request] * 6)) == 6


@pytest.mark.parametrize("protocol", [0, 1], ids=["grpc", "http"])
def test_the_baseline_ends_when_the_client_of_a_stream_goes(streaming, protocol):
    """It computes one request after the other, so what it spent until the next is answered was for nobody."""
    client, process = clients(streaming, BASELINE)[protocol], model_process(streaming, BASELINE)

    def spent_s(most: int) -> float:
        before = sum(process.cpu_times()[:2])
        for number, _ in enumerate(client.stream(PROMPT, 100, min_length=100), 1):
            if number == most:
                break
        assert client.ask(PROMPT, 2, min_length=2).text
        return sum(process.cpu_times()[:2]) - before

    assert spent_s(2) < 0.5 * spent_s(100)


# The course's client --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["ensemble", BASELINE])
def test_the_courses_client_fits_its_requests_to_the_older_contract(whole, streaming, model, answers):
    for server in (whole, streaming):
        for client in clients(server, model):
            assert client.ask(PROMPT, LENGTH, exclude_input_in_output=True).text == answers[model]
    for client in clients(streaming, model):
        streamed = client.stream(PROMPT, LENGTH).read()
        assert streamed.text == answers[model] and len(streamed.pieces) > 1
        with_words = client.stream(PROMPT, LENGTH, stop_words=[""], bad_words=[""]).read()
        assert with_words.text == answers[model]


def test_a_load_is_sent_to_the_older_contract(whole, engine_dir, tmp_path):
    records = [{"input": "one " * words, "instruction": "Go on:", "output": "a b c"} for words in (3, 60, 5)]
    (tmp_path / "dataset.json").write_text(json.dumps(records))
    command = ["bench", "load", "--url", whole.grpc_url, "--engine-dir", engine_dir, "--warm-up", "1", "--json"]
    options = ["--dataset", tmp_path / "dataset.json", "--max-input-len", "80", "--tokenizer-type", "llama"]
    done = subprocess.run([sys.executable, "-m", "inflight", *command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--tokenizer-type llama is of no effect: tokenizer.json says what kind it is." in done.stderr
    said = "1 prompts of DATASET are longer than --max-input-len (80 tokens) and are left out."
    assert said.replace("DATASET", str(tmp_path / "dataset.json")) in " ".join(done.stderr.split())
    assert json.loads(done.stdout)["settings"]["requests"] == 2


@pytest.mark.parametrize("kind, options", [("whole", []), ("streaming", ["--stream"])])
@pytest.mark.parametrize("model", ["ensemble", BASELINE])
def test_the_performance_analyzer_measures_the_older_contract(request, kind, options, model, engine_dir, tmp_path):
    url = request.getfixturevalue(kind).grpc_url
    records = [{"input": f"one {number}", "instruction": "Go on:", "output": "a b c"} for number in range(4)]
    (tmp_path / "dataset.json").write_text(json.dumps(records))
    command = ["bench", "perf-analyzer", "--url", url, "--model", model, "--engine-dir", engine_dir, "--json", *options]
    few = ["--dataset", tmp_path / "dataset.json", "--concurrency", "2", "--warm-up", "1"]
    done = subprocess.run([sys.executable, "-m", "inflight", *command, *few], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["way"], row["requests"], row["errors"]) for row in rows] == [
        ("bench load", 4, 0),
        ("perf_analyzer", 4, 0),
    ]


def test_a_load_may_end_its_answers_early(streaming, engine_dir):
    command = ["bench", "load", "--url", streaming.grpc_url, "--engine-dir", engine_dir, "--warm-up", "0", "--json"]
    long = ["--dataset", "mild", "--requests", "2", "--output-lengths", f"histogram:{LONG}=1", "--max-input-len", "200"]
    early = ["--stream", "--stop-after-ms", "200", "--request-id", "mine", "--csv"]
    csv = engine_dir.parent / "early.csv"
    words = [sys.executable, "-m", "inflight", *command, *long, *early, csv]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["settings"]["stop_after_ms"] == 200
    assert pd.read_csv(csv)["output_len"].between(1, LONG - 1).all()
    wait_until(lambda: active_requests(streaming) == 0, "nothing is computed for nobody")


@pytest.mark.parametrize("model", ["ensemble", BASELINE])
def test_the_command_line_asks(whole, streaming, model, answers):
    def ask(*options):
        command = [sys.executable, "-m", "inflight", "ask", PROMPT, "--model", model, "--max-tokens", LENGTH, *options]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)

    assert ask("--url", whole.http_url, "--request-id", "7").stdout == PROMPT + answers[model] + "\n"
    streamed = ask("--url", streaming.grpc_url, "--stream", "--tokenizer-type", "llama")
    assert streamed.stdout == answers[model] + "\n"
    assert streamed.stderr == "--tokenizer-type llama is of no effect: tokenizer.json says what kind it is.\n"


def test_the_command_line_ends_an_answer(streaming, engine_dir):
    command = [sys.executable, "-m", "inflight", "ask", PROMPT, "--url", streaming.grpc_url]
    options = ["--max-tokens", str(LONG), "--stop-after-ms", "200"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert 0 < len(load_tokenizer(engine_dir).encode(done.stdout)) < LONG


def test_tokenizer_type_is_taken_and_said_to_be_of_no_effect(engine_dir, tmp_path):
    repo = repository.assemble(tmp_path / "repo", engine_dir, tokenizer_type="llama", contract="0.5")
    for model in ("preprocessing", "postprocessing"):
        config = repository.read_config(repo / model / "config.pbtxt")
        assert repository.get_parameter(config, "tokenizer_type") == "llama"
    with Server(repo) as server:
        wait_until(
            lambda: server.log_tail(500).count("tokenizer_type llama is of no effect") == 2, "both models have said so"
        )
    with pytest.raises(CourseError, match="parameters.tokenizer_type: It is 'gpt'. It must be auto, t5, llama or sp"):
        repository.assemble(tmp_path / "other", engine_dir, tokenizer_type="gpt")


def test_a_repository_that_exists_keeps_its_contract(tmp_path):
    command = [sys.executable, "-m", "inflight", "serve", tmp_path, "--contract", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "leave out --engine-dir, --set, --contract, " in done.stderr
