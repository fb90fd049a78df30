"""Nobody waits for what is heavy before it is used: no notebook's first cells, figure, adapter or `inflight --help`.

What must bring nothing heavy runs in one process, one after another; what may, in a process of its own. What has come
along is read from `sys.modules`.
"""

import ast
import json
import re
import subprocess
import sys

import jupytext

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
    "charts": "from inflight.notebook.charts import *",
    "widgets": "from inflight.notebook.widgets import *",
    "checks": "from inflight.notebook.checks import *",
    **{
        f"{path.parent.name}/{path.stem}": f"import inflight.lessons.{path.parent.name}.{path.stem}"
        for path in OF_LESSONS
    },
    "the engine's vocabulary": "from inflight.engine import messages, settings; import inflight.engine.folder",
    "Triton's face": "from inflight.triton import *",
    "OpenAI's face": "from inflight.openai import *",
    "the repository's face": "from inflight.triton.repository import *",
    "planning a load": "import inflight.bench.workload, inflight.bench.report",
    "the command line": "import inflight.cli.commands",
    "inflight --help": """
from inflight.cli.commands import app
app(["--help"], standalone_mode=False)
""",
    "what adapters share": f"{IN_TRITON}import inflight.triton.model.python_model",
}

LESSONS = {
    f"{path.parent.name}/{path.stem}": path
    for name in ("lecture", "lab")
    for path in sorted(PACKAGE.glob(f"lessons/*/{name}.py"))
}
ADAPTERS = {path.parents[1].name: path for path in sorted(PACKAGE.glob("triton/templates/*/1/model.py"))}
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
ONE_AFTER_ANOTHER = """
import contextlib, json, sys

heavy, told = set(sys.argv[1:]), {}
for name, statements in json.load(sys.stdin).items():
    with contextlib.redirect_stdout(sys.stderr):
        exec(statements, {"__name__": "__main__"})
    if came := heavy & set(sys.modules):
        heavy, told[name] = heavy - came, sorted(came)
print(json.dumps(told))
"""


def brought(statements: dict[str, str]) -> dict[str, list[str]]:
    """The heavy modules that each of these was the first to bring into the process; what brings none is left out."""
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER, *HEAVY]
    ran = subprocess.run(command, input=json.dumps(statements), capture_output=True, text=True, cwd=COURSE)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def first_imports(path) -> str:
    """The imports of a lesson's first two cells with code: in a lecture the first only asks for a prediction."""
    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"][:2]
    nodes = [node for cell in cells if not cell.startswith("%%") for node in ast.parse(cell).body]
    return "\n".join(ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def test_what_is_heavy_is_seen():
    assert brought({"json": "import json", "gguf": "import gguf", "again": "import gguf"}) == {"gguf": ["gguf"]}


def test_importing_the_package_loads_none_of_its_libraries():
    script = "import sys, inflight; print({'numpy', 'typer', 'httpx', 'openvino'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"


def test_a_module_brings_nothing_heavy():
    assert brought(IMPORTS) == {}


def test_lessons_first_cells_bring_what_they_compute_with_and_nothing_else():
    first = {lesson: first_imports(path) for lesson, path in LESSONS.items()}
    assert all("inflight" in statements for statements in first.values())  # else nothing is held here
    computes = {lesson: COMPUTES.keys() & set(re.findall(r"\w+", statements)) for lesson, statements in first.items()}
    assert brought({lesson: first[lesson] for lesson in first if not computes[lesson]}) == {}
    for lesson in filter(computes.get, first):
        allowed = set().union(*(COMPUTES[name] for name in computes[lesson]))
        assert set(brought({lesson: first[lesson]}).get(lesson, [])) <= allowed, lesson


def test_an_adapter_brings_what_it_computes_with_and_nothing_else():
    loads = {model: f"{IN_TRITON}runpy.run_path({str(path)!r})" for model, path in ADAPTERS.items()}
    assert brought({model: loads[model] for model in loads if model not in EXEMPT}) == {}
    for model, allowed in EXEMPT.items():
        assert set(brought({model: loads[model]}).get(model, [])) <= allowed, model
