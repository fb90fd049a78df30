"""The values for Zero to JupyterHub's chart: keys that the chart takes, figures that were measured."""

import json
import re

import jsonschema
import pytest
import yaml

from inflight import classroom
from inflight.machine import GIB, MIB
from inflight.paths import ASSETS, COURSE
from tools import class_costs

FOLDER = ASSETS / "instructor" / "hub" / "kubernetes"
VALUES = yaml.safe_load((FOLDER / "values.yaml").read_text())
CHECK = jsonschema.Draft7Validator(json.loads((FOLDER / "chart_schema.json").read_text()))
SINGLE = VALUES["singleuser"]


def size(text: str) -> int:
    """Bytes of "2G", by JupyterHub's units."""
    return int(float(text[:-1]) * {"M": MIB, "G": GIB}[text[-1]])


def test_the_chart_takes_every_key():
    jsonschema.Draft7Validator.check_schema(CHECK.schema)
    assert [error.message for error in CHECK.iter_errors(VALUES)] == []


@pytest.mark.parametrize(
    "path, value",
    [
        (("singleuser", "memory", "limits"), "3G"),
        (("singleuser", "cpu", "limit"), "two"),
        (("singleuser", "notebookDir"), "work"),
        (("cull", "timeout"), 1.5),
        (("proxy", "https", "type"), "self-signed"),
        (("hubs",), {}),
    ],
)
def test_a_key_that_the_chart_does_not_take_is_noticed(path, value):
    changed = json.loads(json.dumps(VALUES))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert len(list(CHECK.iter_errors(changed))) == 1


def test_the_schema_names_its_source():
    said = CHECK.schema["$comment"]
    assert re.search(r"\b[0-9a-f]{40}\b", said) and "jupyterhub/zero-to-jupyterhub-k8s" in said


def test_memory_and_processors_are_what_one_learner_takes():
    needs = classroom.measured()
    alone = needs.memory_gib(1) * GIB
    assert alone <= size(SINGLE["memory"]["guarantee"]) < size(SINGLE["memory"]["limit"])
    assert 1.25 * alone <= size(SINGLE["memory"]["limit"])
    assert needs.cores_of_a_lesson <= SINGLE["cpu"]["guarantee"] <= needs.cores_running
    assert round(needs.cores_running) <= SINGLE["cpu"]["limit"]
    shm = SINGLE["storage"]["extraVolumes"][0]["emptyDir"]["sizeLimit"]
    assert needs.shm_mib <= int(shm.removesuffix("Mi"))
    assert needs.home_mib <= float(SINGLE["storage"]["capacity"].removesuffix("Gi")) * 1024 / 2


def test_what_starts_is_in_the_image_as_its_user():
    text = (COURSE / "Containerfile").read_text()
    assert (
        COURSE / SINGLE["cmd"].removeprefix("/opt/course/")
    ).stat().st_mode & 0o111 and "WORKDIR /opt/course" in text
    assert f"--uid {SINGLE['uid']} learner" in text and SINGLE["storage"]["homeMountPath"] == "/home/learner"
    assert f"INFLIGHT_HOME={SINGLE['extraEnv']['INFLIGHT_HOME']} " in text


def test_servers_are_private_and_idle_ones_end():
    assert SINGLE["extraEnv"]["INFLIGHT_PRIVATE"] == "1" and VALUES["cull"]["enabled"]
    assert VALUES["proxy"]["https"]["enabled"] and not VALUES["hub"]["config"]["NativeAuthenticator"]["open_signup"]


def test_a_gpu_is_a_profile_and_not_the_default():
    profiles = SINGLE["profileList"]
    [gpu] = [each for each in profiles if "kubespawner_override" in each]
    assert gpu["kubespawner_override"]["extra_resource_limits"] == {"nvidia.com/gpu": "1"} and "default" not in gpu
    assert [each for each in profiles if each.get("default")] == [profiles[0]]


def test_the_table_of_costs_is_computed_from_what_was_measured():
    page = class_costs.PAGE.read_text()
    assert page == class_costs.written(page, classroom.measured())
    nodes = class_costs.NODE_GIB * class_costs.NODE_RESERVE
    assert size(SINGLE["memory"]["guarantee"]) * class_costs.per_node(classroom.measured()) <= nodes * GIB
    doubled = classroom.measured().__class__(**{**vars(classroom.measured()), "own_mib": 10_000.0})
    assert page != class_costs.written(page, doubled)
