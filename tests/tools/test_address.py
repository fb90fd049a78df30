"""The repository's address: one place says it, all others agree with it, and one command writes another."""

import re
import shutil
import subprocess
import tomllib

import pytest

from inflight import __version__
from inflight.paths import COURSE
from tools import address

# Links that nobody writes but to their own repository.
OWN = re.compile(
    r"(?:codespaces\.new/|ghcr\.io/|git clone https://github\.com/)[\w.-]+/[\w.-]*[\w-]"
    r"|https://github\.com/[\w.-]+/[\w.-]+(?=/(?:actions/workflows|issues/new|security/advisories|releases\)))"
)
CHANGED = ("pyproject.toml", "README.md", "CITATION.cff", ".devcontainer/devcontainer.json")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The files of this clone that have the address, in a clone of their own."""
    image, site, repository = address.forms(address.current(COURSE))
    command = ["git", "grep", "-lzI", *(f"-e{form}" for form in (image, site, repository))]
    names = subprocess.check_output(command, cwd=COURSE, text=True).split("\0")[:-1]
    folder = tmp_path_factory.mktemp("clone")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(COURSE / name, folder / name)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    return folder, names


def test_no_file_names_another_address(clone):
    image, _, repository = address.forms(address.current(COURSE))
    ours = {image, *(f"{host}{repository}" for host in ("codespaces.new/", "https://github.com/"))}
    _, names = clone
    found = {
        (name, link.removeprefix("git clone "))
        for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=COURSE, text=True).split("\0")[:-1]
        if name not in ("tests/tools/test_address.py", "tools/address.py")
        for link in OWN.findall((COURSE / name).read_bytes().decode(errors="replace"))
    }
    assert {link for _, link in found} <= ours, found
    assert set(CHANGED) <= set(names)


@pytest.mark.parametrize("url", ["https://github.com/Ada-L/Serving", "https://github.com/ada/inflight-course2.git"])
def test_another_address_is_written_everywhere_and_back(clone, url):
    folder, names = clone
    former, before = address.current(folder), {name: (folder / name).read_bytes() for name in names}
    assert set(address.write(url, folder)) == set(names)
    image, site, repository = address.forms(url)
    written = b"".join((folder / name).read_bytes() for name in names).decode()
    assert not any(form in re.sub(rf"{repository}|{image}|{site}", "", written) for form in address.forms(former))
    assert f'Repository = "https://github.com/{repository}"' in (folder / "pyproject.toml").read_text()
    assert f'"image": "{image}"' in (folder / ".devcontainer/devcontainer.json").read_text()
    address.write(former, folder)
    assert before == {name: (folder / name).read_bytes() for name in names}


@pytest.mark.parametrize("url", ["github.com/ada/serving", "https://gitlab.com/ada/serving", "https://github.com/ada"])
def test_what_is_no_address_of_a_repository_is_refused(clone, url):
    with pytest.raises(ValueError, match=r"is no address of a repository: give one such as"):
        address.write(url, clone[0])


def test_a_release_has_its_notes_and_its_citation():
    assert f"\n## [{__version__}]" in (COURSE / "CHANGELOG.md").read_text()
    assert f"\nversion: {__version__}\n" in (COURSE / "CITATION.cff").read_text()
    assert tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]["name"] == "inflight-course"
