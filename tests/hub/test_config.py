"""The files of a hub on one machine, without one: what they set, whom they start, and how learners are made."""

import importlib.util
import json
import re
import stat
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


def test_what_the_hub_keeps_is_for_root_alone(load, tmp_path):
    found = load()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    for kept in (found.JupyterHub.db_url, found.JupyterHub.cookie_secret_file, found.ConfigurableHTTPProxy.pid_file):
        assert kept.removeprefix("sqlite:///").startswith(str(tmp_path / "state"))


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
