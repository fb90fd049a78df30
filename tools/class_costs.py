"""Writes the table of what a class costs into the page for Kubernetes, from what one learner was measured to take.

python -m tools.class_costs
"""

from __future__ import annotations

import math

import yaml

from inflight import classroom
from inflight.classroom import SLOWER
from inflight.paths import ASSETS

FOLDER = ASSETS / "instructor" / "hub" / "kubernetes"
PAGE = FOLDER / "README.md"
BEGIN, END = "<!-- written by `python -m tools.class_costs` -->", "<!-- end of what is written -->"
CLASSES = (10, 30, 100)
HOURS = (2, 4, 8, 16)  # the routes: two hours, half a day, a day, two days
NODE_CORES, NODE_GIB = 8, 32
NODE_RESERVE = 0.9  # what a node has for pods; the rest is the system's


def guaranteed_gib() -> float:
    """Memory that a learner's pod is guaranteed: a node takes no pod for which that is not free."""
    said = yaml.safe_load((FOLDER / "values.yaml").read_text())["singleuser"]["memory"]["guarantee"]
    return float(said.removesuffix("G"))  # JupyterHub's G is 2**30


def per_node(needs: classroom.Needs) -> int:
    """Learners on one node: what its memory carries, and no more than its processors do while all run a cell.

    All at once, a cell then takes `SLOWER` times as long at most.
    """
    by_memory = NODE_GIB * NODE_RESERVE / max(guaranteed_gib(), needs.memory_gib(1))
    by_cores = SLOWER * NODE_CORES / needs.cores_running
    return math.floor(min(by_memory, by_cores))


def table(needs: classroom.Needs) -> str:
    """Nodes, and the hours of cores and memory that they make, for each size of a class and length of a course."""
    head = ["learners", "nodes", "cores", "GiB", *(f"{hours} h: core-hours, GiB-hours" for hours in HOURS)]
    lines = [head, ["---:"] * len(head)]
    for learners in CLASSES:
        nodes = math.ceil(learners / per_node(needs))
        cores, gib = nodes * NODE_CORES, nodes * NODE_GIB
        hours = [f"{cores * each:,}, {gib * each:,}" for each in HOURS]
        lines.append([str(learners), str(nodes), str(cores), str(gib), *hours])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def sentences(needs: classroom.Needs) -> str:
    """What the table is computed from."""
    return (
        f"One learner alone takes up to {needs.memory_gib(1):.2f} GiB of memory, {needs.cores_running:.1f} processors "
        f"while cells run, {needs.cores_of_a_lesson:.2f} on average over the minutes of a lesson, and "
        f"{math.ceil(needs.home_mib)} MiB of disk (measured on {needs.device}). A node of {NODE_CORES} cores and "
        f"{NODE_GIB} GiB carries {per_node(needs)} learners: it has the {guaranteed_gib():g} GiB that each is "
        f"guaranteed, and when all of them run a cell at the same moment, it takes at most {SLOWER} times as long."
    )


def written(page: str, needs: classroom.Needs) -> str:
    """The page with the table as it is now."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{sentences(needs)}\n\n{table(needs)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), classroom.measured()))
