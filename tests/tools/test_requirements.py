"""requirements.txt: of the files that an index has, the hashes of those that set-up takes."""

import re

import pytest

from inflight.paths import COURSE
from tools import requirements

X86, ARM = "manylinux_2_17_x86_64.manylinux2014_x86_64", "manylinux_2_28_aarch64"
BOTH = ("py3-none-any",)
MACHINES = " or ".join(f"(platform_machine == '{name}' and sys_platform == 'linux')" for name in ("aarch64", "x86_64"))
LINUX = f"python_full_version < '3.13' and ({MACHINES})"


def package(*tags: str, marker: str = "") -> dict:
    """A package as pylock.toml has it; the hash of a wheel is its tags."""
    wheels = [{"url": f"https://x/p-1-{tag}.whl", "hashes": {"sha256": tag}} for tag in tags]
    sdist = {"url": "https://x/p-1.tar.gz", "hashes": {"sha256": "source"}}
    return {"name": "p", "version": "1", "wheels": wheels, "sdist": sdist} | ({"marker": marker} if marker else {})


@pytest.mark.parametrize(
    "files, taken",
    [
        (["py3-none-any"], ["py3-none-any"]),
        # one for each Python and processor, and none for others
        (
            [f"cp3{n}-cp3{n}-{p}" for n in (10, 11, 12, 13) for p in (X86, ARM, "musllinux_1_2_x86_64", "win_amd64")],
            [f"cp3{n}-cp3{n}-{p}" for n in (11, 12) for p in (X86, ARM)],
        ),
        # the best that the oldest glibc of the course can use, and its own Python's before the stable interface
        (
            ["cp39-abi3-manylinux_2_17_x86_64", "cp39-abi3-manylinux_2_34_x86_64", "cp39-abi3-manylinux_2_39_x86_64",
             "cp311-cp311-manylinux_2_17_x86_64", "py3-none-any"],
            ["cp311-cp311-manylinux_2_17_x86_64", "cp39-abi3-manylinux_2_34_x86_64", "py3-none-any"],
        ),
    ],
)  # fmt: skip
def test_the_best_wheel_for_each_machine_is_taken(files, taken):
    lines = requirements.requirement(package(*files))
    assert sorted(re.findall(r"--hash=sha256:(\S+)", lines)) == sorted(taken)


@pytest.mark.parametrize(
    "marker, said",
    [
        (LINUX, "p==1"),
        (f"python_full_version < '3.12' and {LINUX}", "p==1 ; python_full_version < '3.12'"),
        ("sys_platform == 'linux' and platform_machine == 'x86_64'", "p==1 ; platform_machine == 'x86_64'"),
    ],
)
def test_a_condition_that_holds_on_every_machine_goes_without_saying(marker, said):
    assert requirements.requirement(package(*BOTH, marker=marker)).splitlines()[0] == f"{said} \\"


def test_what_no_machine_needs_is_left_out_and_what_one_cannot_install_ends_it():
    assert requirements.requirement(package(*BOTH, marker="sys_platform == 'win32'")) == ""
    with pytest.raises(SystemExit, match=r"p 1 has no wheel for Python 3\.11 on aarch64\."):
        requirements.requirement(package(f"py3-none-{X86}"))


def test_the_files_hold_no_more_than_set_up_takes():
    for name in requirements.FILES:
        lines = (COURSE / name).read_text().replace("\\\n", "").splitlines()[1:]
        assert len(lines) > 50 and all(1 <= line.count("--hash=") <= 4 for line in lines)
