"""The instructor's pack is held to the lessons: whatever it names is there, and what drifts is told by its place."""

import re
import shutil

import pytest

from inflight.cli import app
from inflight.notebook import guide
from inflight.paths import COURSE
from tools import instructor

PACK = COURSE / "assets" / "instructor"
BATCHING = "04_batching.md"


@pytest.fixture(scope="module")
def taught():
    return {one.lesson.number: one for one in instructor.lessons()}


@pytest.fixture
def said(taught):
    """What is found wrong with the page of lesson 04 after something in it was changed."""

    def said(old, new):
        text = (PACK / BATCHING).read_text(encoding="utf-8")
        assert old in text
        text = text.replace(old, new, 1).partition(instructor.END)[2]
        return list(instructor._of_page(text, taught["04"], COURSE))

    return said


def test_the_pack_is_what_the_lessons_are():
    assert instructor.problems() == []


def test_every_lesson_has_a_page_with_all_parts(taught):
    for one in taught.values():
        text = guide.path(one.lesson.name).read_text(encoding="utf-8")
        assert tuple(guide.parts(text)) == guide.PARTS and all(guide.parts(text).values())
        assert text.startswith(f"# {one.lesson.heading}\n")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("## Where to cut", "## Where to save", "has the parts"),
        ("- **Switch**:", "- **The switch**:", "the lesson has no section 'The switch'"),
        ("- **Turn the knob**: on the", "- **Turn knobs**: on the", "Where to cut: the lesson has no section"),
        ("| Who pays? | mean", "| Who pays | mean", "What to expect: the lesson has no section 'Who pays'"),
        ("static {} iterations", "static {} rounds", "is not what the section 'On paper first' shows"),
        ("| 1,312 |", "| 1,311 |", "is 1312 in the stored notebook, and 1,311 is said to be normal"),
        ("| 1,312 |", "| 1 to 99 |", "is 1312 in the stored notebook, and 1 to 99 is said to be normal"),
        ("`static {} iterations", "`static 1312 iterations", "is no row of heading"),
        ("### Exercise 4.5: what a file says", "### Exercise 4.6: what a file says", "the lab has"),
        ("### Exercise 4.4: a trace that wins", "### Exercise 4.4: traces that win", "the lab has"),
        ('"Write the rule yourself."', '"Do it."', "no check says 'Do it.'"),
        ('"Write the rule yourself."', "that", "does not say what the check says"),
        ("**3. A colleague shows", "**A colleague shows", "has 2 questions with an answer"),
        (
            "A colleague shows a picture with no grey at all, and says that his scheduler is perfect. What else do you "
            "want to see?",
            'A colleague reports "in-flight batching gives 1.3 times". What do you ask first?',
            "question 3 is one of the lesson's own",
        ),
    ],
)  # fmt: skip
def test_what_drifts_is_told_by_its_place(said, old, new, words):
    problems = said(old, new)
    assert any(words in problem for problem in problems), problems


@pytest.fixture
def course(tmp_path):
    """A course with what the pack is held to, to be changed."""
    for name in ("lessons", "notebooks", "labs", "assets/instructor", "inflight/notebook/grading", "tests/notebook"):
        shutil.copytree(COURSE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def changed(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_minutes_and_routes_follow_the_lessons(course):
    changed(course / "lessons" / "syllabus.toml", "minutes = 42", "minutes = 77")
    assert [problem.partition(":")[0] for problem in instructor.problems(course)] == ["README.md", "06_batchers.md"]
    assert {path.name for path in instructor.write(course)} == {"README.md", "06_batchers.md"}
    assert instructor.problems(course) == [] and instructor.write(course) == []
    assert "[06 · Dynamic batching](06_batchers.md) | 77 |" in (course / "assets/instructor/README.md").read_text()


def test_a_route_that_is_too_long_or_names_nothing_is_told(course):
    routes = course / "assets" / "instructor" / "routes.toml"
    changed(routes, "minutes = 120", "minutes = 60")
    instructor.write(course)
    assert any(re.search(r"a route of \d+ minutes takes \d+ too many", one) for one in instructor.problems(course))
    changed(routes, '"The map"', '"A map"')
    assert any("routes.toml names 'A map'" in one for one in instructor.problems(course))


def test_a_lesson_without_a_page_is_told(course):
    (course / "assets" / "instructor" / "07_sequences.md").unlink()
    assert "07_sequences.md is missing: every lesson has a page" in instructor.problems(course)


def test_a_lab_and_a_check_that_change_are_told(course):
    changed(course / "labs" / "04_batching_lab.ipynb", "Exercise 4.2: static batching", "Exercise 4.2: V1")
    for file in ("inflight/notebook/grading/serve.py", "tests/notebook/test_lab_03.py"):
        changed(course / file, "Counters only grow", "They grow")
    problems = instructor.problems(course)
    assert any("04_batching.md: Wrong answers and what they mean: has" in one for one in problems)
    assert "03_serve.md: Exercise 3.4: what did that cost?: no check says 'Counters only grow'" in problems


def test_the_minutes_of_sections_add_up(taught):
    for one in taught.values():
        assert 0.8 * one.lesson.minutes < sum(one.sections.values()) <= one.lesson.minutes + 0.01


def test_commands_and_links_of_the_pack_are_there(taught):
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    for page in PACK.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"`(?:\w+=\S+ )?inflight (\w+)", text)) <= commands, page.name
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (PACK / link).exists(), f"{page.name}: {link}"


def test_the_commands_of_the_tool(capsys):
    assert instructor.main(["check"]) == 0 and "what the lessons are" in capsys.readouterr().out
    assert instructor.main(["chek"]) == 2 and "Usage" in capsys.readouterr().err
