"""What does not fit on a page, in words: asked of the browser once everything on it is drawn."""

import time

from playwright.sync_api import Page

DRAWN_S = 15

# What is wider than its place, of which a part is hidden until one scrolls. Tables and code may scroll in `own` boxes.
_WIDE = """([selector, own]) => [...document.querySelectorAll(selector)]
    .filter(part => part.clientWidth && part.scrollWidth - part.clientWidth > 1 && !(own && part.matches(own)))
    .filter(part => getComputedStyle(part).overflowX !== 'visible')
    .map(part => `${part.tagName.toLowerCase()}.${String(part.className).split(' ')[0]} scrolls sideways by ` +
                 `${part.scrollWidth - part.clientWidth} px: ${part.textContent.trim().slice(0, 60)}`)"""

# Every picture is as wide as its place, and nothing has moved for three frames.
_SETTLED = """() => new Promise(done => {
  const sizes = () => [...document.querySelectorAll('.js-plotly-plot .main-svg, .jp-OutputArea-output')]
    .map(part => { const box = part.getBoundingClientRect(); return [box.width, box.height]; }).join();
  let before = sizes(), same = 0;
  const look = () => {
    const now = sizes();
    same = now === before ? same + 1 : 0;
    before = now;
    if (same > 15) done(true); else requestAnimationFrame(look);
  };
  look();
})"""


def resized(page: Page, width: int, height: int) -> None:
    """Make the window so large, and wait until everything has found its place."""
    page.set_viewport_size({"width": width, "height": height})
    page.evaluate(_SETTLED)


def scrolling_sideways(page: Page, selector: str, own: str = "") -> list[str]:
    """Which elements scroll sideways once a page has had the time to draw what it has opened; those of `own` may."""
    deadline = time.monotonic() + DRAWN_S
    while (found := page.evaluate(_WIDE, [selector, own])) and time.monotonic() < deadline:
        page.evaluate(_SETTLED)
    return found
