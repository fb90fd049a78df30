"""Batching libraries: built, checked, and asked by a real server who may join a batch."""

import subprocess

import httpx
import numpy as np
import pytest
from google.protobuf import json_format

from inflight.bench import batch_run
from inflight.bench.batch_run import Arrival
from inflight.errors import CourseError
from inflight.triton import batch_library, custom_batching, repository
from inflight.triton.batch_library import FILE_NAME, FUNCTIONS, PARAMETER
from inflight.triton.custom_batching import PLACES, SOURCES, build, install, uninstall
from inflight.triton.server import Server

MODEL = "batch-cost"
MAX_BATCH_SIZE, MAX_VOLUME = 8, 12
# With every size a preferred one, a batch does not grow any more while it waits: see volume.c.
CLOSED_BATCHES = f"dynamic_batching {{ preferred_batch_size: {list(range(1, MAX_BATCH_SIZE + 1))} }}"
NO_ANSWER_S = 3


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    return build(SOURCES / "volume.c", tmp_path_factory.mktemp("library") / "volume.so")


def library_of(folder, functions, name="own"):
    """A library with `functions` that do nothing."""
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text("".join(f"void *{function}(void) {{ return 0; }}\n" for function in functions))
    subprocess.run([*custom_batching.compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    return library


# Building -------------------------------------------------------------------------------------------------------------


def test_the_library_is_built_without_warnings_and_has_the_five_functions(volume, tmp_path):
    command = [*custom_batching.compiler(), *custom_batching.OPTIONS, "-Werror"]
    subprocess.run([*command, "-o", tmp_path / "strict.so", SOURCES / "volume.c"], check=True)
    exported = batch_library.symbols(volume.read_bytes())
    assert set(FUNCTIONS) <= exported
    assert "TRITONBACKEND_RequestInput" not in exported  # which it uses, but does not have
    assert batch_library.check(volume) is None


def test_a_source_of_ones_own_finds_the_header(tmp_path):
    (tmp_path / "mine.c").write_text((SOURCES / "volume.c").read_text())
    assert build(tmp_path / "mine.c", tmp_path / "new" / "mine.so") == tmp_path / "new" / "mine.so"


@pytest.mark.parametrize(
    "source, message",
    [
        ("int one;\nint two(void) { return three; }\n", "mine.c does not compile: mine.c, line 2: .*three"),
        ('#include "nowhere.h"\n', "mine.c, line 1: .*nowhere.h"),
        ("int one(void) { return two(); }\n", "mine.c, line 1: .*two"),
        ("int one;\n", "does not define all required custom batching functions: TRITONBACKEND_Model.* build it again"),
    ],
)
def test_a_source_that_is_no_library_is_told_and_the_old_library_kept(volume, tmp_path, source, message):
    (tmp_path / "mine.c").write_text(source)
    library = tmp_path / "mine.so"
    library.write_bytes(volume.read_bytes())
    with pytest.raises(CourseError, match=message):
        build(tmp_path / "mine.c", library)
    assert library.read_bytes() == volume.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.c", "mine.so"]


def test_what_is_missing_is_told(tmp_path, monkeypatch):
    with pytest.raises(CourseError, match="There is no source .*none.c. Name a C file"):
        build(tmp_path / "none.c", tmp_path / "mine.so")
    monkeypatch.setenv("PATH", str(tmp_path))
    if custom_batching.find_spec("ziglang"):
        assert custom_batching.compiler()[1:] == ["-m", "ziglang", "cc"]
    else:
        with pytest.raises(CourseError, match="no C compiler on this machine: install one, such as gcc, or run"):
            build(SOURCES / "volume.c", tmp_path / "mine.so")


# Checking -------------------------------------------------------------------------------------------------------------


def test_each_missing_function_is_named(tmp_path):
    for missing in FUNCTIONS:
        library = library_of(tmp_path, [name for name in FUNCTIONS if name != missing])
        assert batch_library.check(library).message.endswith(f"all required custom batching functions: {missing}.")


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda data: b"", "it does not begin as one"),
        (lambda data: b"int main(void);", "it does not begin as one"),
        (lambda data: data[:200], "it is cut off"),
        (lambda data: data[:-1000], "it is cut off"),
        (lambda data: data[:16] + b"\2\0" + data[18:], "it cannot be loaded while a program runs"),
        (lambda data: data[:18] + b"\x08\0" + data[20:], "it is for another kind of processor"),
    ],
)
def test_a_file_that_is_no_library_of_this_machine(volume, tmp_path, change, reason):
    (tmp_path / "other.so").write_bytes(change(volume.read_bytes()))
    problem = batch_library.check(tmp_path / "other.so")
    assert f"other.so is not a shared library of this machine ({reason})" in problem.message


# With a server --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "executions.jsonl"


@pytest.fixture(scope="module")
def shared_server(log_path, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("volume") / "repo",
        models=(MODEL,),
        execution_log_path=log_path,
        batch_cost_max_batch_size=MAX_BATCH_SIZE,
        batch_cost_fixed_ms=60,
        batch_cost_item_ms=0,
    )
    repository.edit(repo, MODEL, CLOSED_BATCHES, max_volume=MAX_VOLUME)
    with Server(repo) as server:
        yield server


@pytest.fixture
def server(shared_server):
    """With closed batches and without a library, whatever a test does to it."""
    path = shared_server.repo / MODEL / repository.CONFIG
    plain = repository.read_config(path)
    yield shared_server
    repository.write_config(plain, path)
    for place in PLACES:
        uninstall(shared_server, MODEL, place)


@pytest.fixture
def batches(server, log_path):
    """Load the model, send requests, and tell the work of each batch: `batches(works)`, a table of size and work."""

    def run(works, interval_s=0.0):
        server.load(MODEL)
        arrivals = [Arrival(number * interval_s, work) for number, work in enumerate(works)]
        outcome = batch_run.run(server, MODEL, arrivals, log_path)
        assert outcome.executions["size"].sum() == len(works)
        assert outcome.executions["work"].sum() == sum(works)
        assert outcome.statistics.batches.to_dict() == outcome.executions["size"].value_counts().to_dict()
        return outcome.executions

    return run


def library_in_use(server):
    """Path of the library that Triton loaded last."""
    lines = [line for line in server.log_tail(100_000).splitlines() if "Loading custom batching strategy" in line]
    return lines[-1].partition("library ")[2].partition(" for model")[0]


def test_triton_takes_the_library_of_the_first_place_that_has_one(volume, server, batches):
    found = {place: install(volume, server, MODEL, place) for place in reversed(PLACES)}
    assert found == {
        "backend": server.backend_dir / FILE_NAME,
        "model": server.repo / MODEL / FILE_NAME,
        "version": server.repo / MODEL / "1" / FILE_NAME,
        "parameter": volume,
    }
    assert repository.check(server.repo) == []
    for place in PLACES:
        sizes = batches([4] * 24)["size"]
        assert sizes.max() == MAX_VOLUME // 4, place  # and with no library
        assert library_in_use(server) == str(found[place])
        uninstall(server, MODEL, place)
    assert batches([4] * 24)["size"].max() == MAX_BATCH_SIZE


def test_the_volume_and_not_the_number_fills_a_batch(volume, server, batches):
    install(volume, server, MODEL, "parameter")
    works = np.random.default_rng(0).integers(0, 11, 80).tolist()
    table = batches(works, interval_s=0.004)
    assert table["work"].max() <= MAX_VOLUME
    assert table["size"].nunique() > 2
    small = batches([1] * 40)
    assert small["size"].max() == MAX_BATCH_SIZE  # Triton's own limit stays
    large = batches([1, 30, 1, 30, 1, 1, 1, 1])
    assert large.loc[large["work"] >= 30, "size"].tolist() == [1, 1]  # more than the limit: a batch of its own


def test_without_a_limit_nothing_is_limited(volume, server, batches):
    path = server.repo / MODEL / repository.CONFIG
    config = repository.read_config(path)
    del config.parameters["max_volume"]
    repository.write_config(config, path)
    install(volume, server, MODEL, "parameter")
    assert batches([9] * 24)["size"].max() == MAX_BATCH_SIZE
    assert library_in_use(server) == str(volume)


def test_a_batch_that_may_grow_is_counted_anew(volume, server, batches):
    """What volume.c warns of: requests that trickle in while the model is busy are each the first of a new count."""
    repository.edit(server.repo, MODEL, "dynamic_batching { }", fixed_ms=250)
    install(volume, server, MODEL, "parameter")
    assert batches([10] * 6, interval_s=0.03)["work"].max() > MAX_VOLUME
    repository.edit(server.repo, MODEL, CLOSED_BATCHES)
    assert batches([10] * 6, interval_s=0.03)["work"].max() <= MAX_VOLUME


def test_without_a_dynamic_batcher_it_is_not_asked(volume, server, batches):
    path = server.repo / MODEL / repository.CONFIG
    config = repository.read_config(path)
    config.ClearField("dynamic_batching")
    repository.write_config(config, path)
    install(volume, server, MODEL, "parameter")
    assert set(batches([1] * 12)["size"]) == {1}


def test_a_library_built_anew_is_taken_after_an_unload(server, batches, tmp_path):
    library, text = tmp_path / "mine.so", (SOURCES / "volume.c").read_text()
    (tmp_path / "mine.c").write_text(text)
    install(build(tmp_path / "mine.c", library), server, MODEL, "parameter")
    assert batches([4] * 24)["size"].max() == 3
    (tmp_path / "mine.c").write_text(text.replace("batch->volume + volume <=", "batch->volume + 2 * volume <="))
    install(build(tmp_path / "mine.c", library), server, MODEL, "parameter")
    assert batches([4] * 24)["size"].max() == 3  # still the old one, which the process has open
    server.unload(MODEL)
    assert batches([4] * 24)["size"].max() == 2


def test_an_install_that_cannot_be_is_told(volume, server, tmp_path):
    with pytest.raises(CourseError, match="'elsewhere'. Name one of: parameter, version, model, backend"):
        install(volume, server, MODEL, "elsewhere")
    with pytest.raises(CourseError, match="has no model 'other'"):
        install(volume, server, "other", "model")
    with pytest.raises(CourseError, match="none.so cannot be read .No such file or directory.. Build it"):
        install(tmp_path / "none.so", server, MODEL, "parameter")
    with pytest.raises(CourseError, match="The server does not run, so it has no folder"):
        install(volume, Server(server.repo), MODEL, "backend")
    assert repository.get_parameter(repository.read_config(server.repo / MODEL / repository.CONFIG), PARAMETER) == ""


# What is refused, by the check and by Triton --------------------------------------------------------------------------


def tritons_reason(server, timeout_s=60):
    """Why Triton does not load what is in the files; blank when it does."""
    config = repository.read_config(server.repo / MODEL / repository.CONFIG)
    body = {"parameters": {"config": json_format.MessageToJson(config, preserving_proto_field_name=True)}}
    url = f"{server.http_url}/v2/repository/models/{MODEL}/load"
    answer = httpx.post(url, json=body, headers=server.headers, timeout=timeout_s)
    return answer.json()["error"] if answer.status_code != 200 else ""


def our_problem(server):
    """The one problem that the check of the repository finds, and that keeps the server from being asked to load."""
    [problem] = repository.check(server.repo)
    with pytest.raises(CourseError) as refused:
        server.load(MODEL)
    assert str(refused.value) == str(problem)
    return problem


def set_library(server, library):
    """As a learner would with an editor: unchecked."""
    path = server.repo / MODEL / repository.CONFIG
    config = repository.read_config(path)
    config.parameters[PARAMETER].string_value = str(library)
    repository.write_config(config, path)


@pytest.mark.parametrize(
    "text, ours, tritons",
    [
        (None, "mine.so cannot be read (No such file or directory)", "Batching library path not found: "),
        ("int main(void);", "mine.so is not a shared library of this machine", "unable to load shared library: "),
    ],
)
def test_a_file_that_is_no_library_is_refused_by_both(server, tmp_path, text, ours, tritons):
    if text:
        (tmp_path / "mine.so").write_text(text)
    set_library(server, tmp_path / "mine.so")
    problem = our_problem(server)
    assert problem.field == f"parameters.{PARAMETER}" and ours in problem.message
    assert f"{tritons}{tmp_path / 'mine.so'}" in tritons_reason(server)


def test_by_its_default_name_it_is_checked_too(server, tmp_path):
    for folder in (server.repo / MODEL, server.repo / MODEL / "1"):
        (folder / FILE_NAME).write_text("int main(void);")
        problem = our_problem(server)
        assert problem.file == str(folder / FILE_NAME) and "is not a shared library" in problem.message
        assert f"unable to load shared library: {folder / FILE_NAME}" in tritons_reason(server)
        (folder / FILE_NAME).unlink()


def test_a_limit_that_is_no_number_is_refused_by_both(volume, server):
    install(volume, server, MODEL, "parameter")
    path = server.repo / MODEL / repository.CONFIG
    for text in ("many", "0", "-5", "1.5"):
        config = repository.read_config(path)
        config.parameters["max_volume"].string_value = text
        repository.write_config(config, path)
        [problem] = repository.check(server.repo)
        assert problem.field == "parameters.max_volume" and "a whole number of at least 1" in problem.fix
        assert "Invalid argument: max_volume must be a whole number of at least 1" in tritons_reason(server)


def test_with_the_sequence_batcher_it_is_refused_by_both(volume, server):
    path = server.repo / MODEL / repository.CONFIG
    config = repository.read_config(path)
    config.sequence_batching.direct.SetInParent()  # takes the place of the dynamic batcher
    repository.write_config(config, path)
    set_library(server, volume)
    problems = repository.check(server.repo)
    assert "It cannot be specified with the sequence batcher." in [problem.message for problem in problems]
    assert f"{PARAMETER} cannot be specified with sequence batcher" in tritons_reason(server)


def test_a_library_with_no_function_is_refused_by_us_and_ignored_by_triton(server, tmp_path):
    set_library(server, library_of(tmp_path, ["nothing"]))
    problem = our_problem(server)
    assert all(name in problem.message for name in FUNCTIONS)
    assert tritons_reason(server) == "" and library_in_use(server) == str(tmp_path / "own.so")


def test_a_library_with_some_functions_is_refused_by_us_and_stops_triton(server, tmp_path):
    """The last test: Triton 2.51 never comes back from loading it, nor from loading any other model after it."""
    set_library(server, library_of(tmp_path, FUNCTIONS[:4]))
    assert our_problem(server).message.endswith(f"custom batching functions: {FUNCTIONS[4]}.")
    with pytest.raises(httpx.ReadTimeout):
        tritons_reason(server, NO_ANSWER_S)
    assert library_in_use(server) == str(tmp_path / "own.so")
    assert httpx.get(f"{server.http_url}/v2/health/live", timeout=60).status_code == 200
