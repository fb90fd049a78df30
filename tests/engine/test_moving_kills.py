"""Whoever is killed while blocks move, twenty times each: nobody hangs, no answer is wrong, and the store is whole."""

import logging
import random
import subprocess

import pytest

from inflight.engine.messages import Request
from tests.engine.test_moving import BUILD, FULL, PROMPT, SMALL_VOCAB, counts, fake, fake_answer, served
from tests.engines import start_python

pytestmark = pytest.mark.slow
TIMES, ANSWER = 20, 40

ENGINE = f"""
import sys
from tests.engine.test_moving import PROMPT, Request, fake
store, peer = sys.argv[1], sys.argv[2] or None
with fake(store, kv_peer_url=peer) as executor:
    for number in range(1, 500):
        asked = Request([number, *PROMPT], {ANSWER}, streaming=True)
        executor.enqueue_request(asked, lambda said: print("x", flush=True))
    sys.stdin.read()
"""
SERVER = """
import sys
from pathlib import Path
from tests.engine.test_moving import served
with served(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def answers_well(store, caplog, **settings):
    """An engine on what is left answers as if nothing had been, and finds no file damaged."""
    caplog.clear()
    asked = [Request([number, *PROMPT], 4) for number in range(1, 40)]
    with caplog.at_level(logging.WARNING), fake(store, **settings) as executor:
        found = [each.token_ids for each in executor.generate_all(asked)]
    assert found == [fake_answer(each.input_ids, 4, SMALL_VOCAB) for each in asked]
    assert "cannot be used" not in caplog.text
    return counts(executor)


@pytest.mark.parametrize("peer", [False, True], ids=["the engine that writes", "the decoder"])
def test_an_engine_is_killed_while_it_writes(peer, tmp_path, caplog):
    theirs, ours, draw = tmp_path / "theirs", tmp_path / "ours", random.Random(13)
    answers_well(theirs, caplog)
    with served(theirs) as url:
        for _ in range(TIMES):
            engine = start_python(ENGINE, ours, url if peer else "", stdin=subprocess.PIPE)
            for _ in range(draw.randrange(1, 400)):
                assert engine.stdout.readline() == "x\n"
            engine.kill()
            engine.communicate()
        stored, fetched, _ = answers_well(ours, caplog)
    assert fetched > 0 and stored + fetched >= 39 * FULL // BUILD.tokens_per_block


def test_the_prefiller_is_killed_while_it_sends(tmp_path, caplog):
    theirs, draw = tmp_path / "theirs", random.Random(13)
    answers_well(theirs, caplog)
    for number in range(TIMES):
        server = start_python(SERVER, theirs, stdin=subprocess.PIPE)
        url = server.stdout.readline().strip()
        begun, most = [], draw.randrange(1, 30)

        def receive(response, begun=begun, most=most, server=server):
            begun.append(response.token_ids)
            if len(begun) == most:
                server.kill()

        with fake(tmp_path / f"ours{number}", kv_peer_url=url) as executor:
            for first in range(1, 40):
                executor.enqueue_request(Request([first, *PROMPT], 4), receive)
            last = executor.generate(Request([77, *PROMPT], 4))
        assert last.token_ids == fake_answer([77, *PROMPT], 4, SMALL_VOCAB)
        server.kill()
        server.communicate()
        answers_well(tmp_path / f"ours{number}", caplog)
