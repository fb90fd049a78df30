"""The values for Zero to JupyterHub's chart: keys that the chart takes, figures that were measured."""

import json

import jsonschema
import pytest
import yaml

from inflight.paths import ASSETS, COURSE

FOLDER = ASSETS / "instructor" / "hub" / "kubernetes"
VALUES = yaml.safe_load((FOLDER / "values.yaml").read_text())
CHECK = jsonschema.Draft7Validator(json.loads((FOLDER / "chart_schema.json").read_text()))
SINGLE = VALUES["singleuser"]


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


def test_what_starts_is_in_the_image_as_its_user():
    text = (COURSE / "Containerfile").read_text()
    assert (
        COURSE / SINGLE["cmd"].removeprefix("/opt/course/")
    ).stat().st_mode & 0o111 and "WORKDIR /opt/course" in text
    assert f"--uid {SINGLE['uid']} learner" in text and SINGLE["storage"]["homeMountPath"] == "/home/learner"


def test_servers_are_private_and_idle_ones_end():
    assert SINGLE["extraEnv"]["INFLIGHT_PRIVATE"] == "1" and VALUES["cull"]["enabled"]
    assert VALUES["proxy"]["https"]["enabled"] and not VALUES["hub"]["config"]["NativeAuthenticator"]["open_signup"]


def test_a_gpu_is_a_profile_and_not_the_default():
    profiles = SINGLE["profileList"]
    [gpu] = [each for each in profiles if "kubespawner_override" in each]
    assert gpu["kubespawner_override"]["extra_resource_limits"] == {"nvidia.com/gpu": "1"} and "default" not in gpu
    assert [each for each in profiles if each.get("default")] == [profiles[0]]
