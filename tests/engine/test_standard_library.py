"""The engine's core runs where nothing is installed, such as in a browser: it needs the standard library alone."""

import subprocess
import sys
from pathlib import Path

import inflight

# 48 requests of lesson 04's lengths: one of a round is eight times as long as the seven others.
SIMULATED = """
from inflight.engine import BuildConfig, ExecutorConfig, built_in
from inflight.engine.own.scheduler import accepted
from inflight.engine.simulate import Simulation, SimulatedRequest

limits = BuildConfig(max_batch_size=8)
lengths = ([128] + [8] * 5) * 8
requests = [SimulatedRequest(1, tokens, tokens) for tokens in lengths]
for kind in ("V1", "inflight_fused_batching"):
    trial = Simulation(requests, 8 * (2 + max(lengths) // limits.tokens_per_block), limits)
    print(trial.counts(trial.run(built_in(ExecutorConfig(gpt_model_type=kind)))).iterations)
"""


def test_lesson_04s_requests_are_simulated_without_any_package():
    package = str(Path(inflight.__file__).parents[1])
    start = f"import sys; sys.path.insert(0, {package!r})\n"
    ran = subprocess.run([sys.executable, "-S", "-E", "-c", start + SIMULATED], capture_output=True, text=True)
    assert (ran.stdout.split(), ran.stderr) == (["768", "240"], "")
