"""What is chosen for a processor, and who says so."""

import subprocess
import sys

import pytest

from inflight import machine, processor
from inflight.models import huggingface
from inflight.processor import Processor


@pytest.mark.parametrize(
    ("has_bfloat16", "has_8_bits", "quant_algo", "dtype", "why"),
    [
        (False, False, "W4A16", "float32", "the processor has neither bfloat16 nor 8-bit products"),
        (False, True, "W4A8", "float32", "the processor has 8-bit products"),
        (True, True, "W4A8", "bfloat16", "the processor has bfloat16 and 8-bit products"),
    ],
)
def test_what_is_chosen_and_why_is_what_benchmarks_say(monkeypatch, has_bfloat16, has_8_bits, quant_algo, dtype, why):
    monkeypatch.setattr(processor, "here", lambda: Processor(has_bfloat16, has_8_bits))
    assert machine.describe()["precision"] == {"engine": quant_algo, "pytorch": dtype, "why": why}
    [row] = [row for row in machine.checks() if row.name == "precision on the CPU"]
    assert row.ok and quant_algo in row.have and dtype in row.have and why in row.have
    assert huggingface.best_dtype("cpu") == dtype and huggingface.best_dtype("cuda") == "bfloat16"


def test_what_has_bfloat16_multiplies_8_bits_too():
    """No processor has one without the other."""
    found = processor.here()
    assert found.has_8_bits or not found.has_bfloat16


INTERRUPTED = """
import os, signal, sys, threading
from inflight.engine import folder
from inflight.engine import model

engines = [model.load(folder.read(sys.argv[1]))]
forget = threading.Thread(target=engines.clear)
forget.start()
forget.join()
try:
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_is_heard_when_an_engine_has_ended_in_another_thread(small_engine):
    command = [sys.executable, "-c", INTERRUPTED, str(small_engine)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n"), ran.stderr
