"""What the course's pages on the web are made from: pages, links, pictures, the glossary; and the files around them."""

import json
import re
import tomllib

import nbformat
import pytest
import yaml

from inflight import __version__
from inflight.errors import CourseError
from inflight.notebook import syllabus
from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.paths import COURSE
from tools import website, website_pages
from tools.pictures import PICTURE_MIME, of_readme

ADDRESS = "https://github.com/example/course"
README = """# A meal

[![tests](../../x.svg)](../../x)

[Menu](notebooks/01_slots.ipynb), [kitchen](kitchen/).

    git clone URL-OF-THIS-REPOSITORY
"""
SYLLABUS = """[[lesson]]
name = "01_slots"
part = "Eat"
title = "Slots"
question = "?"
minutes = 5
"""
PROJECT = tomllib.loads((COURSE / "pyproject.toml").read_text())


@pytest.fixture
def clone(tmp_path):
    """A course of one lesson with its lab, and a README.md."""
    root = tmp_path / "clone"
    for name, text in {
        "README.md": README,
        "pyproject.toml": "[project]\n",
        "kitchen/pot.py": "",
        "lessons/syllabus.toml": SYLLABUS,
        "lessons/01_slots/lecture.py": "",
        "lessons/01_slots/lab.py": "",
        "lessons/glossary.md": "# Glossary\n\n## 01 · Slots\n\n### KV cache\nPlates.\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in ("notebooks/00_start_here.ipynb", "notebooks/01_slots.ipynb", "labs/01_slots_lab.ipynb"):
        write(root / path, "# Slots")
    return root


def write(path, *cells):
    """A notebook of Markdown cells, or of code cells with one output, where a cell is a dict of MIME types."""
    notebook = nbformat.v4.new_notebook()
    for cell in cells:
        if isinstance(cell, str):
            notebook.cells.append(nbformat.v4.new_markdown_cell(cell))
        else:
            outputs = [nbformat.v4.new_output("display_data", cell)]
            notebook.cells.append(nbformat.v4.new_code_cell("show()", outputs=outputs))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.writes(notebook))


def prepared(clone, address=ADDRESS):
    target = clone.parent / "pages"
    target.mkdir()
    website_pages.prepare(clone, target, address)
    return target


@pytest.mark.parametrize(
    ("link", "leads_to"),
    [
        ("[a](../labs/01_slots_lab.ipynb)", "[a](../labs/01_slots_lab.ipynb)"),
        ("[a](#KV-cache)", "[a](#kv-cache)"),
        ("[a](00_start_here.ipynb#KV-cache)", "[a](../lessons/glossary.md#kv-cache)"),
        ("[a](00_start_here.ipynb#Glossary)", "[a](../lessons/glossary.md)"),
        ("[a](../labs/01_slots_lab.ipynb#Step-4:-a-pot)", "[a](../labs/01_slots_lab.ipynb#step-4-a-pot)"),
        ("[a](../kitchen/pot.py)", f"[a]({ADDRESS}/blob/main/kitchen/pot.py)"),
        ("[a](../README.md)", "[a](../index.md)"),
        ("[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("`[a](nowhere)`", "`[a](nowhere)`"),
        ("```\n[a](nowhere)\n```", "```\n[a](nowhere)\n```"),
    ],
)
def test_a_link_leads_to_a_page_or_to_the_repository(clone, link, leads_to):
    write(clone / "notebooks/01_slots.ipynb", f"# Slots\n\n{link}")
    page = nbformat.read(prepared(clone) / "notebooks/01_slots.ipynb", as_version=4)
    assert page.cells[0].source == f"# Slots\n\n{leads_to}"


def test_without_an_address_words_stay_and_nothing_is_offered(clone):
    pages = prepared(clone, address="")
    assert "[Menu](notebooks/01_slots.ipynb), kitchen." in (pages / "index.md").read_text()
    facts = json.loads((pages / "pages.json").read_text())["notebooks/01_slots"]
    assert facts["source"] == "lessons/01_slots/lecture.py" and not {"edit", "binder"} & set(facts)


def test_a_link_that_leads_nowhere_stops_the_build(clone):
    write(clone / "notebooks/01_slots.ipynb", "# Slots\n\n[a](../nowhere.md)")
    with pytest.raises(
        CourseError, match=r"link to \.\./nowhere\.md leads nowhere; mend it in lessons/01_slots/lecture"
    ):
        prepared(clone)


def test_a_page_is_edited_in_its_source_and_run_from_a_learner_s_copy(clone):
    facts = json.loads((prepared(clone) / "pages.json").read_text())
    assert facts["notebooks/01_slots"]["edit"] == f"{ADDRESS}/edit/main/lessons/01_slots/lecture.py"
    assert facts["labs/01_slots_lab"]["edit"] == f"{ADDRESS}/edit/main/lessons/01_slots/lab.py"
    assert facts["labs/01_slots_lab"]["binder"] == (
        "https://mybinder.org/v2/gh/example/course/main?urlpath=lab/tree/work/labs/01_slots_lab.ipynb"
    )
    assert facts["index"]["edit"] == f"{ADDRESS}/edit/main/README.md"


def test_the_first_page_is_the_readme_without_its_badges_and_lists_the_others(clone):
    home = (prepared(clone) / "index.md").read_text()
    assert "![tests]" not in home and f"git clone {ADDRESS}\n" in home
    assert ":caption: Eat\n\n/notebooks/01_slots\n```" in home and "/lessons/glossary" in home


def test_a_figure_has_its_picture_and_what_is_drawn_live_and_can_end_no_script(clone):
    figure = {"data": [{"name": "</script><b>"}], "layout": {"height": 300}, "config": {}}
    bundle = {PLOTLY_MIME: figure, PICTURE_MIME: "<svg/>", "text/plain": 'Two "bars" & <more>.'}
    write(clone / "notebooks/01_slots.ipynb", "# Slots", bundle)
    pages = prepared(clone)
    shown = nbformat.read(pages / "notebooks/01_slots.ipynb", as_version=4).cells[1].outputs[0].data
    assert set(shown) == {"text/html"}
    assert shown["text/html"].count("</script>") == 1
    assert 'alt="Two &quot;bars&quot; &amp; &lt;more&gt;."' in shown["text/html"]
    live = re.search(r'<script type="application/json">(.*)</script>', shown["text/html"])[1]
    assert json.loads(live) == figure
    assert (pages / website_pages.PICTURES / "01_slots_1.svg").read_text() == "<svg/>"


def test_a_figure_without_a_picture_stops_the_build(clone):
    figure = {PLOTLY_MIME: {"data": [], "layout": {"height": 300}}, "text/plain": "x"}
    write(clone / "notebooks/01_slots.ipynb", "# Slots", figure)
    with pytest.raises(CourseError, match="a figure has no picture"):
        prepared(clone)


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<link rel=stylesheet href=//cdn.example/x.css>",
        '<img alt="" src="http://example.org/x.png">',
    ],
)
def test_what_a_page_would_fetch_from_elsewhere_is_found(tag):
    assert list(website_pages.outside(f"<p><a href='https://example.org'>a</a>{tag}</p>")) == [tag.split("</")[0]]
    assert list(website_pages.outside('<a href="https://example.org">a</a><img src="../x.png">')) == []


def test_the_repository_s_address_is_github_s_own_or_that_of_the_project(clone, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.delenv("GITHUB_SERVER_URL", raising=False)
    assert website_pages.repository(clone) == ""
    (clone / "pyproject.toml").write_text('[project.urls]\nRepository = "https://github.com/one/course/"\n')
    assert website_pages.repository(clone) == "https://github.com/one/course"
    monkeypatch.setenv("GITHUB_REPOSITORY", "fork/course")
    assert website_pages.repository(clone) == "https://github.com/fork/course"


def test_every_lesson_lab_and_solution_has_a_page():
    paths = {page.path for listed in website_pages.pages(COURSE).values() for page in listed}
    stored = {path.relative_to(COURSE).as_posix() for kind in ("notebooks", "labs", "solutions")
              for path in (COURSE / kind).glob("*.ipynb")}  # fmt: skip
    assert stored <= paths
    sources = [page.source for listed in website_pages.pages(COURSE).values() for page in listed]
    assert [source for source in sources if not (COURSE / source).is_file()] == []


# The glossary ---------------------------------------------------------------------------------------------------------


def glossary():
    """Term -> its text, as in lessons/glossary.md."""
    text = (COURSE / website_pages.GLOSSARY).read_text(encoding="utf-8")
    return {head.strip("`"): " ".join(body.split()) for head, body in re.findall(r"^### (.+)\n([^#]+)", text, re.M)}


def test_the_glossary_has_a_sentence_for_each_term_in_the_order_of_the_course():
    text = (COURSE / website_pages.GLOSSARY).read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.M) == [lesson.heading for lesson in syllabus.read()]
    terms = glossary()
    assert len(terms) >= 50
    one_sentence = r"[^.]+(\.pbtxt[^.]+)?\.( .+\.)?"  # and what else it is called
    assert [term for term, meaning in terms.items() if not re.fullmatch(one_sentence, meaning)] == []


def test_lesson_00_s_glossary_says_the_same():
    lecture = (COURSE / "lessons/00_start_here/lecture.py").read_text(encoding="utf-8").partition("# ## Glossary")[2]
    short = dict(re.findall(r"^# ### (.+)\n# (.+)$", lecture, re.M))
    assert len(short) > 15
    terms = glossary()
    different = [name for name, meaning in short.items() if not terms.get(name, "").startswith(meaning)]
    assert different == []


# What stands around it ------------------------------------------------------------------------------------------------


def test_what_makes_the_site_is_pinned_with_hashes_and_is_no_part_of_a_learner_s_set_up():
    lines = website.REQUIREMENTS.read_text().replace("\\\n", "").splitlines()
    pins = {line.split()[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}", line) for line in lines if "==" in line[:60]}
    assert [pin for pin, hashes in pins.items() if not hashes] == []
    wanted = PROJECT["dependency-groups"]["site"]
    assert [pin for pin in wanted if pin not in pins] == []
    names = {pin.partition("==")[0] for pin in wanted}
    assert not names & {pin.partition("==")[0] for pin in PROJECT["project"]["dependencies"]}


def test_the_readme_s_picture_is_the_lecture_s_and_its_words_have_the_same_figures():
    readme = (COURSE / "README.md").read_text(encoding="utf-8")
    alt, path = re.search(r"^!\[(.+)\]\((assets/images/.+)\)$", readme, re.M).groups()
    picture = of_readme(COURSE)
    assert (COURSE / path).read_text(encoding="utf-8") == picture
    title = re.search("<title>(.+?)</title>", picture)[1]
    assert set(re.findall(r"\d[\d,]*", alt)) <= set(re.findall(r"\d[\d,]*", title))


def test_the_readme_s_hours_are_those_of_the_lessons():
    hours = {6: "six", 9: "nine", 7: "seven", 10: "ten", 8: "eight", 5: "five", 11: "eleven"}
    lectures = sum(lesson.minutes for lesson in syllabus.read())
    scripts = "".join(path.read_text(encoding="utf-8") for path in (COURSE / "lessons").glob("*/lab.py"))
    labs = [int(minutes) for minutes in re.findall(r"difficulty \d/5 · (\d+) minutes", scripts)]
    readme = " ".join((COURSE / "README.md").read_text(encoding="utf-8").split())
    said = f"ten lectures take {hours[round(lectures / 60)]} hours, their nine labs {hours[round(sum(labs) / 60)]} more"
    assert said in readme


def test_every_link_of_the_readme_and_its_neighbours_leads_somewhere():
    for name in ("README.md", "REFERENCE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "lessons/glossary.md"):
        text = (COURSE / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if not target.startswith(("https:", "../../")):
                assert ((COURSE / name).parent / target).exists(), f"{name}: {target}"


def test_the_citation_is_as_the_citation_file_format_asks():
    """Version 1.2.0's schema: what is required, and no key that it does not know."""
    cff = yaml.safe_load((COURSE / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"authors", "cff-version", "message", "title"} <= set(cff)
    assert set(cff) <= {"abstract", "authors", "cff-version", "date-released", "identifiers", "keywords", "license",
                        "message", "repository-code", "title", "type", "url", "version"}  # fmt: skip
    assert cff["cff-version"] == "1.2.0" and cff["type"] == "software"
    assert cff["license"] == PROJECT["project"]["license"]
    assert str(cff["version"]) == __version__
    assert cff["authors"] and all(author.get("name") or author.get("family-names") for author in cff["authors"])
    assert len(set(cff["keywords"])) == len(cff["keywords"])


def test_the_changelog_has_its_form():
    text = (COURSE / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.startswith("# Changelog\n")
    heads = re.findall(r"^## (.+)$", text, re.M)
    assert heads[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", head) for head in heads[1:])
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.M)) <= kinds


def test_a_job_makes_and_publishes_the_site():
    jobs = yaml.safe_load((COURSE / ".github/workflows/site.yml").read_text())["jobs"]
    commands = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert commands[0] == "make site"
    for path in re.findall(r"tests/\S+", " ".join(commands)):
        assert (COURSE / path).exists()
    assert jobs["publish"]["needs"] == "build" and set(jobs["publish"]["permissions"]) == {"pages", "id-token"}


def test_the_script_of_the_pages_takes_its_drawing_from_the_course():
    assert "drawChart(chart.id, data, layout, config)" in (website.SETTINGS / "_static/site.js").read_text()
    assert "function drawChart(id, data, layout, config)" in website.DRAW
