"""Draws rectangles as SVG: the slots of an engine, its blocks, its servers. It stretches to the width of a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from inflight.engine.simulate import Iteration


@dataclass
class Box:
    """A rectangle, of the class `kind`, with words for who points at it."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    words: str = ""


@dataclass(frozen=True)
class Panel:
    """One picture: its title, what it shows, and how many columns and rows it has."""

    title: str
    boxes: list[Box]
    columns: int
    rows: float
    unit: str  # what a column is


def picture(panels: list[Panel], legend: dict[str, str]) -> str:
    """Return panels one above the other, on one scale, and a legend: kind -> words."""
    columns = max([1, *(panel.columns for panel in panels)])
    marks = "".join(f'<li><span class="{kind}"></span>{escape(words)}</li>' for kind, words in legend.items())
    drawn = "".join(_panel(panel, columns) for panel in panels)
    return f'{drawn}<p class="scale"><span>1</span><span>{panels[-1].unit} {columns:,}</span></p><ul>{marks}</ul>'


def _panel(panel: Panel, columns: int) -> str:
    return f'<p class="panel">{escape(panel.title)}</p>{svg(panel.boxes, columns, panel.rows)}'


def svg(boxes: Iterable[Box], columns: int, rows: float) -> str:
    """Return the boxes as an image that says nothing by itself; the words stand beside it."""
    drawn = "".join(
        f'<rect class="{box.kind}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}">'
        f"{f'<title>{escape(box.words)}</title>' if box.words else ''}</rect>"
        for box in boxes
    )
    box = f'viewBox="0 0 {columns} {rows:g}" preserveAspectRatio="none"'
    return f'<svg {box} aria-hidden="true">{drawn}</svg>'


# Slots ----------------------------------------------------------------------------------------------------------------


@dataclass
class Stay:
    """A request that computes in a slot, from iteration `first` to `last`."""

    request: int
    slot: int
    first: int
    last: int


def stays(iterations: Iterable[Iteration], slots: int) -> Iterator[Stay]:
    """Yield who computed in which slot; who is admitted takes the first that is free."""
    free, slot_of, now = list(range(1, slots + 1)), dict[int, int](), dict[int, Stay]()
    for each in iterations:
        for request in each.plan.pause:
            free = sorted([*free, slot_of.pop(request)])
        for request in each.plan.admit:
            slot_of[request] = free.pop(0)
        for request in (sequence.id for sequence in each.chunks):
            stay = now.get(request)
            if stay is None or (stay.slot, stay.last) != (slot_of[request], each.number - 1):
                stay = now[request] = Stay(request, slot_of[request], each.number, each.number)
                yield stay  # and grows while the request computes on
            stay.last = each.number
        for request in each.finished:
            free = sorted([*free, slot_of.pop(request)])


def slots_panel(title: str, found: list[Stay], slots: int, lengths: list[int], longest: int) -> Panel:
    """Draw stays of requests whose answers have `lengths`, beside slots that compute nothing."""
    end, busy = max(stay.last for stay in found), sum(stay.last - stay.first + 1 for stay in found)
    boxes = [Box(0, slot + 0.06, end, 0.88, "waste") for slot in range(slots)]
    for stay in found:
        kind = length_class(lengths[stay.request - 1], longest)
        words = f"request {stay.request}, slot {stay.slot}, {kind} answer, iterations {stay.first} to {stay.last}"
        boxes.append(Box(stay.first - 1, stay.slot - 0.94, stay.last - stay.first + 1, 0.88, kind, words))
    empty = 1 - busy / (end * slots)
    return Panel(f"{title}: {end:,} iterations, {empty:.0%} of the slots’ time empty", boxes, end, slots, "iteration")


def length_class(tokens: int, longest: int) -> str:
    """ "short", "medium" or "long", as in lesson 04's pictures."""
    return "short" if tokens <= longest / 8 else "medium" if tokens <= longest / 2 else "long"


# Blocks ---------------------------------------------------------------------------------------------------------------


def blocks_panel(title: str, iterations: list[Iteration], num_blocks: int, tokens_per_block: int) -> Panel:
    """Draw who holds how many blocks, the oldest request at the bottom; below, who is paused."""
    boxes, ends, paused_before = [Box(0, 0, len(iterations), num_blocks, "waste")], dict[int, Box](), set[int]()
    strip = num_blocks + 1
    for each in iterations:
        at, lower, again = each.number - 1, num_blocks, set(each.plan.admit) & paused_before
        for sequence in sorted(each.chunks, key=lambda sequence: sequence.id):
            chunk = each.chunks[sequence]
            held = -(-(chunk.num_past + len(chunk.token_ids)) // tokens_per_block)
            lower -= held
            kind = "again" if sequence.id in again else f"shade{sequence.id % 3}"
            last = ends.get(sequence.id)
            if last and (last.x + last.width, last.y, last.height, last.kind) == (at, lower, held, kind):
                last.width += 1
                continue
            words = f"request {sequence.id}, {held} blocks, from iteration {each.number} on"
            ends[sequence.id] = Box(at, lower, 1, held, kind, words)
            boxes.append(ends[sequence.id])
        paused = (set(each.paused) | set(each.plan.pause)) - set(each.plan.admit)
        paused_before |= set(each.plan.pause)
        if paused:
            boxes.append(Box(at, strip, 1, len(paused), "paused", f"{len(paused)} paused in iteration {each.number}"))
    return Panel(title, boxes, len(iterations), num_blocks + 9, "iteration")
