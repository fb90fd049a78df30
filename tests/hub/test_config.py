"""What a class is set up from, without a hub: the packages, and that both hubs start what the image has."""

import re
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from inflight.paths import ASSETS, COURSE

HUB = ASSETS / "instructor" / "hub"


def pins(path: Path) -> dict[str, Requirement]:
    lines = path.read_text().replace("\\\n", "").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert all("--hash=sha256:" in line for line in lines)
    return {canonicalize_name(found.name): found for line in lines if (found := Requirement(line.split(" --hash")[0]))}


def test_the_hubs_packages_are_pinned_with_hashes_beside_the_courses():
    hub, course = pins(HUB / "requirements.txt"), pins(COURSE / "requirements.txt")
    assert all(str(found.specifier).startswith("==") for found in hub.values())
    assert not set(hub) & set(course)  # whatever both need is as the course has it


def test_on_kubernetes_the_volume_is_where_the_image_keeps_a_learners_work():
    values = yaml.safe_load((HUB / "kubernetes" / "values.yaml").read_text())
    [work] = re.findall(r"INFLIGHT_WORK=(\S+)", (COURSE / "Containerfile").read_text())
    assert values["singleuser"]["storage"]["homeMountPath"] == work
    assert values["hub"]["config"]["KubeSpawner"]["notebook_dir"] == work
