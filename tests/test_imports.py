"""Nobody waits for what is heavy before it is used: no notebook's first cells, figure, adapter or `inflight --help`.

Each import runs in a process of its own, and what it brought along is read from that process's `sys.modules`. The
processes are forks of one Python, which has what most of them take and what is light.
"""

import ast
import json
import re
import subprocess
import sys

import jupytext
import pytest

from inflight.paths import COURSE, PACKAGE

HEAVY = {"gguf", "openvino", "openvino_genai", "torch", "transformers"}  # each takes 0.3 to 3 s and 50 to 300 MB

OF_LESSONS = [
    path for name in ("charts", "dashboard", "grading") for path in (PACKAGE / "lessons").glob(f"*/{name}.py")
]

# Inside Triton there is a module of this name; what is read from it at import may be anything.
IN_TRITON = """
import runpy, sys, unittest.mock
for name in ("triton_python_backend_utils", "c_python_backend_utils"):
    sys.modules[name] = unittest.mock.MagicMock()
"""

IMPORTS = {
    "charts": "import inflight.notebook.charts",
    "widgets": "import inflight.notebook.widgets",
    "checks": "import inflight.notebook.checks",
    **{
        f"{path.parent.name}/{path.stem}": f"import inflight.lessons.{path.parent.name}.{path.stem}"
        for path in OF_LESSONS
    },
    "the engine's vocabulary": "import inflight.engine.config, inflight.engine.folder",
    "Triton's face": "from inflight.triton import *",
    "the repository's face": "from inflight.triton.repository import *",
    "planning a load": "import inflight.bench.workload, inflight.bench.report",
    "the command line": "import inflight.cli.commands",
    "what adapters share": f"{IN_TRITON}import inflight.triton.python_model",
    "inflight --help": """
from inflight.cli.commands import app
app(["--help"], standalone_mode=False)
""",
}

LESSONS = {f"{path.parent.name}/{path.stem}": path for path in sorted(COURSE.glob("lessons/*/l*.py"))}
ADAPTERS = {path.parents[1].name: path for path in sorted(COURSE.glob("assets/repository/*/1/model.py"))}
# An adapter that is there to compute may bring what it computes with, and nothing else.
EXEMPT = {
    "tensorrt_llm": {"openvino", "openvino_genai"},  # loads the engine
    "llmapi": {"openvino", "openvino_genai"},  # loads the engine
    "simple-gpt2": {"torch"},  # computes GPT-2
    "iterative-gpt2": {"torch"},  # computes GPT-2
    "text-embedding": {"torch"},  # computes the checkpoint
}
# So may a lesson that takes one of these names, or a library by its own: it computes in the notebook's process.
COMPUTES = {"Executor": {"openvino", "openvino_genai"}, "quantized": {"gguf"}, "GgufFile": {"gguf"}} | {
    name: {name} for name in HEAVY
}
NURSERY = """
import contextlib, json, os, sys, traceback
import IPython.display, ipywidgets, numpy, pandas, plotly.graph_objects

for line in sys.stdin:
    if (child := os.fork()) == 0:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                exec(json.loads(line), {"__name__": "__main__"})
            answer = list(sys.modules)
        except BaseException:
            answer = traceback.format_exc()
        print(json.dumps(answer), flush=True)
        os._exit(0)
    if status := os.waitpid(child, 0)[1]:
        print(json.dumps(f"the process ended with {status}"), flush=True)
"""


@pytest.fixture(scope="module")
def brought():
    """Function: the heavy modules that a process has after `statements`."""
    nursery = subprocess.Popen(
        [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=COURSE
    )

    def heavy(statements: str) -> set[str]:
        nursery.stdin.write(json.dumps(statements) + "\n")
        nursery.stdin.flush()
        modules = json.loads(nursery.stdout.readline())
        assert isinstance(modules, list), modules
        return HEAVY & set(modules)

    assert heavy("") == set() and heavy("import gguf") == {"gguf"}, "what is heavy is seen"
    with nursery:
        yield heavy
        nursery.stdin.close()


def first_imports(path) -> str:
    """The imports of a lesson's first two cells with code: in a lecture the first only asks for a prediction."""
    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"][:2]
    nodes = [node for cell in cells if not cell.startswith("%%") for node in ast.parse(cell).body]
    return "\n".join(ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


@pytest.mark.parametrize("name", IMPORTS)
def test_a_module_brings_nothing_heavy(brought, name):
    assert brought(IMPORTS[name]) == set()


def test_lessons_first_cells_bring_what_they_compute_with_and_nothing_else(brought):
    first = {lesson: first_imports(path) for lesson, path in LESSONS.items()}
    assert all("inflight" in statements for statements in first.values())  # else nothing is held here
    computes = {lesson: COMPUTES.keys() & set(re.findall(r"\w+", statements)) for lesson, statements in first.items()}
    assert brought("\n".join(first[lesson] for lesson in first if not computes[lesson])) == set()
    for lesson in first:
        assert brought(first[lesson]) <= set().union(*(COMPUTES[name] for name in computes[lesson])), lesson


@pytest.mark.parametrize("model", ADAPTERS)
def test_an_adapter_brings_what_it_computes_with_and_nothing_else(brought, model):
    assert brought(f"{IN_TRITON}runpy.run_path({str(ADAPTERS[model])!r})") <= EXEMPT.get(model, set())
