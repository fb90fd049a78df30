"""Whatever is done to a file, who reads it says what is wrong in a sentence, or reads it; within time and memory.

The real files are damaged one way after another, in a process of their own (`fuzz_readers`) with limits on both.

    INFLIGHT_FUZZ_MUTATIONS=10000 INFLIGHT_FUZZ_SEED=7 pytest tests/checkpoint/test_readers_fuzz.py

reads so many of each kind; the seed is printed when a test fails, with the command that makes the same file again.
"""

import json
import os
import subprocess
import sys

import pytest

from inflight.paths import COURSE
from tests.checkpoint.fuzz_readers import READERS

MUTATIONS = int(os.environ.get("INFLIGHT_FUZZ_MUTATIONS", "150"))
SEED = int(os.environ.get("INFLIGHT_FUZZ_SEED", "1"))
TEMPLATES = -(-MUTATIONS // 5)  # each has a process of its own, and some compute until they are stopped
LONGEST_S = 600 + MUTATIONS  # for a machine that is busy; limits that matter are on processor time


@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_read_or_refused_in_a_sentence(reader, sources, tmp_path):
    command = [sys.executable, "-m", "tests.checkpoint.fuzz_readers", reader, str(sources / reader), str(tmp_path)]
    number = TEMPLATES if reader == "template" else MUTATIONS
    command += [str(SEED), "0", str(number)]
    print(f"Seed {SEED}, {number} mutations:", *command)
    ran = subprocess.run(command, capture_output=True, text=True, cwd=COURSE, timeout=LONGEST_S)
    assert ran.returncode == 0, f"{ran.returncode}: {ran.stderr[-6000:]}"
    outcomes = json.loads(ran.stdout.splitlines()[-1])
    print(outcomes)
    assert sum(outcomes.values()) == number and outcomes["refused"] > 0
