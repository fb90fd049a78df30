"""A class in JupyterHub, for real: users of this machine in browsers of their own, and what one can do to another.

    sudo INFLIGHT_HUB=1 .venv/bin/python -m pytest tests/hub/test_hub.py

It makes users of this machine and removes them. INFLIGHT_HUB_LEARNERS says how many, 4 by default: each runs lesson 03
and its lab, all at the same time, which takes some minutes on two cores. Screenshots are in build/hub.

All of it is tried twice: with the hub as in a container, and as the hub's README.md says for a machine, a service of
systemd with a certificate. Where systemd is installed and does not run, namespaces.py starts one for the test.
"""

import contextlib
import importlib.util
import json
import os
import pwd
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import nbformat
import psutil
import pytest
from playwright.sync_api import Browser, Page

from inflight.paths import ASSETS, COURSE
from tests.browser import chromium, needs_chromium
from tests.hub import namespaces
from tests.test_browser import KERNEL_IS_IDLE

HUB = ASSETS / "instructor" / "hub"
PROXY = HUB / "node_modules" / ".bin" / "configurable-http-proxy"
GROUP, PREFIX = "inflight-test", "inflighttest"
LEARNERS = [f"{PREFIX}{number:02d}" for number in range(1, 1 + int(os.environ.get("INFLIGHT_HUB_LEARNERS", "4")))]
SCREENSHOTS = COURSE / "build" / "hub"
UNIT = HUB / "inflight-hub.service"
PLAIN, WITH_SYSTEMD = "plain", "with systemd"
MEMORY = 4 * 2**30  # what the hub gives a learner when nothing else is said
PAGE_MS, LESSON_MS = 300_000, 1_800_000
LECTURE, LAB, ASKING = "notebooks/03_serve.ipynb", "labs/03_serve_solution.ipynb", "asking.ipynb"
# A server of the learner's own that answers for as long as another does harm.
SERVE = """
from inflight import engine
from inflight.checkpoint import fetch
from inflight.triton import Client, Server, repository

server = Server(repository.assemble("asked", engine.cached(fetch()), decoupled_mode=True)).start()
client = Client(server.grpc_url)
"""
ASK = """
answers = [client.ask("Tell me a story.", 12).text for _ in range(10)]
print(len(answers), "answers, each the same:", len(set(answers)) == 1)
"""
ALL_HAVE_RUN = """() => {
    const model = window.jupyterapp?.shell.currentWidget?.content.model;
    const cells = model?.sharedModel.cells;
    const kernel = window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.session?.kernel;
    return cells && kernel?.status === 'idle'
        && cells.every(cell => cell.cell_type !== 'code' || !cell.source.trim() || cell.execution_count !== null);
}"""
ERRORS = """() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells
    .flatMap(cell => cell.outputs ?? []).filter(each => each.output_type === 'error').map(each => each.evalue)"""


def why_not() -> str:
    """What this machine lacks for the test; "" for nothing."""
    lacks = {
        "INFLIGHT_HUB=1, for it makes users of this machine": os.environ.get("INFLIGHT_HUB") != "1",
        "root": os.geteuid() != 0,
        "jupyterhub (assets/instructor/hub/README.md)": importlib.util.find_spec("jupyterhub") is None,
        "the proxy (npm ci in assets/instructor/hub)": not PROXY.exists() or shutil.which("node") is None,
    }
    return ", ".join(name for name, missing in lacks.items() if missing)


pytestmark = [
    needs_chromium,
    pytest.mark.browser,
    pytest.mark.skipif(bool(why_not()), reason=f"the hub's test needs {why_not()}"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what: str, found, seconds: float = 300):
    """The first true value of `found()`; what it waited for is said when there is none."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.2)
    pytest.fail(f"waited {seconds:.0f} s for {what}")


# The hub --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def passwords():
    """Users of this machine by name, removed with all that they left."""
    script, environment = [sys.executable, HUB / "learners.py"], {**os.environ, "HUB_GROUP": GROUP}
    with tempfile.TemporaryDirectory() as folder:
        sheet = Path(folder) / "sheet"
        try:
            subprocess.run(
                [*script, "add", str(len(LEARNERS)), "--prefix", PREFIX, "--sheet", sheet], env=environment, check=True
            )
            assert sheet.stat().st_mode & 0o777 == 0o600
            yield dict(re.findall(r"user name   (\S+)\npassword    (\S+)", sheet.read_text()))
        finally:
            subprocess.run([*script, "remove"], env=environment, check=True)
            subprocess.run(["groupdel", GROUP], check=True)
    left = [path for folder in ("/tmp", "/dev/shm") for path in Path(folder).iterdir() if _owner(path) is None]
    assert left == [] and not [process for process in psutil.process_iter() if _belongs_to_nobody(process)]


def _owner(path: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        try:
            return pwd.getpwuid(path.lstat().st_uid).pw_name
        except KeyError:
            return None
    return ""


def _belongs_to_nobody(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.username().isdigit() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(scope="module")
def shared_cache():
    """A cache that root has filled, by a copy of this user's own: the checkpoint and the engine of lesson 03."""
    from inflight import engine
    from inflight.checkpoint import fetch

    checkpoint, built = fetch(), engine.cached(fetch())
    folder = Path(tempfile.mkdtemp(prefix="inflight-test-shared-"))
    folder.chmod(0o755)
    for source, place in ((checkpoint.path.parent, "checkpoints"), (built, "engines")):
        shutil.copytree(source, folder / place / source.name)
    yield folder
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Hub:
    """A hub that runs: its address, its certificate, and what a command begins with that runs beside its systemd."""

    url: str
    certificate: Path | None = None
    beside: tuple[str, ...] = ()

    def systemctl(self, *arguments: str) -> str:
        done = subprocess.run([*self.beside, "systemctl", *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/hub/health", verify=trusting(self.certificate)).status_code == 200
        return False


def trusting(certificate: Path | None) -> ssl.SSLContext:
    """Of a client that trusts that certificate, and those that the system trusts."""
    return ssl.create_default_context(cafile=certificate)


@pytest.fixture(scope="module", params=[PLAIN, WITH_SYSTEMD])
def running_hub(request, passwords, shared_cache):
    """A hub with the configuration of the course, in both of its forms; what it said is in build/hub."""
    if request.param == WITH_SYSTEMD and (lacks := namespaces.why_not()):
        pytest.skip(f"a hub with systemd needs {lacks}")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state:
        settings = written_settings(Path(state), shared_cache)
        start = with_systemd if request.param == WITH_SYSTEMD else plain
        with start(Path(state), settings) as hub:
            yield hub


def written_settings(state: Path, shared_cache: Path) -> dict[str, str]:
    """What differs from class to class; beside it, in config.py, what a test needs and a class does not."""
    # The ports that are the same in every class may be taken here, and a unit with a /tmp of its own would not see what
    # lies in the machine's.
    for_units = {
        "BindReadOnlyPaths": f"{COURSE} {shared_cache}",
        "StandardOutput": f"append:{SCREENSHOTS / 'learners.log'}",  # there is no journal
    }
    (state / "config.py").write_text(
        f"load_subconfig({str(HUB / 'jupyterhub_config.py')!r})\n"
        f"c.JupyterHub.hub_bind_url = 'http://127.0.0.1:{free_port()}'\n"
        f"c.ConfigurableHTTPProxy.api_url = 'http://127.0.0.1:{free_port()}'\n"
        "c.Spawner.args += ['--LabApp.expose_app_in_browser=True']\n"
        "c.Spawner.http_timeout = c.Spawner.start_timeout = 600\n"
        f"c.SystemdSpawner.unit_extra_properties.update({for_units})\n"
    )
    return {
        "HUB_PORT": str(free_port()),
        "HUB_GROUP": GROUP,
        "HUB_STATE": str(state / "state"),
        "HUB_CACHE": str(shared_cache),
    }


@contextlib.contextmanager
def plain(state: Path, settings: dict[str, str]) -> Iterator[Hub]:
    """As in a container: a process, on this machine only."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("INFLIGHT_", "JUPYTER"))}
    command = [sys.executable, "-m", "jupyterhub", "-f", state / "config.py"]
    hub = Hub(f"http://127.0.0.1:{settings['HUB_PORT']}")
    with open(SCREENSHOTS / "hub.log", "w") as log:
        process = subprocess.Popen(command, env={**own, **settings}, cwd=state, stdout=log, stderr=subprocess.STDOUT)
    try:
        until("the hub", lambda: process.poll() is not None or hub.answers())
        assert process.poll() is None, (SCREENSHOTS / "hub.log").read_text()[-2000:]
        yield hub
    finally:
        process.terminate()
        process.wait(120)


@contextlib.contextmanager
def with_systemd(state: Path, settings: dict[str, str]) -> Iterator[Hub]:
    """As on a machine: the service that instructors copy, with a certificate; only its paths are this test's."""
    certificate, key = self_signed(state)
    conf = state / "inflight-hub.conf"
    given = {**settings, "HUB_CERT": str(certificate), "HUB_KEY": str(key)}
    conf.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    unit = UNIT.read_text().replace("/opt/course/assets/instructor/hub/jupyterhub_config.py", f"{state}/config.py")
    unit = unit.replace("/opt/course", str(COURSE)).replace("/etc/inflight-hub.conf", str(conf))
    log = SCREENSHOTS / "hub_with_systemd.log"
    (state / UNIT.name).write_text(unit.replace("[Service]", f"[Service]\nStandardOutput=append:{log}"))  # no journal
    with namespaces.booted(SCREENSHOTS / "systemd.log") as beside:
        hub = Hub(f"https://127.0.0.1:{settings['HUB_PORT']}", certificate, tuple(beside))
        subprocess.run([*beside, "cp", state / UNIT.name, namespaces.UNITS], check=True)
        hub.systemctl("daemon-reload")
        hub.systemctl("enable", "--now", "inflight-hub")
        until("the hub", lambda: hub.answers() or hub.systemctl("show", "-P", "NRestarts", "inflight-hub") != "0")
        assert hub.answers(), log.read_text()[-2000:]
        yield hub


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine's loopback, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(running_hub, passwords, browser):
    """Each learner's JupyterLab, in a browser context of their own."""
    opened = {}
    for name, password in passwords.items():
        # The browser has no place for an authority of a test's own.
        context = browser.new_context(viewport={"width": 1366, "height": 900}, ignore_https_errors=True)
        page = context.new_page()
        page.set_default_timeout(PAGE_MS)
        page.goto(running_hub.url)
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in").click()
        opened[name] = page
    for page in opened.values():  # all of them start at once
        see_a_notebook(page)
    yield opened
    for page in opened.values():
        page.context.close()


def see_a_notebook(page: Page) -> None:
    """JupyterLab opens again what was open before: the first cell of the page may be in a tab that is not in front."""
    page.locator(".jp-Notebook .jp-CodeCell:visible").first.wait_for()


def as_user(name: str, command: list[str], **more) -> subprocess.CompletedProcess:
    """Run a command as that user, outside of the hub."""
    user = pwd.getpwnam(name)
    environment = {"HOME": user.pw_dir, "PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "USER": name}
    return subprocess.run(
        command,
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[],
        env=environment,
        cwd=user.pw_dir,
        capture_output=True,
        text=True,
        timeout=300,
        **more,
    )


def processes_of(name: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["username"]):
        if process.info["username"] == name and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def jupyterlab_of(name: str) -> psutil.Process:
    [server] = [each for each in processes_of(name) if "jupyterhub-singleuser" in " ".join(each.cmdline())]
    return server


def servers_of(name: str) -> list[psutil.Process]:
    found = []
    for process in processes_of(name):
        with contextlib.suppress(psutil.Error):
            found += [process] if process.name() == "tritonserver" else []
    return found


def shot(page: Page, name: str) -> None:
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def open_notebook(page: Page, path: str) -> None:
    page.evaluate("path => { window.jupyterapp.commands.execute('docmanager:open', { path }); }", path)
    page.wait_for_function(
        "path => window.jupyterapp.shell.currentWidget?.context?.path === path", arg=path, timeout=PAGE_MS
    )
    page.wait_for_function(KERNEL_IS_IDLE, timeout=PAGE_MS)


def run_all_cells(page: Page) -> None:
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")


def write_notebook(name: str) -> None:
    user = pwd.getpwnam(name)
    file = Path(user.pw_dir) / "work" / ASKING
    if file.exists():  # written anew where it is open, JupyterLab would ask which of the two counts
        return
    kernel = nbformat.read(COURSE / LECTURE, 4).metadata
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in (SERVE, ASK)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), file)
    os.chown(file, user.pw_uid, user.pw_gid)


def run_everywhere(pages: dict[str, Page], path: str, what: str) -> None:
    """Every learner presses "Run All Cells" of the same notebook; no cell of anybody's may fail."""
    for page in pages.values():
        open_notebook(page, path)
    for page in pages.values():
        run_all_cells(page)
    for name, page in pages.items():
        assert_all_have_run(page)
        shot(page, f"{name}_{what}")


def assert_all_have_run(page: Page) -> None:
    page.wait_for_function(ALL_HAVE_RUN, timeout=LESSON_MS)
    assert page.evaluate(ERRORS) == []


# Each for themselves --------------------------------------------------------------------------------------------------


def test_everyone_begins_in_a_workspace_of_their_own(pages):
    for name, page in pages.items():
        work = Path(pwd.getpwnam(name).pw_dir) / "work"
        assert (work / LECTURE).stat().st_uid == pwd.getpwnam(name).pw_uid
        assert work.stat().st_mode & 0o077 == 0
        assert "/lab/tree/notebooks/00_start_here.ipynb" in page.url
        shot(page, f"{name}_begin")


def test_the_shared_cache_is_used_and_nobody_can_write_it(pages, shared_cache):
    for name in pages:
        assert not (Path(pwd.getpwnam(name).pw_dir) / ".cache" / "inflight" / "checkpoints").exists()
        assert as_user(name, ["touch", str(shared_cache / "new")]).returncode
        assert as_user(name, ["sh", "-c", f"echo x >> {next(shared_cache.glob('checkpoints/*/*.gguf'))}"]).returncode


def test_what_a_learner_runs_has_their_processors_and_a_limit_of_memory(pages, running_hub):
    """By what the hub starts: a limit of the process, or a cgroup's where there is systemd."""
    for name in pages:
        server = jupyterlab_of(name)
        for process in (server, *server.children(recursive=True)):
            assert len(process.cpu_affinity()) <= 2
            if running_hub.beside or namespaces.RUNS_ALREADY.is_dir():
                assert namespaces.memory_limit(process.pid) == MEMORY
            else:
                limits = Path(f"/proc/{process.pid}/limits").read_text()
                assert re.search(rf"^Max data size +{MEMORY} +{MEMORY} ", limits, re.MULTILINE)


# What only a machine has ----------------------------------------------------------------------------------------------


@pytest.fixture
def service(running_hub):
    """The hub, if it is a service of systemd."""
    if not running_hub.beside:
        pytest.skip("this hub runs without systemd and without a certificate")
    return running_hub


def test_passwords_travel_by_tls_only(service):
    login = "/hub/login"
    answer = httpx.get(service.url + login, verify=trusting(service.certificate))
    assert answer.status_code == 200 and 'name="password"' in answer.text
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(service.url + login)  # it is that certificate, and nobody else's
    with pytest.raises(httpx.HTTPError):
        httpx.get(service.url.replace("https:", "http:") + login)


def test_from_inside_a_learner_sees_their_own_tmp_and_processes_only(service, pages):
    names = list(pages)
    for name in names:
        user, [mine] = pwd.getpwnam(name), Path("/tmp").glob(f"systemd-private-*-{unit_of(name)}-*")
        inside = ["nsenter", f"--target={jupyterlab_of(name).pid}", "--all"]
        inside += [f"--setuid={user.pw_uid}", f"--setgid={user.pw_gid}"]
        seen = subprocess.run([*inside, "ls", "/tmp"], capture_output=True, text=True, check=True).stdout.split()
        assert sorted(seen) == sorted(path.name for path in (mine / "tmp").iterdir())
        ran = subprocess.run([*inside, "ps", "-e", "-o", "user:32="], capture_output=True, text=True, check=True).stdout
        assert set(ran.split()) == {name}


def unit_of(name: str) -> str:
    return f"inflight-{name}.service"


def test_learners_go_on_while_the_hub_starts_again(service, pages):
    before = {name: jupyterlab_of(name) for name in pages}
    hub = service.systemctl("show", "-P", "MainPID", "inflight-hub")
    service.systemctl("restart", "inflight-hub")
    until("the hub", service.answers)
    assert service.systemctl("show", "-P", "MainPID", "inflight-hub") != hub
    for name, page in pages.items():
        assert jupyterlab_of(name) == before[name]
        page.goto(f"{service.url}/user/{name}/lab/tree/notebooks/00_start_here.ipynb")
        see_a_notebook(page)


# Against each other ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def victim_and_neighbour(pages):
    """The first learner, whose server runs, and the second, who tries."""
    victim, neighbour, *_ = pages
    run_notebooks({victim: pages[victim]}, "serves")
    assert servers_of(victim)
    return victim, neighbour


def run_notebooks(pages: dict[str, Page], what: str) -> None:
    for name in pages:
        write_notebook(name)
    run_everywhere(pages, ASKING, what)


@pytest.fixture(scope="module")
def options(victim_and_neighbour):
    """What the victim's server listens at, as everybody can read it in its arguments."""
    [arguments] = [process.cmdline() for process in servers_of(victim_and_neighbour[0])][:1]
    return dict(argument.partition("=")[::2] for argument in arguments)


def curl(name: str, *arguments: str) -> str:
    """Status of a request that a learner sends; 000 if there was no answer."""
    command = ["curl", "--silent", "--max-time", "60", "--output", "/dev/null", "--write-out", "%{http_code}"]
    return as_user(name, [*command, *arguments]).stdout


REFUSED = {
    "infer": ("ensemble/generate", "POST", {"text_input": "Hello", "max_tokens": 2}),
    "metadata": ("ensemble", "GET", None),
    "config": ("ensemble/config", "GET", None),
    "statistics": ("ensemble/stats", "GET", None),
}
CONTROLS = ("repository/models/ensemble/unload", "repository/models/ensemble/load", "repository/index")


@pytest.mark.parametrize("what", REFUSED)
def test_a_neighbour_can_not_ask(victim_and_neighbour, options, what):
    path, method, body = REFUSED[what]
    url = f"http://127.0.0.1:{options['--http-port']}/v2/models/{path}"
    data = [] if body is None else ["--json", json.dumps(body)]
    assert curl(victim_and_neighbour[1], "--request", method, *data, url) == "403"


@pytest.mark.parametrize("path", CONTROLS)
def test_a_neighbour_can_not_control(victim_and_neighbour, options, path):
    url = f"http://127.0.0.1:{options['--http-port']}/v2/{path}"
    assert curl(victim_and_neighbour[1], "--json", "{}", url) == "403"


def test_a_neighbour_can_not_ask_over_grpc_nor_with_the_package(victim_and_neighbour, options):
    script = (
        "import sys, tritonclient.grpc as grpc\n"
        f"client = grpc.InferenceServerClient('127.0.0.1:{options['--grpc-port']}')\n"
        "try:\n    client.get_model_metadata('ensemble')\n"
        "except Exception as error:\n    sys.exit(f'refused: {error}')\n"
    )
    asked = as_user(victim_and_neighbour[1], [sys.executable, "-c", script])
    assert asked.returncode == 1 and "refused" in asked.stderr
    url = f"127.0.0.1:{options['--grpc-port']}"
    packaged = as_user(victim_and_neighbour[1], [sys.executable, "-m", "inflight", "ask", "Hello", "--url", url])
    assert packaged.returncode == 1 and "error:" in packaged.stderr


def test_a_neighbour_can_not_read_the_metrics(victim_and_neighbour, options):
    place = options["--metrics-address"]
    assert place.startswith("unix:")
    assert curl(victim_and_neighbour[1], "--unix-socket", place.removeprefix("unix:"), "http://x/metrics") == "000"


def test_a_neighbour_can_not_find_the_key_nor_read_files(victim_and_neighbour):
    victim, neighbour = victim_and_neighbour
    home = pwd.getpwnam(victim).pw_dir
    folders = (tempfile.gettempdir(), *Path("/tmp").glob("systemd-private-*/tmp"))  # with systemd, each has their own
    own = [path for folder in folders for path in Path(folder).glob("inflight-*") if _owner(path) == victim]
    shm = [path for path in Path("/dev/shm").iterdir() if _owner(path) == victim]
    assert own and shm
    for path in (home, f"{home}/work/{LECTURE}", *own, *shm):
        command = ["ls", str(path)] if Path(path).is_dir() else ["cat", str(path)]
        assert "Permission denied" in as_user(neighbour, command).stderr, path
        assert as_user(neighbour, ["sh", "-c", f"echo x >> {path}"]).returncode, path
    for process in processes_of(victim):
        for file in ("environ", "mem", "maps"):
            assert "Permission denied" in as_user(neighbour, ["cat", f"/proc/{process.pid}/{file}"]).stderr
    arguments = [" ".join(process.cmdline()) for process in processes_of(victim)]
    assert not [line for line in arguments if re.search(r"[0-9a-f]{64}", line)]


@pytest.fixture(scope="module")
def listening(victim_and_neighbour):
    """What the victim's processes listen at, on this machine only: port -> command."""
    found = {}
    for process in processes_of(victim_and_neighbour[0]):
        with contextlib.suppress(psutil.Error):
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN:
                    assert each.laddr.ip.removeprefix("::ffff:") == "127.0.0.1", each
                    found[each.laddr.port] = " ".join(process.cmdline())
    return found


def test_a_neighbour_who_listens_hears_no_kernel(victim_and_neighbour, listening, pages):
    """A kernel on TCP publishes inputs and outputs to everybody who subscribes; the hub's are files of their users."""
    ports = [port for port, command in listening.items() if "ipykernel_launcher" in command]
    script = (
        "import sys, zmq\n"
        "with zmq.Context() as context, context.socket(zmq.SUB) as heard:\n"
        "    heard.linger = 0\n"
        "    heard.subscribe(b'')\n"
        f"    for port in {ports}: heard.connect(f'tcp://127.0.0.1:{{port}}')\n"
        "    print('listens', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    print('heard', heard.poll(3000))\n"
    )
    victim, neighbour = victim_and_neighbour
    user = pwd.getpwnam(neighbour)
    who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": user.pw_dir}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, **who, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout.readline() == "listens\n"
        run_all_cells(pages[victim])
        assert_all_have_run(pages[victim])
        assert listener.communicate("now\n", timeout=60)[0] == "heard 0\n"


def test_a_neighbour_can_not_use_the_port_of_the_others_jupyterlab(victim_and_neighbour, listening):
    victim, neighbour = victim_and_neighbour
    [port] = [port for port, command in listening.items() if "jupyterhub-singleuser" in command]
    for path in ("api/contents", "api/kernels", "api/terminals"):
        assert curl(neighbour, f"http://127.0.0.1:{port}/user/{victim}/{path}") in ("302", "403")


def test_a_neighbour_can_not_open_the_others_jupyterlab(running_hub, victim_and_neighbour, pages):
    victim, neighbour = victim_and_neighbour
    answer = pages[neighbour].context.request.get(f"{running_hub.url}/user/{victim}/api/contents", max_redirects=10)
    assert answer.status in (403, 404)


def test_a_neighbour_can_not_stop_anything(victim_and_neighbour):
    victim, neighbour = victim_and_neighbour
    for process in processes_of(victim):
        for signal in ("-0", "-STOP", "-KILL"):
            assert "Operation not permitted" in as_user(neighbour, ["/bin/kill", signal, str(process.pid)]).stderr
    assert servers_of(victim)


def test_one_ends_everything_and_the_others_do_not_notice(pages, running_hub):
    hub = running_hub.url
    ender, *others = pages
    asking = {name: pages[name] for name in others}
    run_notebooks(asking, "asks")
    before = {name: {process.pid for process in processes_of(name)} for name in others}
    for page in asking.values():
        run_all_cells(page)
    kill_all_in_a_terminal(pages[ender])
    until("the end of everything of theirs", lambda: not processes_of(ender))
    for name, page in asking.items():
        assert_all_have_run(page)
        assert before[name] & {process.pid for process in servers_of(name)} or servers_of(name)
        assert "10 answers" in page.locator(".jp-OutputArea-output").last.inner_text()
        shot(page, f"{name}_after_another_ended_everything")
    page = pages[ender]
    page.goto(f"{hub}/hub/home")
    shot(page, f"{ender}_after_the_end")
    until("the hub to notice", lambda: _has_ended(page, hub))
    page.goto(f"{hub}/hub/spawn/{ender}")
    see_a_notebook(page)
    run_notebooks({ender: page}, "again")


def kill_all_in_a_terminal(page: Page) -> None:
    page.evaluate("() => { window.jupyterapp.commands.execute('terminal:create-new'); }")
    page.locator(".jp-Terminal .xterm-helper-textarea").wait_for(state="attached")
    page.locator(".jp-Terminal").click()
    page.keyboard.type("kill -9 -1\n")


def _has_ended(page: Page, hub: str) -> bool:
    """Whether the hub offers to start the learner's JupyterLab again."""
    page.goto(f"{hub}/hub/home")
    return page.get_by_role("button", name="Start My Server").is_visible()


# All at once ----------------------------------------------------------------------------------------------------------


def test_all_run_the_lecture_at_once_with_a_server_each(pages):
    run_everywhere(pages, LECTURE, "lecture")
    write_use(pages, "lecture")


def test_all_solve_the_lab_at_once(pages):
    """With the answers that the course has for it, where a learner's own would be."""
    for name in pages:
        user = pwd.getpwnam(name)
        copy = Path(shutil.copy(COURSE / "solutions" / Path(LAB).name, Path(user.pw_dir) / "work" / "labs"))
        os.chown(copy, user.pw_uid, user.pw_gid)
    run_everywhere(pages, LAB, "lab")
    write_use(pages, "lab")


def write_use(pages: dict[str, Page], what: str) -> None:
    """Memory of all learners together, for those who compare it with what `inflight doctor --class` says."""
    use = {}
    for name in pages:
        parts = dict.fromkeys(("Pss", "Pss_Anon", "Pss_Shmem", "Pss_File"), 0)
        for process in processes_of(name):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                    key, _, value = line.partition(":")
                    if key in parts:
                        parts[key] += int(value.split()[0])
        use[name] = {key: round(value / 1024) for key, value in parts.items()}
    (SCREENSHOTS / f"memory_{what}_mib.json").write_text(json.dumps(use, indent=1))
