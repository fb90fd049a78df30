"""Pointing at a request, in a browser, on a page with plotly.js and the script, as the course's pages are."""

import json

import pytest
from plotly.offline import get_plotlyjs

from inflight.notebook import linked_marks
from inflight.notebook.charts.display import in_course_look
from tests.browser import needs_chromium
from tests.notebook.chart_samples import FIGURES

pytestmark = [needs_chromium, pytest.mark.browser]

# A mark of each picture: its trace, its place in it; and whose it is.
POINTED_AT = {
    "slot_map": ("long answer", 3),
    "kv_blocks": ("a request's blocks", None),
    "batches": ("waits", 4),
    "race": ("stream 2", 20),
    "forward_passes": (None, 5),
    "sequence_places": (None, 1),
}
# The middle of a mark on the page. plotly.js binds what it has computed to what it draws.
PLACE = """([name, traceName, number]) => {
    const chart = document.getElementById(name);
    const index = chart.data.findIndex(trace => traceName === null || trace.name === traceName);
    const group = [...chart.querySelectorAll('.cartesianlayer .trace')]
        .find(one => one.__data__[0].trace.index === index);
    const mark = number === null ? group : group.querySelectorAll('.point')[number] ?? group;
    mark.scrollIntoView({block: 'center'});
    const box = mark.getBoundingClientRect();
    if (mark === group && number !== null) {  // a line: one of its points
        const {_fullLayout: full, data} = chart, trace = data[index], top = chart.getBoundingClientRect();
        const [x, y] = [full.xaxis, full.yaxis];
        return [top.left + x._offset + x.l2p(trace.x[number]), top.top + y._offset + y.l2p(trace.y[number])];
    }
    return [box.left + box.width / 2, box.top + box.height / 2];
}"""
# By panel, how many marks that belong to somebody are as always, and how many are faint.
SEEN = """name => {
    const chart = document.getElementById(name), seen = {};
    for (const group of chart.querySelectorAll('.cartesianlayer .trace')) {
        const trace = chart.data[group.__data__[0].trace.index];
        const whole = trace.meta?.who !== undefined;
        for (const mark of whole ? [group] : group.querySelectorAll('.point')) {
            if (!whole && !trace.customdata) continue;
            const faint = getComputedStyle(mark).opacity < 0.2;
            const [plain, pale] = seen[trace.xaxis ?? 'x'] ?? [0, 0];
            seen[trace.xaxis ?? 'x'] = [plain + !faint, pale + faint];
        }
    }
    return seen;
}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory, browser):
    specs = {name: in_course_look(FIGURES[name]) for name in POINTED_AT}
    draws = "".join(
        f'<div id="{name}"></div><script>Plotly.newPlot("{name}", {json.dumps(spec)});</script>'
        for name, spec in specs.items()
    )
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(
        f"<!DOCTYPE html><head><meta charset='utf-8'><script>{get_plotlyjs()}</script>"
        f"<script>{linked_marks.SCRIPT}</script></head><body>{draws}</body>"
    )
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.goto(file.as_uri(), timeout=120_000)
    yield page
    page.close()


@pytest.mark.parametrize("name", POINTED_AT)
def test_pointing_at_a_request_lets_it_stand_out_in_every_panel(page, name):
    trace, number = POINTED_AT[name]
    before = page.evaluate(SEEN, name)
    assert len(before) > 1 and not any(faint for _, faint in before.values())
    x, y = page.evaluate(PLACE, [name, trace, number])
    page.mouse.move(x - 2, y - 2)
    page.mouse.move(x, y)
    page.wait_for_selector(f"#{name} .inflight-faint", timeout=30_000, state="attached")
    pointed_at = page.evaluate(SEEN, name)
    for panel, (plain, faint) in pointed_at.items():
        assert faint > 0 and plain > 0, f"panel {panel}"
        assert plain + faint == sum(before[panel])
    assert page.locator(f"#{name} .hoverlayer .hovertext").count() == 1
    page.mouse.move(1, 1)
    page.wait_for_selector(f"#{name} .inflight-faint", timeout=30_000, state="detached")
    assert page.evaluate(SEEN, name) == before
