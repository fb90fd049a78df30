"""The files of a hub on one machine, without one: what they set, whom they start, and how learners are made."""

import importlib.util
import json
import os
import re
import runpy
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from inflight.paths import ASSETS, COURSE

HUB = ASSETS / "instructor" / "hub"
CONFIG = HUB / "jupyterhub_config.py"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """What the hub's configuration sets, as the hub's own loader reads it, with these settings."""

    def load(**settings: str) -> Config:
        monkeypatch.setenv("HUB_STATE", str(tmp_path / "state"))
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        return PyFileConfigLoader(CONFIG.name, path=str(HUB)).load_config()

    return load


def test_without_a_certificate_it_listens_on_this_machine_only(load):
    assert load().JupyterHub.bind_url == "http://127.0.0.1:8880"


def test_with_a_certificate_it_listens_for_all(load):
    found = load(HUB_CERT="/etc/hub/cert.pem", HUB_KEY="/etc/hub/key.pem")
    assert found.JupyterHub.bind_url == "https://:443"
    assert (found.JupyterHub.ssl_cert, found.JupyterHub.ssl_key) == ("/etc/hub/cert.pem", "/etc/hub/key.pem")


def test_half_a_certificate_is_refused(load):
    with pytest.raises(SystemExit, match="belong together"):
        load(HUB_CERT="/etc/hub/cert.pem")


def test_what_the_hub_keeps_is_for_root_alone(load, tmp_path):
    found = load()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    for kept in (found.JupyterHub.db_url, found.JupyterHub.cookie_secret_file, found.ConfigurableHTTPProxy.pid_file):
        assert kept.removeprefix("sqlite:///").startswith(str(tmp_path / "state"))


def test_its_ports_leave_tritons_free(load):
    found = load()
    urls = (found.JupyterHub.bind_url, found.JupyterHub.hub_bind_url, found.ConfigurableHTTPProxy.api_url)
    assert len(set(urls)) == 3 and not {int(url.rpartition(":")[2]) for url in urls} & {8000, 8001, 8002}


def test_a_learner_has_the_memory_that_a_pod_has(load):
    values = yaml.safe_load((HUB / "kubernetes" / "values.yaml").read_text())
    assert load().Spawner.mem_limit == values["singleuser"]["memory"]["limit"] == "4G"


def test_every_learner_has_a_private_server_and_the_shared_cache(load):
    given = load().Spawner.environment
    assert given["INFLIGHT_PRIVATE"] == "1" and given["INFLIGHT_HOME"] == "/shared/inflight"
    assert given["PATH"].startswith(f"{sys.prefix}/bin:")
    assert (Path(given["JUPYTER_CONFIG_PATH"]) / "labconfig").is_dir()


def test_only_the_class_may_log_in_and_idle_servers_end(load):
    found = load(HUB_GROUP="tuesday", HUB_IDLE_S="600")
    assert found.PAMAuthenticator.allowed_groups == {"tuesday"}
    assert "allow_all" not in found.get("Authenticator", {})
    [culler] = found.JupyterHub.services
    assert culler["command"][1:] == ["-m", "jupyterhub_idle_culler", "--timeout=600"]
    assert [role["services"] for role in found.JupyterHub.load_roles] == [[culler["name"]]]


@pytest.mark.parametrize("systemd", [True, False])
def test_there_are_limits_with_and_without_systemd(load, systemd, monkeypatch):
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: systemd if str(path) == "/run/systemd/system" else is_dir(path))
    found = load(HUB_CORES="3", HUB_MEMORY="4G")
    assert (found.Spawner.cpu_limit, found.Spawner.mem_limit) == (3.0, "4G")
    assert found.JupyterHub.spawner_class == ("systemd" if systemd else "localprocess")
    assert ("LIMIT_EACH_PROCESS" in found.Spawner.environment) != systemd
    if systemd:
        assert found.JupyterHub.cleanup_servers is False  # or the service's restart would end what learners run
        assert found.SystemdSpawner.isolate_tmp and found.SystemdSpawner.unit_extra_properties["TasksMax"]
        assert int(found.SystemdSpawner.unit_extra_properties["TimeoutStopSec"]) < 60  # systemd's own 90 are long


def test_every_setting_that_is_read_is_on_the_page():
    page = (HUB / "README.md").read_text()
    for name in re.findall(r'^    "(HUB_\w+)"', CONFIG.read_text(), re.MULTILINE):
        assert f"`{name}`" in page, name


def test_the_service_starts_what_is_there():
    unit = (HUB / "inflight-hub.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1].split()
    assert command[0] == "/opt/course/.venv/bin/jupyterhub"
    assert COURSE / Path(command[-1]).relative_to("/opt/course") == CONFIG
    assert "EnvironmentFile=-/etc/inflight-hub.conf" in unit.splitlines()


# What is installed ----------------------------------------------------------------------------------------------------


def pins(path: Path) -> dict[str, Requirement]:
    lines = path.read_text().replace("\\\n", "").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert all("--hash=sha256:" in line for line in lines)
    return {canonicalize_name(found.name): found for line in lines if (found := Requirement(line.split(" --hash")[0]))}


def test_the_hubs_packages_are_pinned_with_hashes_beside_the_courses():
    hub, course = pins(HUB / "requirements.txt"), pins(COURSE / "requirements.txt")
    assert {"jupyterhub", "jupyterhub-idle-culler", "jupyterhub-systemdspawner"} <= set(hub)
    assert all(str(found.specifier).startswith("==") for found in hub.values())
    assert not set(hub) & set(course)  # whatever both need is as the course has it
    assert "--no-deps --require-hashes -r assets/instructor/hub/requirements.txt" in (HUB / "README.md").read_text()
    assert "-r assets/instructor/hub/requirements.txt" in (COURSE / "Containerfile").read_text()


def test_the_proxy_is_pinned_with_hashes():
    wanted = json.loads((HUB / "package.json").read_text())["dependencies"]
    lock = json.loads((HUB / "package-lock.json").read_text())["packages"]
    assert set(wanted) == {"configurable-http-proxy"} and lock[""]["dependencies"] == wanted
    fetched = {name: found for name, found in lock.items() if name}
    assert all(found["integrity"].startswith("sha512-") for found in fetched.values())
    assert wanted["configurable-http-proxy"] == fetched["node_modules/configurable-http-proxy"]["version"]


# What starts as a learner ---------------------------------------------------------------------------------------------


def test_learners_processors_lie_beside_each_other():
    cores_of = runpy.run_path(str(HUB / "learner_server.py"))["cores_of"]
    here = list(range(10, 16))
    given = [cores_of(f"learner{number:02d}", 2, here) for number in range(1, 5)]
    assert given == [[10, 11], [12, 13], [14, 15], [10, 11]]
    assert cores_of("learner02", 4, here) == [10, 11, 14, 15]
    assert cores_of("learner02", 8, [0, 1]) == [0, 1]
    assert len(cores_of("ada", 2, here)) == 2 and cores_of("ada", 2, here) == cores_of("ada", 2, here)


def test_it_prepares_the_workspace_limits_itself_and_becomes_the_server(tmp_path):
    for name, script in (
        ("inflight", 'echo "inflight $*"'),
        ("jupyterhub-singleuser", 'echo "server $*"; umask; ulimit -d; grep Cpus_allowed_list /proc/self/status'),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    first = min(os.sched_getaffinity(0))
    environment = {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "JUPYTERHUB_USER": "learner01",
        "CPU_LIMIT": "1.0",
        "MEM_LIMIT": str(3 * 2**30),
        "LIMIT_EACH_PROCESS": "1",
    }
    command = [HUB / "learner_server.py", "--port=1"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.split() == [
        *["inflight", "lab", "--prepare-only", "server", "--port=1", "0077"],
        *[str(3 * 2**20), "Cpus_allowed_list:", str(first)],
    ]


# Learners -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def learners(monkeypatch):
    """The script on a machine that is made up: `users` by name, and `ran`, each command with its standard input."""
    spec = importlib.util.spec_from_file_location("learners", HUB / "learners.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.users, module.ran = {}, []

    def run(*command, given=None):
        module.ran.append((command, given))
        if command[0] == "useradd":
            module.users[command[-1]] = module.COMMENT

    def user(name):
        return SimpleNamespace(pw_uid=10**6, pw_dir="/nowhere", pw_gecos=module.users[name])

    monkeypatch.setattr(module, "_run", run)
    monkeypatch.setattr(module.Path, "chmod", lambda path, mode: None)
    monkeypatch.setattr(module.pwd, "getpwnam", user)
    monkeypatch.setattr(module.grp, "getgrnam", lambda name: SimpleNamespace(gr_mem=list(module.users)))
    return module


def test_passwords_are_all_different_and_easy_to_read_aloud(learners):
    words = {learners.password() for _ in range(200)}
    assert len(words) == 200
    assert all(re.fullmatch(r"[a-hjkmnp-z2-9]{4}(-[a-hjkmnp-z2-9]{4}){2}", word) for word in words)


def test_the_sheet_has_a_strip_for_each(learners):
    assert learners.names(12, "guest")[::11] == ["guest01", "guest12"]
    printed = learners.sheet({"guest01": "abcd-efgh-jkmn", "guest02": "xxxx-yyyy-zzzz"})
    assert printed.count("user name") == 2 and "password    abcd-efgh-jkmn" in printed


def test_passwords_reach_the_machine_by_standard_input_only(learners):
    given = learners.add(3, "learner")
    assert [command[-1] for command, _ in learners.ran if command[0] == "useradd"] == list(given)
    assert learners.ran[-1] == (("chpasswd",), "".join(f"{name}:{word}\n" for name, word in given.items()))
    assert not [command for command, _ in learners.ran if set(given.values()) & set(command)]
    again = learners.add(3, "learner")
    assert list(again) == list(given) and not set(again.values()) & set(given.values())
    assert len([command for command, _ in learners.ran if command[0] == "useradd"]) == 3


def test_who_is_not_of_the_class_is_neither_given_a_password_nor_removed(learners, monkeypatch):
    learners.users["learner01"] = "Ada"
    with pytest.raises(SystemExit, match="There is a user learner01 who is not of this class"):
        learners.add(2, "learner")
    assert "chpasswd" not in [command[0] for command, _ in learners.ran]
    learners.users["guest01"] = learners.COMMENT
    ended = []
    monkeypatch.setattr(learners.subprocess, "run", lambda command, check: ended.append(command))
    assert learners.remove() == ["guest01"]
    assert learners.ran[-1] == (("userdel", "--remove", "guest01"), None)
    assert ended == [["pkill", "-KILL", "--uid", "1000000"]]


def test_a_file_of_others_that_vanishes_meanwhile_stops_nothing(learners, tmp_path, monkeypatch):
    (tmp_path / "theirs").touch()
    monkeypatch.setattr(learners.Path, "iterdir", lambda folder: iter([folder / "vanished", folder / "theirs"]))
    assert learners._owned_by(os.getuid(), tmp_path) == [tmp_path / "theirs"]
    assert learners._owned_by(os.getuid() + 1, tmp_path) == []


# Containers -----------------------------------------------------------------------------------------------------------


def test_the_dev_container_is_the_class_image():
    found = json.loads((COURSE / ".devcontainer" / "devcontainer.json").read_text())
    folder = COURSE / ".devcontainer"
    assert (folder / found["build"]["dockerfile"]).resolve() == COURSE / "Containerfile"
    assert (folder / found["build"]["context"]).resolve() == COURSE
    text = (COURSE / "Containerfile").read_text()
    targets = re.findall(r"^FROM .* AS (\w+)$", text, re.MULTILINE)
    assert found["build"]["target"] in targets
    assert f"USER {found['remoteUser']}" in text.splitlines()
    assert found["postCreateCommand"] == "inflight lab --prepare-only"
    assert f"EXPOSE {found['forwardPorts'][0]}" in text.splitlines()


def test_binder_begins_with_the_python_of_the_course():
    found = yaml.safe_load((COURSE / "environment.yml").read_text())
    assert found["channels"] == ["conda-forge", "nodefaults"]
    assert set(found["dependencies"]) == {"python=3.11", "pip"}  # the rest is set-up's, by hash
