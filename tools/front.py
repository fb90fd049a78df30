"""Makes what stands in front of the course's pages: where one lands, and Play. `make play`, and `make site`.

    python -m tools.front build/site build/site-node/node_modules

Play runs the course's own modules in the browser: they are packed as they are, with Pyodide from npm.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template

import numpy as np

from inflight import syllabus
from inflight.engine import scheduler
from inflight.paths import COURSE as CLONE
from tools import address, lessons, titles

SITE = CLONE / "site"
sys.path.insert(0, str(SITE / "play"))  # as in the browser, where it stands beside the package
import drawing  # noqa: E402

SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9"
PYODIDE = ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip"]
# What Play runs of the package. They need the standard library alone: tests/tools/test_play.py holds them to it.
SHIPPED = [
    "inflight/__init__.py",
    "inflight/errors.py",
    "inflight/faces.py",
    "inflight/files.py",
    "inflight/paths.py",
    "inflight/py.typed",
    *(f"inflight/engine/{name}" for name in ("__init__.py", "__init__.pyi", "kv_cache.py", "messages.py")),
    *(f"inflight/engine/{name}.py" for name in ("scheduler", "sequences", "settings", "simulate")),
    *(f"inflight/engine/own/{name}.py" for name in ("__init__", "part", "plan_rules", "scheduler")),
    *(f"inflight/notebook/{name}" for name in ("__init__.py", "__init__.pyi")),
    *(f"inflight/notebook/{room}/__init__.py{i}" for room in ("charts", "checks", "pages") for i in ("", "i")),
    "inflight/notebook/charts/palette.py",
    "inflight/syllabus.py",
    *(
        f"inflight/notebook/checks/{name}.py"
        for name in ("answers", "findings", "graders", "parts", "simulate_scheduler", "verdict")
    ),
    "inflight/lessons/__init__.py",
    "inflight/lessons/order.toml",
    "inflight/lessons/*/lesson.toml",
    *(f"inflight/lessons/batching/{name}" for name in ("__init__.py", "__init__.pyi", "grading.py", "simulate.py")),
    *(f"inflight/lessons/kv_cache/{name}" for name in ("__init__.py", "__init__.pyi", "grading.py")),
    "inflight/lessons/kv_cache/parts/scheduler.py",
    *(f"inflight/lessons/speculation/{name}" for name in ("__init__.py", "__init__.pyi", "counting.py", "grading.py")),
    "inflight/lessons/speculation/parts/drafter.py",
    *(f"inflight/lessons/replicas/{name}" for name in ("__init__.py", "__init__.pyi", "grading.py", "simulate.py")),
]


def pack(place: Path) -> None:
    """Write the zip file of all that Play runs; the same sources give the same bytes."""
    found = {path.relative_to(CLONE).as_posix(): path for name in SHIPPED for path in sorted(CLONE.glob(name))}
    found |= {path.name: path for path in sorted((SITE / "play").glob("*.py"))}
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(found.items()):
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)


# Play -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """A page of Play; the exercise's file, what stands in it at first, and its hints are those of the lab.

    Attributes
    ----------
    name, title : str
    question : list of str
        Paragraphs.
    exercises : dict of str to str
        Which exercise judges -> how it is called.
    built_in : dict of str to type
        Schedulers of the engine that one may begin with, by their name.
    traces : dict of str to str
    sliders : dict of str to tuple
        By name: its words, least, most, step, and where it begins.
    """

    name: str
    title: str
    question: list[str]
    exercises: dict[str, str]
    traces: dict[str, str]
    sliders: dict[str, tuple[str, int, int, int, int]]
    built_in: dict[str, type] = field(default_factory=dict)
    function: str = ""
    of: str = "Requests"


PAGES = [
    Page(
        "slots",
        "Eight slots",
        [
            "Forty-eight requests wait for an engine with eight slots. Most ask for 8 tokens, every sixth for 128; "
            "each <em>iteration</em> gives one token to each request in a slot. When may the next request start?",
            "Before each iteration the engine asks your <code>schedule(now)</code> whom to <code>admit</code>, and how "
            "many tokens each should <code>compute</code>: its prompt at first (<code>pending_tokens</code>), then "
            "one. Below, each runs alone. Fill <code>now.max_batch_size</code> slots, first come, first served. An "
            "iteration computes at most <code>now.max_num_tokens</code>; the check varies both.",
        ],
        {"4.3": "in flight", "4.2": "static"},
        {
            "skewed": "48 answers, every sixth long",
            "sorted": "the same, sorted by length",
            "equal": "48 equal answers",
            "mild": "32 answers of 8 to 128 tokens",
        },
        {"slots": ("slots", 1, 16, 1, 8), "longest": ("longest answer, in tokens", 16, 256, 16, 128)},
        {"static batching": scheduler.StaticBatching, "guaranteed_no_evict": scheduler.GuaranteedNoEvict},
    ),
    Page(
        "blocks",
        "The blocks run out",
        [
            "An engine’s KV cache keeps each request’s computed tokens, in 32 blocks of 32. Reserve blocks for each "
            "longest answer (<code>guaranteed_no_evict</code>), and most lie idle; let more requests in "
            "(<code>max_utilization</code>), and when blocks run out, <em>pause</em> one: its tokens are computed "
            "again.",
            "Whom to pause, whom to admit? A request <code>one</code> has <code>known_tokens</code>, "
            "<code>pending_tokens</code> and <code>own_blocks</code>, which a pause frees; it takes "
            "<code>now.blocks_needed(one)</code>. Admit from <code>now.paused</code>, then <code>now.waiting</code>, "
            "within <code>now.max_batch_size</code> and <code>now.max_num_tokens</code>.",
        ],
        {"5.3": "a better pause"},
        {
            "whole": "answers as long as they may be",
            "early": "answers that end long before their limit",
            "spread": "requests that come one after the other",
        },
        {"blocks": ("blocks", 24, 96, 4, 32)},
        {"guaranteed_no_evict": scheduler.GuaranteedNoEvict, "max_utilization": scheduler.MaxUtilization},
    ),
    Page(
        "servers",
        "Two servers",
        [
            "Two servers, prompts that begin alike: a server whose cache has room computes each beginning once. Send "
            "each to its <em>home</em>, where it went before, and popular homes fall behind; send in turn, and both "
            "compute everything. One may be slow, or die.",
            "Your <code>choose(request, servers)</code> returns one of <code>servers</code>. A request’s "
            "<code>prefix</code> is how its prompt begins; a server has a <code>name</code> (keep names: objects are "
            "new each time), requests <code>under_way</code>, and <code>is_healthy</code>.",
        ],
        {"12.1": "a policy for every day"},
        {
            "hot": "a popular beginning",
            "even": "twelve beginnings, equally popular",
            "slow": "one server takes three times as long",
            "dies": "one server dies",
            "three": "three servers",
        },
        {},
    ),
    Page(
        "drafts",
        "Keep or throw away",
        [
            "A small model, the drafter, guesses the next tokens; the large one computes all of them in one iteration: "
            "its chances <code>p</code> stand beside the drafter’s <code>q</code>. Keep as many guesses as you can, "
            "while each token comes as often as from the large model alone.",
            "Your <code>accept</code> returns the tokens that the iteration brings, at least one. "
            "<code>draft[i]</code> was drawn from <code>q[i]</code>, the drafter’s chances of each token; "
            "<code>p[i]</code> are the large model’s there, and <code>p</code> has one row more, for the token after "
            "the last guess. An answer ends "
            "with the token <code>end</code>. <code>chance.random()</code> is a number from 0 to 1; "
            "<code>chance.choices(range(len(row)), row)[0]</code> draws a token.",
        ],
        {"11.1": "a drafter that is a model"},
        {"good": "a good drafter", "flat": "one that knows nothing", "sure": "one that is sure, as a lookup is"},
        {"k": ("guesses an iteration", 1, 8, 1, 4)},
        function="accept",
        of="Drafter",
    ),
]


def make_play(out: Path, modules: Path) -> None:
    """Write the pages of Play, and all that they load, to the folder `out`."""
    (out / "pyodide").mkdir(parents=True, exist_ok=True)
    for name in PYODIDE:
        shutil.copyfile(modules / "pyodide" / name, out / "pyodide" / name)
    packages = json.loads((modules / "pyodide" / "pyodide-lock.json").read_text(encoding="utf-8"))
    (out / "pyodide" / "pyodide-lock.json").write_text(json.dumps(packages | {"packages": {}}), encoding="utf-8")
    for path in (SITE / "play").glob("*.js"):
        shutil.copyfile(path, out / path.name)
    (out.parent / "_static").mkdir(exist_ok=True)
    for name in ("card.png", "front.css", "icon.svg", "theme.js"):
        shutil.copyfile(SITE / "_static" / name, out.parent / "_static" / name)
    bundle = [f"--outfile={out / 'editor.js'}", "--bundle", "--minify", "--format=esm", "--log-level=warning"]
    command = ["node", str(modules / "esbuild-wasm" / "bin" / "esbuild"), str(SITE / "play" / "editor.js"), *bundle]
    subprocess.run(command, check=True, env={**os.environ, "NODE_PATH": str(modules)})
    pack(out / "play.zip")
    template = Template((SITE / "play" / "page.html").read_text(encoding="utf-8"))
    loaded = [*(out / "pyodide" / name for name in PYODIDE if name != "pyodide.mjs"), out / "play.zip"]
    total = sum(path.stat().st_size for path in loaded)
    for page in PAGES:
        told = template.substitute(
            _filled(page),
            total=total,
            megabytes=round(total / 1e6),
            site=f"https://{address.forms(address.current(CLONE))[1]}",
        )
        (out / f"{page.name}.html").write_text(told, encoding="utf-8")


def _filled(page: Page) -> dict[str, str]:
    """Return what a page's template is filled with."""
    exercise = next(iter(page.exercises))
    lesson = next(each for each in syllabus.read() if int(each.number) == int(exercise.split(".")[0]))
    file, begun, hints = _of_the_lab(lesson, exercise)
    starts = {"the exercise as given": begun} | {name: _source(kind) for name, kind in page.built_in.items()}
    judged = _options(page.exercises, lambda number, words: f"{number}, {words}")
    current = ' aria-current="page"'
    pages = [f'<a href="{each.name}.html"{current * (each is page)}>{each.title}</a>' for each in PAGES]
    sliders = [
        f'<label>{words} <input type="range" name="{name}" min="{least}" max="{most}" step="{step}" value="{begin}">'
        f"<output>{begin}</output></label>"
        for name, (words, least, most, step, begin) in page.sliders.items()
    ]
    traces = f'<label>{page.of} <select name="trace">{_options(page.traces)}</select></label>' if page.traces else ""
    return {
        "page": page.name,
        "title": page.title,
        "description": escape(re.sub("<.*?>", "", page.question[0])[:150].rsplit(" ", 1)[0] + " …"),
        "question": "".join(f"<p>{words}</p>" for words in page.question),
        "file": file,
        "function": page.function,
        "pages": "".join(pages),
        "start": "".join(f"<option>{name}</option>" for name in starts),
        "starts": json.dumps(starts).replace("<", "\\u003c"),
        "exercise": f'<label>Judged as exercise <select name="exercise">{judged}</select></label>'
        if len(page.exercises) > 1
        else f'<input type="hidden" name="exercise" value="{exercise}">',
        "controls": traces + "".join(sliders),
        "hints": f'<p>They are the lab’s; the lecture that they name is <a href="../notebooks/{lesson.name}.html">'
        f"lesson {lesson.number}</a>.</p>{hints}",
        "real": f"<p>Download your file and continue with real servers: lesson {lesson.number}, "
        f'<a href="../notebooks/{lesson.name}.html">{escape(lesson.title)}</a>, and exercise {exercise} of '
        f'<a href="../labs/{lesson.name}_lab.html">its lab</a>. '
        f"Both open with <code>inflight lab {lesson.number}</code>, "
        'once <a href="../README.html#begin">installed</a>.</p>',
    }


def _options(choices: dict[str, str], words: Callable[[str, str], str] = lambda value, words: words) -> str:
    return "".join(f'<option value="{value}">{escape(words(value, said))}</option>' for value, said in choices.items())


def _source(kind: type) -> str:
    """Return one of the engine's schedulers as a file of its own."""
    source = inspect.getsource(kind).replace(f"class {kind.__name__}", "class Scheduler")
    names = sorted(name for name in vars(scheduler) if re.search(rf"\b{name}\b", source) and name != "Scheduler")
    taken = [name for name in names if getattr(vars(scheduler)[name], "__module__", "") == scheduler.__name__]
    standard = "from itertools import chain\n\n" if "chain(" in source else ""
    return f"{standard}from inflight.engine.scheduler import {', '.join(taken)}\n\n\n{source}"


def _of_the_lab(lesson: syllabus.Lesson, exercise: str) -> tuple[str, str, str]:
    """Return the name of an exercise's file, what the lab hands out in it, and its hints as HTML."""
    cells = [(cell.cell_type, cell.source) for cell in lessons.source(lesson, "labs").cells]
    at = next(place for place, (_, text) in enumerate(cells) if f'check("{exercise}"' in text)
    begun = next(text for kind, text in reversed(cells[:at]) if kind == "code")
    first, _, rest = begun.partition("\n")
    file = first.rpartition("/")[2] if first.startswith("%%writefile") else ""
    prose = "\n\n".join(text for kind, text in cells[at + 1 :] if kind == "markdown")
    hints = re.findall(r"<details>.*?</details>", re.split("^## ", prose, flags=re.M)[0], re.S)
    made = "\n".join(re.sub(r"\n\n+(?=\S)", "\n<p>", hint) for hint in hints)
    return file or f"{begun[4 : begun.index('(')]}.py", f"{rest if file else begun}\n", made


# Where one lands ------------------------------------------------------------------------------------------------------

WHAT = (
    "A course for Python programmers: how one server answers many people with one real language model. You write "
    "parts of its engine, serve it with NVIDIA’s Triton Inference Server, then measure, tune and break it, on a "
    "laptop without a GPU."
)
RUN = "Which of 8 slots was taken"  # lecture 04's picture of its run, in words


def make_landing(out: Path) -> None:
    """Write the page to land on, its pictures, and the list of all pages."""
    where = address.current(CLONE)
    image, site, name = address.forms(where)
    course = syllabus.read()
    batching = next(lesson for lesson in course if lesson.topic == "batching")
    figure = next(shown for shown in _shown(batching) if "".join(shown["text/plain"]).startswith(RUN))
    static, in_flight = panels = _panels(figure["application/vnd.plotly.v1+json"])
    told = Template((SITE / "landing.html").read_text(encoding="utf-8")).substitute(
        description=WHAT,
        site=f"https://{site}",
        repository=where,
        codespaces=f"https://codespaces.new/{name}",
        image=image,
        picture=drawing.picture(panels, {"long": "long answer", "short": "short answer", "waste": "empty slot"}),
        requests=sum(box.kind != "waste" for box in static.boxes),
        static=static.columns,
        in_flight=in_flight.columns,
        cards="\n".join(_card(lesson, out) for lesson in course),
    )
    (out / "index.html").write_text(told, encoding="utf-8")
    pages = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.html") if "_static" not in path.parts)
    urls = "".join(f"<url><loc>https://{site}/{page.removesuffix('index.html')}</loc></url>\n" for page in pages)
    (out / "sitemap.xml").write_text(
        f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{SITEMAP}">\n{urls}</urlset>\n', encoding="utf-8"
    )
    (out / "robots.txt").write_text(f"User-agent: *\nSitemap: https://{site}/sitemap.xml\n", encoding="utf-8")


def _shown(lesson: syllabus.Lesson) -> list[dict]:
    """Return what the cells of a stored lecture show as pictures, in every form."""
    lecture = json.loads((CLONE / "notebooks" / f"{lesson.name}.ipynb").read_text(encoding="utf-8"))
    outputs = (output.get("data", {}) for cell in lecture["cells"] for output in cell.get("outputs", ()))
    return [data for data in outputs if "image/svg+xml" in data]


def _panels(figure: dict) -> list[drawing.Panel]:
    """Draw a slot map of a lecture anew, from the numbers that its stored figure has."""
    panels = []
    for axis, title in (("x", "static"), ("x2", "in flight")):
        boxes = []
        for trace in (trace for trace in figure["data"] if trace["xaxis"] == axis):
            kind = trace["name"].partition(" ")[0].removesuffix(":")
            for begin, width, slot in zip(*(_numbers(trace[name]) for name in ("base", "x", "y")), strict=True):
                box = drawing.Box(begin, slot - 0.94, width, 0.88, "waste" if kind == "empty" else kind)
                boxes.insert(0 if kind == "empty" else len(boxes), box)
        end = int(max(box.x + box.width for box in boxes))
        busy = sum(box.width for box in boxes if box.kind != "waste")
        slots = sum(box.kind == "waste" for box in boxes)
        said = f"{title}: {end:,} iterations, {1 - busy / (end * slots):.0%} of the slots’ time empty"
        panels.append(drawing.Panel(said, boxes, end, slots, "iteration"))
    return panels


def _numbers(values: list | dict) -> list[float]:
    """Return an array of a stored figure, which plotly packs where it can."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]).tolist()
    return values


def _card(lesson: syllabus.Lesson, out: Path) -> str:
    """Return a lesson's card, and write its lecture's first picture beside the page."""
    picture = ""
    if shown := _shown(lesson):
        (out / "_static" / "lessons").mkdir(parents=True, exist_ok=True)
        (out / "_static" / "lessons" / f"{lesson.topic}.svg").write_text("".join(shown[0]["image/svg+xml"]), "utf-8")
        picture = f'<img src="_static/lessons/{lesson.topic}.svg" alt="" width="700" height="400" loading="lazy">'
    link = f'<a href="notebooks/{lesson.name}.html">{escape(lesson.heading)}</a>'
    lab, _ = titles.lab_minutes(lesson.folder)
    takes = f"{titles.lecture_minutes(lesson.folder)} minutes" + (f", its lab {lab}" if lab else "")
    return f"<li>{picture}<h3>{link}</h3><p>{escape(lesson.question)}</p><p>{takes}</p></li>"


if __name__ == "__main__":
    make_play(Path(sys.argv[1]) / "play", Path(sys.argv[2]))
    make_landing(Path(sys.argv[1]))
