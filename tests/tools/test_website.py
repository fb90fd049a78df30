"""Around the course's pages on the web: what makes them, and README.md with its neighbours."""

import json
import re
import tomllib

import pytest

from inflight.paths import COURSE

PROJECT = tomllib.loads((COURSE / "pyproject.toml").read_text())


def test_what_makes_the_site_is_pinned_with_hashes_and_is_no_part_of_a_learner_s_set_up():
    lines = (COURSE / "site/requirements.txt").read_text().replace("\\\n", "").splitlines()
    pins = {line.split()[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}", line) for line in lines if "==" in line[:60]}
    assert [pin for pin, hashes in pins.items() if not hashes] == []
    wanted = PROJECT["dependency-groups"]["site"]
    assert [pin for pin in wanted if pin not in pins] == []
    names = {pin.partition("==")[0] for pin in wanted}
    assert not names & {pin.partition("==")[0] for pin in PROJECT["project"]["dependencies"]}


def test_every_link_of_the_readme_and_its_neighbours_leads_somewhere():
    for name in (
        "README.md",
        "REFERENCE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "notebooks/glossary.md",
    ):
        text = (COURSE / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if not target.startswith("https:"):
                assert ((COURSE / name).parent / target).exists(), f"{name}: {target}"


@pytest.mark.parametrize("kind", ["notebooks", "labs", "solutions"])
def test_no_page_has_a_formula_that_needs_a_library_to_be_read(kind):
    """The site and `build/course` have none: a formula is written in letters, as *t*₁."""
    for path in (COURSE / kind).glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)
        assert re.findall(r"\$[^$\n]+\$", prose) == [], path.name
