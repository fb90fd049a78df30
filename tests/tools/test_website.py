"""Around the course's pages on the web: the glossary, what makes them, and README.md with its neighbours."""

import re
import tomllib

from inflight.notebook import syllabus
from inflight.paths import COURSE

PROJECT = tomllib.loads((COURSE / "pyproject.toml").read_text())


def glossary():
    """Term -> its text, as in lessons/glossary.md."""
    text = (COURSE / "lessons/glossary.md").read_text(encoding="utf-8")
    return {head.strip("`"): " ".join(body.split()) for head, body in re.findall(r"^### (.+)\n([^#]+)", text, re.M)}


def test_lesson_00_s_glossary_says_the_same():
    lecture = (COURSE / "lessons/00_start_here/lecture.py").read_text(encoding="utf-8").partition("# ## Glossary")[2]
    short = dict(re.findall(r"^# ### (.+)\n# (.+)$", lecture, re.M))
    assert len(short) > 15
    terms = glossary()
    different = [name for name, meaning in short.items() if not terms.get(name, "").startswith(meaning)]
    assert different == []


# What stands around it ------------------------------------------------------------------------------------------------


def test_what_makes_the_site_is_pinned_with_hashes_and_is_no_part_of_a_learner_s_set_up():
    lines = (COURSE / "assets/site/requirements.txt").read_text().replace("\\\n", "").splitlines()
    pins = {line.split()[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}", line) for line in lines if "==" in line[:60]}
    assert [pin for pin, hashes in pins.items() if not hashes] == []
    wanted = PROJECT["dependency-groups"]["site"]
    assert [pin for pin in wanted if pin not in pins] == []
    names = {pin.partition("==")[0] for pin in wanted}
    assert not names & {pin.partition("==")[0] for pin in PROJECT["project"]["dependencies"]}


def test_the_readme_s_hours_are_those_of_the_lessons():
    hours = {6: "six", 9: "nine", 7: "seven", 10: "ten", 8: "eight", 5: "five", 11: "eleven"}
    lectures = sum(lesson.minutes for lesson in syllabus.read())
    scripts = "".join(path.read_text(encoding="utf-8") for path in (COURSE / "lessons").glob("*/lab.py"))
    labs = [int(minutes) for minutes in re.findall(r"difficulty \d/5 · (\d+) minutes", scripts)]
    readme = " ".join((COURSE / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"lectures take {hours[round(lectures / 60)]} hours, their labs {hours[round(sum(labs) / 60)]} more" in readme
    )


def test_every_link_of_the_readme_and_its_neighbours_leads_somewhere():
    for name in ("README.md", "REFERENCE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "lessons/glossary.md"):
        text = (COURSE / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if not target.startswith(("https:", "../../")):
                assert ((COURSE / name).parent / target).exists(), f"{name}: {target}"
