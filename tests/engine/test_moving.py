"""Blocks that move: what is taken from a store or another engine is what would have been computed, or is not taken."""

import contextlib
import errno
import http.server
import logging
import resource
import threading
import time
from array import array
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from inflight.engine.block_format import BlockFormat
from inflight.engine.executor import Executor
from inflight.engine.fake_model import FakeModel
from inflight.engine.messages import Chunk, Guide, Request
from inflight.engine.model import load as load_model
from inflight.engine.settings import POLICIES, ExecutorConfig, SamplingConfig
from inflight.engine.store import BlockFolder
from inflight.errors import CourseError
from tests.engines import SMALL_BUILD, SMALL_VOCAB, build_small, build_tiny, fake_answer

BLOCK = 32
BUILD = replace(SMALL_BUILD, max_input_len=200, max_seq_len=240, max_num_tokens=240)
PROMPT = [(7 * place) % 900 + 5 for place in range(150)]  # four full blocks and a part of one
FULL = len(PROMPT) // BLOCK * BLOCK


@pytest.fixture(scope="session", params=["openvino", "openvino INT8", "torch"])
def folder(request, tmp_path_factory):
    target = tmp_path_factory.mktemp("moving") / "engine"
    sizes = {name: getattr(BUILD, name) for name in ("max_input_len", "max_seq_len", "max_num_tokens")}
    if request.param == "torch":
        return build_tiny(request.getfixturevalue("tiny_llama"), target, **sizes)
    kind = "INT8" if "INT8" in request.param else None
    return build_small(request.getfixturevalue("small_checkpoint"), target, kv_cache_quant_algo=kind, **sizes)


def config(store, **settings):
    return ExecutorConfig(**{"enable_kv_cache_reuse": True, "kv_store_path": store} | settings)


def fake(store, **settings):
    return Executor(FakeModel(BUILD, SMALL_VOCAB), config(store, **settings))


def counts(executor):
    now = executor.snapshot()
    return now.kv_blocks_stored, now.kv_blocks_fetched, now.kv_blocks_taken


# Blocks as bytes ------------------------------------------------------------------------------------------------------


def test_blocks_put_into_other_blocks_of_another_engine_give_the_same_logits_to_the_last_bit(folder):
    one, other = load_model(folder), load_model(folder)
    one.allocate_kv_cache(8)
    other.allocate_kv_cache(8)
    held, elsewhere = [0, 1, 2, 3, 4], [7, 2, 5, 0, 6]
    one.forward([Chunk(PROMPT[:-1], 0, held)])
    other.write_blocks(elsewhere, one.read_blocks(held))
    last = [Chunk(PROMPT[-1:], len(PROMPT) - 1, blocks, is_context=False) for blocks in (held, elsewhere)]
    expected, found = (np.array(np.asarray(model.forward([chunk]))) for model, chunk in zip((one, other), last))
    assert (expected == found).all()


def test_what_does_not_fit_is_refused_in_one_sentence_and_the_cache_stays_as_it_was(folder):
    model = load_model(folder)
    model.allocate_kv_cache(4)
    model.forward([Chunk(PROMPT[:64], 0, [0, 1])])
    before = model.read_blocks([0])
    elsewhere = BlockFormat(replace(model.info, version="openvino 1.0"))
    changed = bytearray(before)
    changed[100] ^= 1
    for data, why in (
        (elsewhere.sealed([np.zeros(model.block_bytes, np.uint8)]), "another kind of engine"),
        (b"", "another kind of engine"),
        (bytes(changed), "damaged"),
        (before[: len(before) // 2], "damaged"),
        (model.read_blocks([0, 1]), "not as many"),
    ):
        with pytest.raises(CourseError, match=why):
            model.write_blocks([0], data)
    assert model.read_blocks([0]) == before


@pytest.mark.parametrize(
    "change", [{"tokens_per_block": 64, "dtype": "float32"}, {"kv_cache_quant_algo": "INT8"}, {"dtype": "bfloat16"}]
)
def test_a_build_that_lays_blocks_out_otherwise_has_another_fingerprint_and_one_with_other_limits_has_not(change):
    def fingerprint(**build):
        return BlockFormat(FakeModel(replace(BUILD, **build)).info).fingerprint

    assert fingerprint(**change) != fingerprint() == fingerprint(max_batch_size=2, max_seq_len=4000)
    on_a_gpu = replace(FakeModel(BUILD, SMALL_VOCAB).info, device="cuda")
    assert BlockFormat(on_a_gpu).fingerprint != fingerprint()


# The store ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "settings", [{}, {"enable_chunked_context": True}, {"speculative_config": {"max_draft_len": 3}}], ids=str
)
def test_a_second_engine_answers_from_the_store_as_the_first_from_its_own_computing(folder, policy, settings, tmp_path):
    asked = [
        Request(PROMPT, 24),
        Request(PROMPT[:70], 24, sampling=SamplingConfig(temperature=0.8, top_p=0.9, random_seed=7)),
        Request(PROMPT[:100], 24, guide=Guide("regex", "[a-z ]{20,40}")),
    ]
    settings = {"batch_scheduler_policy": policy} | settings
    with Executor.load(folder, ExecutorConfig(**settings)) as executor:
        expected = [executor.generate(each).token_ids for each in asked]
    for _ in range(2):
        with Executor.load(folder, config(tmp_path / "store", **settings)) as executor:
            assert [executor.generate(each).token_ids for each in asked] == expected
    stored, fetched, _ = counts(executor)
    assert (stored, fetched) == (0, FULL // BLOCK)  # the two shorter prompts find the blocks in memory then
    assert executor.iteration_stats[0].not_computed == [[1, 0, FULL, 0]]
    assert executor.iteration_stats[0].context_tokens == len(PROMPT) - FULL


def test_a_conversation_goes_on_from_the_answers_blocks_as_well(tmp_path):
    with fake(tmp_path) as executor:
        said = executor.generate(Request(PROMPT, 50)).token_ids
    with fake(tmp_path) as executor:
        again = executor.generate(Request([*PROMPT, *said], 5))
    assert again.token_ids == fake_answer([*PROMPT, *said], 5, SMALL_VOCAB)
    assert executor.iteration_stats[0].not_computed == [[1, 0, 192, 0]]  # 199 tokens have been computed


def test_what_is_read_from_the_store_is_not_counted_as_found_in_memory(tmp_path):
    for number in (0, FULL // BLOCK):
        with fake(tmp_path) as executor:
            found = []
            for _ in range(2):
                executor.generate(Request(PROMPT, 4))
                found.append((executor.snapshot().kv_blocks_reused, executor.snapshot().kv_blocks_fetched))
        assert found == [(0, number), (FULL // BLOCK, number)]


def test_a_paused_request_comes_back_from_the_store(tmp_path):
    asked = [Request(PROMPT[number : 100 + number], 130) for number in range(4)]
    settings = {"batch_scheduler_policy": "max_utilization", "max_tokens_in_paged_kv_cache": 15 * BLOCK}
    with fake(tmp_path, **settings) as executor:
        answers = executor.generate_all(asked)
    assert [each.token_ids for each in answers] == [fake_answer(each.input_ids, 130, SMALL_VOCAB) for each in asked]
    assert counts(executor)[1] > 0


def test_salts_never_meet(tmp_path):
    for salt, expected in (("", 0), ("a", 0), ("b", 0), ("a", FULL), ("", FULL)):
        with fake(tmp_path) as executor:
            answer = executor.generate(Request(PROMPT, 8, cache_salt=salt))
            assert answer.token_ids == fake_answer(PROMPT, 8, SMALL_VOCAB)
            assert executor.iteration_stats[0].context_tokens == len(PROMPT) - expected
            executor.generate(Request(PROMPT, 8, cache_salt="c"))
            assert not [row for stats in executor.iteration_stats for row in stats.not_computed if row[1]]


def test_a_salt_that_is_the_beginning_of_a_prompt_finds_nothing_of_it(tmp_path):
    prompt = [token % 100 for token in PROMPT]
    with fake(tmp_path) as executor:
        executor.generate(Request(prompt, 8))
        salt = array("i", prompt[:BLOCK]).tobytes().decode()
        executor.generate(Request(prompt[BLOCK:], 8, cache_salt=salt))
    assert not any(stats.not_computed for stats in executor.iteration_stats)


@pytest.mark.parametrize("harm", ["a bit", "cut", "empty", "renamed", "a folder"])
def test_a_damaged_file_costs_a_computation_and_a_line_in_the_log(harm, tmp_path, caplog):
    with fake(tmp_path) as executor:
        executor.generate(Request(PROMPT, 8))
    files = sorted(tmp_path.iterdir())
    swapped = [file.read_bytes() for file in (*files[1:], files[0])]
    for file, another in zip(files, swapped):
        content = bytearray(file.read_bytes())
        content[-20] ^= 4
        if harm == "a folder":
            file.unlink()
            file.mkdir()
        else:
            file.write_bytes({"a bit": content, "cut": content[:50], "empty": b"", "renamed": another}[harm])
    with caplog.at_level(logging.WARNING), fake(tmp_path) as executor:
        assert executor.generate(Request(PROMPT, 8)).token_ids == fake_answer(PROMPT, 8, SMALL_VOCAB)
        assert executor.snapshot().kv_blocks_fetched == 0
    assert "cannot be used and is computed again" in caplog.text


def test_a_file_that_cannot_be_read_now_is_kept(tmp_path, monkeypatch):
    with fake(tmp_path) as executor:
        executor.generate(Request(PROMPT, 8))
    files = {file.stat().st_ino for file in tmp_path.iterdir()}
    with monkeypatch.context() as patch, fake(tmp_path) as executor:
        patch.setattr(Path, "read_bytes", fails_once(Path.read_bytes, OSError(errno.EMFILE, "Too many open files")))
        assert executor.generate(Request(PROMPT, 8)).token_ids == fake_answer(PROMPT, 8, SMALL_VOCAB)
    assert {file.stat().st_ino for file in tmp_path.iterdir()} == files


def test_blocks_that_could_not_be_filled_are_not_found(tmp_path, monkeypatch):
    with fake(tmp_path) as executor:
        executor.generate(Request(PROMPT, 8))
    with fake(tmp_path) as executor:
        write = fails_once(executor.model.write_blocks, RuntimeError("out of memory"))
        monkeypatch.setattr(executor.model, "write_blocks", write)
        with pytest.raises(CourseError, match="RuntimeError"):
            executor.generate(Request(PROMPT, 8))
        assert executor.blocks.num_free == executor.blocks.num_blocks
        assert executor.generate(Request(PROMPT, 8)).token_ids == fake_answer(PROMPT, 8, SMALL_VOCAB)
    assert counts(executor)[1] == FULL // BLOCK


def fails_once(function, error):
    errors = [error]

    def failing(*given):
        if errors:
            raise errors.pop()
        return function(*given)

    return failing


def test_what_waits_does_not_drive_out_what_was_fetched_for_those_before_it(tmp_path):
    asked = [Request([number, *PROMPT], 2) for number in range(1, 9)]
    with fake(tmp_path) as executor:
        executor.generate_all(asked)
    with fake(tmp_path, max_tokens_in_paged_kv_cache=8 * BLOCK) as executor:
        answers = executor.generate_all(asked)
    assert [each.token_ids for each in answers] == [fake_answer(each.input_ids, 2, SMALL_VOCAB) for each in asked]
    assert counts(executor)[1] == 8 * FULL // BLOCK
    assert sum(row[2] for stats in executor.iteration_stats for row in stats.not_computed) == 8 * FULL


def test_a_full_disk_costs_a_line_in_the_log(tmp_path, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level(logging.WARNING), fake(tmp_path) as executor:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # the kernel refuses longer files: EFBIG
        try:
            assert executor.generate(Request(PROMPT, 8)).token_ids == fake_answer(PROMPT, 8, SMALL_VOCAB)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert counts(executor)[0] == 0 and list(tmp_path.iterdir()) == []
        executor.generate(Request(PROMPT[1:], 8))
        assert counts(executor)[0] == FULL // BLOCK
    assert caplog.text.count("blocks are not kept in") == 1


def test_the_least_recent_go_first_and_the_folder_keeps_its_size(tmp_path):
    size = 32 + 32 + BLOCK * 8 + 4  # name, fingerprint, the fake model's block, checksum
    most = 20 * size
    with fake(tmp_path, kv_store_bytes=most) as executor:
        for number in range(12):
            executor.generate(Request([number + 1, *PROMPT], 2))
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= most
    with fake(tmp_path) as executor:
        executor.generate_all([Request([number, *PROMPT], 2) for number in (1, 12)])
    found = [row[2] for stats in executor.iteration_stats for row in stats.not_computed]
    assert found == [FULL]  # of the latest, and nothing of the first


def test_a_prompt_that_is_asked_again_stays_in_the_store_from_its_beginning(tmp_path):
    size = 32 + 32 + BLOCK * 8 + 4
    with fake(tmp_path, kv_store_bytes=20 * size) as executor:
        for number in range(12):
            executor.generate_all([Request([number + 1, *PROMPT], 2), Request([50, *PROMPT], 2)])  # 50 is in memory
    with fake(tmp_path) as executor:
        executor.generate(Request([50, *PROMPT], 2))
        assert counts(executor)[1] == FULL // BLOCK


def test_files_are_the_users_own_and_a_folder_that_others_write_to_is_refused(tmp_path):
    with fake(tmp_path / "a" / "store") as executor:
        executor.generate(Request(PROMPT, 2))
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "a" / "store").iterdir()}
    assert (modes, (tmp_path / "a" / "store").stat().st_mode & 0o777) == ({0o600}, 0o700)
    (tmp_path / "a" / "store").chmod(0o777)
    with pytest.raises(CourseError, match="Others may write to kv_store_path"):
        fake(tmp_path / "a" / "store")
    with pytest.raises(CourseError, match="no folder to write to"):
        fake(__file__)


def test_two_engines_on_one_folder_at_once_never_read_half_a_block(tmp_path):
    asked = [Request([number % 5 + 1, *PROMPT], 4) for number in range(40)]
    expected = [fake_answer(each.input_ids, 4, SMALL_VOCAB) for each in asked]
    with fake(tmp_path, kv_store_bytes=6000) as one, fake(tmp_path, kv_store_bytes=6000) as other:
        found = {}
        threads = [
            threading.Thread(
                target=lambda who=who: found.setdefault(who, [who.generate(each).token_ids for each in asked])
            )
            for who in (one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {one: expected, other: expected}


# Another engine, and the learner's policy -----------------------------------------------------------------------------


@contextlib.contextmanager
def served(store, harm=None):
    """What an OpenAI port says of a store; with `harm`, wrongly, or after so many seconds."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def say(self, content, status=200):
            self.send_response(status)
            if harm == "without a length":
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(OSError):
                while harm == "drips" and not over.wait(1):
                    self.wfile.write(b"x")
                self.wfile.write(content[: len(content) // 2] if harm == "dies" else content)
            if harm == "dies":
                self.connection.close()

        def do_GET(self):
            if harm == "silent":
                over.wait()
            elif isinstance(harm, float):
                over.wait(harm)
            file = store / self.path.rpartition("/")[2]
            if harm == "fails":
                self.say(b"no", 500)
            elif file.exists() and harm != "gone":
                content = file.read_bytes()
                self.say(content[:-1] + b"x" if harm == "damage" else content)
            else:
                self.say(b"no", 404)

    over = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "harm", [None, "damage", "gone", "fails", "dies", "drips", "silent", "without a length", "nobody there"]
)
def test_blocks_are_taken_from_another_engine_or_the_prompt_is_computed(harm, tmp_path, caplog):
    with fake(tmp_path / "theirs") as executor:
        executor.generate(Request(PROMPT, 2))
    with served(tmp_path / "theirs", harm) as url:
        url = "http://127.0.0.1:1" if harm == "nobody there" else url
        with caplog.at_level(logging.WARNING), fake(tmp_path / "ours", kv_peer_url=url) as executor:
            for prompt in (PROMPT, [1, *PROMPT]):
                assert executor.generate(Request(prompt, 8)).token_ids == fake_answer(prompt, 8, SMALL_VOCAB)
        assert "taking blocks" not in [thread.name for thread in threading.enumerate()]
    taken = FULL if harm is None else 0
    assert executor.iteration_stats[0].context_tokens == len(PROMPT) - taken
    assert executor.iteration_stats[0].not_computed == ([[1, 0, 0, FULL]] if harm is None else [])
    assert counts(executor)[2] == taken // BLOCK
    warned = {None: "", "gone": ""}
    assert warned.get(harm, "no blocks from kv_peer_url") in caplog.text
    assert bool(caplog.text) == (harm not in (None, "gone"))


def test_a_request_that_has_waited_for_blocks_follows_its_guide(tmp_path):
    ends_at_once = SimpleNamespace(end_id=None, mask=lambda answer, logits: None, take=lambda token: True)
    guides = SimpleNamespace(matcher=lambda guide: ends_at_once)
    settings = config(tmp_path, kv_peer_url="http://127.0.0.1:1")
    with Executor(FakeModel(BUILD, SMALL_VOCAB), settings, guides=guides) as executor:
        assert executor.generate(Request(PROMPT, 8, guide=Guide("json"))).finish_reason == "end_id"


def test_a_slow_engine_does_not_make_requests_wait_for_one_another(tmp_path):
    asked = [Request([number, *PROMPT], 2) for number in range(4)]
    with fake(tmp_path / "theirs") as executor:
        executor.generate_all(asked)
    with served(tmp_path / "theirs", 1.5) as url, fake(tmp_path / "ours", kv_peer_url=url) as executor:
        executor.generate_all(asked)
        assert counts(executor)[2] <= 1


def test_a_request_that_a_silent_engine_is_asked_for_ends_in_time_and_a_short_one_does_not_ask(tmp_path):
    with served(tmp_path, "silent") as url, fake(tmp_path / "ours", kv_peer_url=url) as executor:
        answers = SimpleQueue()
        executor.enqueue_request(Request(PROMPT, 8, allotted_time_ms=50), answers.put)
        executor.enqueue_request(Request(PROMPT[:BLOCK], 8), answers.put)
        found = [answers.get(), answers.get()]
    assert {each.finish_reason for each in found} == {"timed_out", "length"}
    assert executor.iteration_stats[0].requests[0][0] == 2
    assert not executor.iteration_stats[0].not_computed


POLICY = """
class Policy:
    def choose(self, tokens, found, prices):
        assert set(prices) == {{"compute", "fetch", "take"}} and tokens > 0
        [(way, number)] = found.items()
        return {chosen}
"""


@pytest.mark.parametrize(
    ("chosen", "fetched"), [("way if number >= 128 else 'compute'", 128), ("'compute'", 0), ("way", 128)]
)
def test_a_policy_says_what_is_fetched(chosen, fetched, tmp_path):
    (tmp_path / "policy.py").write_text(POLICY.format(chosen=chosen))
    with fake(tmp_path / "store", kv_policy_path=tmp_path / "policy.py") as executor:
        executor.generate(Request(PROMPT, 2))
    with fake(tmp_path / "store", kv_policy_path=tmp_path / "policy.py") as executor:
        assert executor.generate(Request(PROMPT, 2)).token_ids == fake_answer(PROMPT, 2, SMALL_VOCAB)
    assert executor.iteration_stats[0].context_tokens == len(PROMPT) - fetched


def test_a_policy_that_fails_ends_the_request_that_it_was_asked_for_and_no_other(tmp_path):
    (tmp_path / "policy.py").write_text(POLICY.format(chosen="1 / 0 if number == 128 else way"))
    with fake(tmp_path / "store") as executor:
        executor.generate(Request(PROMPT, 2))
    answers = SimpleQueue()
    with fake(tmp_path / "store", kv_policy_path=tmp_path / "policy.py") as executor:
        for prompt in ([1, *PROMPT], PROMPT):
            executor.enqueue_request(Request(prompt, 40), answers.put)
        found = {each.request_id: each for each in (answers.get(), answers.get())}
    assert found[1].token_ids == fake_answer([1, *PROMPT], 40, SMALL_VOCAB)
    assert "policy.py, line 6: ZeroDivisionError" in found[2].error


def test_what_is_fetched_slowly_does_not_make_computing_look_expensive(tmp_path, monkeypatch):
    with fake(tmp_path) as executor:
        executor.generate(Request(PROMPT, 2))
    read, now_s = BlockFolder.read, [0.0]

    def read_slowly(*given):
        now_s[0] += 0.25
        return read(*given)

    monkeypatch.setattr(BlockFolder, "read", read_slowly)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    with fake(tmp_path) as executor:
        executor.generate(Request([*PROMPT, *range(1, 41)], 2))  # 128 tokens are fetched, 62 computed
        prices = executor.moving.prices()
    assert prices["fetch"] > 5 and prices["compute"] < 0.2


@pytest.mark.parametrize("chosen", ["None", "[]", "'take' if way == 'fetch' else 'fetch'", "1 / 0"])
def test_a_policy_of_no_use_is_refused_with_its_line(chosen, tmp_path):
    (tmp_path / "policy.py").write_text(POLICY.format(chosen=chosen))
    with pytest.raises(CourseError, match=r"policy.py, line \d"):
        fake(tmp_path / "store", kv_policy_path=tmp_path / "policy.py")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"enable_kv_cache_reuse": False}, "set enable_kv_cache_reuse"),
        ({"kv_store_path": None, "kv_peer_url": "http://127.0.0.1:9"}, "set kv_store_path"),
        ({"kv_store_path": None, "kv_policy_path": "policy.py"}, "set kv_store_path"),
        ({"kv_store_bytes": 100}, "give room for many"),
        ({"kv_peer_url": "https://a"}, "give http://host:port"),
        ({"kv_peer_url": "http://10.0.0.1:9000"}, "set INFLIGHT_API_KEY"),
        ({"kv_peer_url": "http://127.0.0.1:9", "iteration_log_path": "/"}, "cannot be written"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, why, tmp_path, monkeypatch):
    monkeypatch.delenv("INFLIGHT_API_KEY", raising=False)
    with pytest.raises(CourseError, match=why):
        fake(**{"store": tmp_path, **settings}) if "kv_store_path" not in settings else ExecutorConfig(
            **{"enable_kv_cache_reuse": True} | settings
        )
    assert "taking blocks" not in [thread.name for thread in threading.enumerate()]
