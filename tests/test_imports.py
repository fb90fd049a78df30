"""Nobody waits for what is heavy before it is used: no notebook's first cells, figure, adapter or `inflight --help`.

Each import runs in a Python of its own, and what it brought along is read from that Python's `sys.modules`.
"""

import ast
import json
import subprocess
import sys

import jupytext
import pytest

from inflight.paths import COURSE

HEAVY = {"gguf", "openvino", "openvino_genai", "torch", "transformers"}  # each takes 0.3 to 3 s and 50 to 300 MB

IMPORTS = {
    "charts": "import inflight.notebook.charts",
    "widgets": "import inflight.notebook.widgets",
    "boards": "import inflight.notebook.boards",
    "grading": """
from inflight.notebook.grading import *
from inflight.notebook.grading import batchers, batching, engine, iterative_gpt2, kv_cache, repository, serve
""",
    "the engine's vocabulary": "import inflight.engine.config, inflight.engine.folder",
    "Triton's face": "from inflight.triton import *",
    "the repository's face": "from inflight.triton.repository import *",
    "planning a load": "import inflight.bench.plan, inflight.bench.result_files",
    "the command line": "import inflight.cli.commands",
    "inflight --help": """
from inflight.cli.commands import app
app(["--help"], standalone_mode=False)
""",
}

LESSONS = {f"{path.parent.name}/{path.stem}": path for path in sorted(COURSE.glob("lessons/*/l*.py"))}
ADAPTERS = {path.parents[1].name: path for path in sorted(COURSE.glob("assets/repository/*/1/model.py"))}
# What is exempt, as it is there to compute: it may bring what it computes with, and nothing else.
EXEMPT = {
    "01_engine/lab": {"openvino", "openvino_genai"},  # runs an engine in the notebook's own process
    "tensorrt_llm": {"openvino", "openvino_genai"},  # loads the engine
    "simple-gpt2": {"torch"},  # computes GPT-2
    "iterative-gpt2": {"torch"},  # computes GPT-2
    "text-embedding": {"torch"},  # computes the checkpoint
}
# Inside Triton there is a module of this name; what is read from it at import may be anything.
IN_TRITON = """
import runpy, sys, unittest.mock
for name in ("triton_python_backend_utils", "c_python_backend_utils"):
    sys.modules[name] = unittest.mock.MagicMock()
"""


def brought(statements: str) -> set[str]:
    """Heavy modules that a Python has after `statements`."""
    script = f"{statements}\nimport json, sys\nprint()\nprint(json.dumps(list(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=COURSE)
    assert ran.returncode == 0, ran.stderr
    return HEAVY & set(json.loads(ran.stdout.splitlines()[-1]))


def first_imports(path) -> str:
    """The imports of a lesson's first two cells with code: in a lecture the first only asks for a prediction."""
    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"][:2]
    nodes = [node for cell in cells for node in ast.parse(cell).body]
    return "\n".join(ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


@pytest.mark.parametrize("name", IMPORTS)
def test_a_module_brings_nothing_heavy(name):
    assert brought(IMPORTS[name]) == set()


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lessons_first_cells_bring_nothing_heavy(lesson):
    statements = first_imports(LESSONS[lesson])
    assert "inflight" in statements  # else nothing is held here
    assert brought(statements) <= EXEMPT.get(lesson, set())


def test_what_adapters_share_brings_nothing_heavy():
    assert brought(f"{IN_TRITON}import inflight.triton.python_model") == set()


@pytest.mark.parametrize("model", ADAPTERS)
def test_an_adapter_brings_what_it_computes_with_and_nothing_else(model):
    assert brought(f"{IN_TRITON}runpy.run_path({str(ADAPTERS[model])!r})") <= EXEMPT.get(model, set())
