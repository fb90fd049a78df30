"""A learner's own copies: what is made, what is kept, and JupyterLab in them."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import httpx
import nbformat
import pytest
from typer.testing import CliRunner

from inflight.cli import commands
from inflight.errors import CourseError
from inflight.notebook.pages import blanks, workspace
from inflight.paths import COURSE

READY_S = 120


@pytest.fixture
def course(tmp_path):
    """A small clone: two lectures and a lab of the real one."""
    root = tmp_path / "course"
    for kind in ("notebooks", "labs", "solutions", "assets"):
        (root / kind).mkdir(parents=True)
    for name in ("notebooks/00_start_here.ipynb", "notebooks/01_engine.ipynb"):
        shutil.copy(COURSE / name, root / name)
    for lab in (COURSE / "labs").glob("01_*.ipynb"):
        shutil.copy(lab, root / "labs")
    return root


def edit(path, text):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].source = text
    nbformat.write(notebook, path)


def test_copies_have_no_outputs_and_what_a_learner_gets_of_the_cells(course, tmp_path):
    prepared = workspace.prepare(tmp_path / "work", course=course)
    assert prepared.made == ["notebooks/00_start_here.ipynb", "notebooks/01_engine.ipynb", "labs/01_engine_lab.ipynb"]
    for name in prepared.made:
        copy, source = (nbformat.read(root / name, as_version=4) for root in (prepared.folder, course))
        assert [cell.source for cell in copy.cells] == [cell.source for cell in blanks.opened(source.cells)]
        code = [cell for cell in copy.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code)
        nbformat.validate(copy)


def test_every_link_of_a_copy_leads_somewhere(tmp_path):
    folder = workspace.prepare(tmp_path / "work").folder
    links = 0
    for path in sorted(folder.glob("*/[0-9]*.ipynb")):
        text = "\n".join(
            cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"
        )
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
            links += 1
    assert links > 20


def second_cell(path):
    return nbformat.read(path, as_version=4).cells[1].source


def test_a_newer_lesson_takes_the_place_of_an_untouched_copy_and_stands_beside_a_changed_one(course, tmp_path):
    folder = workspace.prepare(tmp_path / "work", course=course).folder
    edit(folder / "labs" / "01_engine_lab.ipynb", "mine")
    as_it_is = workspace.prepare(folder, course=course)
    assert (as_it_is.made, as_it_is.before) == ([], []) and second_cell(folder / "labs/01_engine_lab.ipynb") == "mine"
    for name in ("notebooks/01_engine.ipynb", "labs/01_engine_lab.ipynb"):
        edit(course / name, "better")
    shutil.copy(COURSE / "notebooks" / "02_repository.ipynb", course / "notebooks")
    again = workspace.prepare(folder, course=course)
    assert again.made == ["notebooks/01_engine.ipynb", "notebooks/02_repository.ipynb", "labs/01_engine_lab.ipynb"]
    assert again.before == [folder / "labs" / "01_engine_lab.before.ipynb"]
    assert second_cell(again.before[0]) == "mine"
    assert second_cell(folder / "notebooks" / "01_engine.ipynb") == "better"
    assert second_cell(folder / "labs" / "01_engine_lab.ipynb") == "better"


def test_one_lesson_begins_afresh_and_three_times_loses_nothing(course, tmp_path):
    folder = workspace.prepare(tmp_path / "work", course=course).folder
    for text in ("mine", "mine again", "and again"):
        for name in ("labs/01_engine_lab.ipynb", "notebooks/00_start_here.ipynb"):
            edit(folder / name, text)
        again = workspace.prepare(folder, fresh="01", course=course)
        assert again.made == ["notebooks/01_engine.ipynb", "labs/01_engine_lab.ipynb"]
    assert second_cell(folder / "labs" / "01_engine_lab.before.ipynb") == "mine"
    assert second_cell(folder / "labs" / "01_engine_lab.before-2.ipynb") == "mine again"
    assert second_cell(folder / "labs" / "01_engine_lab.before-3.ipynb") == "and again"
    assert second_cell(folder / "notebooks" / "00_start_here.ipynb") == "and again"


def test_all_begins_afresh_with_the_parts_and_only_then(course, tmp_path):
    folder = workspace.prepare(tmp_path / "work", course=course).folder
    (folder / "mine").mkdir()
    (folder / "mine" / "part.py").write_text("mine")
    assert workspace.prepare(folder, fresh="01", course=course).before == []
    again = workspace.prepare(folder, fresh="all", course=course)
    assert len(again.made) == 3 and again.before == [folder / "mine.before"]
    assert (folder / "mine.before" / "part.py").read_text() == "mine"


def test_links_lead_to_the_course_also_after_it_has_moved(course, tmp_path):
    folder = workspace.prepare(tmp_path / "work", course=course).folder
    course = course.rename(tmp_path / "elsewhere")
    workspace.prepare(folder, course=course)
    assert (folder / "solutions").resolve() == course / "solutions"


@pytest.mark.parametrize("fresh", ["01", None])
def test_a_lecture_that_was_run_is_kept_though_nothing_was_written_in_it(course, tmp_path, fresh):
    folder = workspace.prepare(tmp_path / "work", course=course).folder
    path, newer = (root / "notebooks" / "01_engine.ipynb" for root in (folder, course))
    for name, change in ((path, {"execution_count": 1}), (newer, {"outputs": []})):
        notebook = nbformat.read(name, as_version=4)
        next(cell for cell in notebook.cells if cell.cell_type == "code").update(change)
        nbformat.write(notebook, name)
    assert workspace.prepare(folder, course=course).made == [], "new outputs are no newer version"
    edit(newer, "better")
    again = workspace.prepare(folder, fresh=fresh, course=course)
    assert again.before == [folder / "notebooks" / "01_engine.before.ipynb"]
    assert "notebooks/01_engine.ipynb" in again.made and second_cell(path) == "better"


@pytest.mark.parametrize("text", ["", '{"cells": [', "\x00"])
def test_a_copy_that_is_no_notebook_any_more_stands_beside_a_new_one(course, tmp_path, text):
    folder = workspace.prepare(tmp_path / "work", course=course).folder
    (folder / "labs" / "01_engine_lab.ipynb").write_text(text)
    again = workspace.prepare(folder, course=course)
    assert again.made == ["labs/01_engine_lab.ipynb"]
    assert [path.read_text() for path in again.before] == [text]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda course, folder: workspace.prepare(folder, fresh="7", course=course), "no lesson '7'.*00, 01"),
        (lambda course, folder: workspace.prepare(folder, course=course / "assets"), "no notebooks"),
        (lambda course, folder: workspace.prepare(folder / workspace.MARK / "x", course=course), "INFLIGHT_WORK"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(course, tmp_path, call, words):
    folder = workspace.prepare(tmp_path / "work", course=course).folder
    with pytest.raises(CourseError, match=words) as caught:
        call(course, folder)
    assert "\n" not in str(caught.value)


def test_where_it_is(tmp_path, monkeypatch):
    for name in ("clone", "wheel"):
        (tmp_path / name / "lessons").mkdir(parents=True)
    (tmp_path / "clone" / "Makefile").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INFLIGHT_WORK", raising=False)
    assert workspace.home(tmp_path / "clone") == tmp_path / "clone" / "work"
    assert workspace.home(tmp_path / "wheel") == tmp_path / "work"
    monkeypatch.setenv("INFLIGHT_WORK", str(tmp_path / "class"))
    assert workspace.home(tmp_path / "clone") == tmp_path / "class"


@pytest.mark.parametrize("options", [[], ["--port=9000", "--no-browser"]])
@pytest.mark.parametrize("lesson, opened", [([], "00_start_here"), (["03"], "03_serve")])
def test_options_of_jupyterlab_need_no_lesson_before_them(lesson, opened, options, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setenv("INFLIGHT_WORK", str(tmp_path / "work"))
    monkeypatch.setattr(workspace, "open_lab", lambda folder, first, arguments: asked.append((first.stem, arguments)))
    result = CliRunner().invoke(commands.app, ["lab", *lesson, *options])
    assert result.exit_code == 0, result.output
    assert asked == [(opened, options)]


@pytest.mark.parametrize(
    ("runtime_dir", "given", "expected"),
    [
        ("/home/ada/.local/share/jupyter/runtime", [], ["--KernelManager.transport=ipc"]),
        (
            "/home/ada/.local/share/jupyter/runtime",
            ["--KernelManager.transport=tcp"],
            ["--KernelManager.transport=tcp"],
        ),
        ("/" + 26 * "ü", [], []),  # bytes count
        ("/" + 60 * "a", [], []),  # too long for the path of a socket: that a kernel starts matters more
    ],
)
def test_what_kernels_print_is_on_sockets_of_the_users_own(runtime_dir, given, expected, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "execve", lambda program, command, environment: started.append(command))
    monkeypatch.setattr(workspace, "jupyter_runtime_dir", lambda: runtime_dir)
    workspace.open_lab(tmp_path, tmp_path / "notebooks" / "00_start_here.ipynb", given)
    assert [argument for argument in started[0] if "transport" in argument] == expected
    assert "--allow-root" in started[0]


def test_jupyterlab_opens_in_it_with_its_token_and_asks_for_no_news(tmp_path):
    """The command as a learner gives it; only where the browser, the port and root are concerned it is helped."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "inflight", "lab", "03", "--no-browser", "--allow-root", f"--port={port}"]
    environment = {**os.environ, "INFLIGHT_WORK": str(tmp_path / "work"), "JUPYTER_CONFIG_DIR": str(tmp_path / "own")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, text=True)
    try:
        said = ""
        while not (found := re.search(rf"http://127\.0\.0\.1:{port}/lab\S*\?token=(\w+)", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        assert "/lab/tree/notebooks/03_serve.ipynb" in found[0]
        url, token = f"http://127.0.0.1:{port}", {"token": found[1]}
        assert httpx.get(f"{url}/api/contents", timeout=60).status_code == 403
        names = [
            item["name"] for item in httpx.get(f"{url}/api/contents", params=token, timeout=READY_S).json()["content"]
        ]
        assert {"notebooks", "labs", "solutions", "assets"} <= set(names)
        notification = "@jupyterlab/apputils-extension:notification"
        settings = httpx.get(f"{url}/lab/api/settings/{notification}", params=token, timeout=READY_S).json()
        defaults = {
            name: value["default"] for name, value in settings["schema"]["properties"].items() if "default" in value
        }
        assert defaults["fetchNews"] == "false", json.dumps(defaults)
        assert defaults["checkForUpdates"] is False
    finally:
        process.terminate()
        process.wait(READY_S)
        process.stderr.close()
