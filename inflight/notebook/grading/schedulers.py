"""What the checks of labs 04 and 05 share: both judge a scheduler that a learner wrote into a file."""

import ast
from pathlib import Path

from inflight.engine.scheduler import Now, Plan, tokens_to_compute

MOST_SOURCE = 100_000  # characters of a scheduler that is read for what it takes from the package
PACKAGES_OWN = ("StaticBatching", "GuaranteedNoEvict", "MaxUtilization", "built_in", "with_promised_blocks")


class OneAtATime:
    """What is left when nothing is decided: the oldest request alone."""

    def schedule(self, now: Now) -> Plan:
        first = [*now.running, *now.waiting][:1]
        admit = [] if now.running else [request.id for request in first]
        return Plan(admit=admit, compute=tokens_to_compute(now, first))


def taken_from_package(path: Path) -> str:
    """Name of a scheduler, or of the half of one, that a file takes from the package; blank when it takes none.

    Raises
    ------
    OSError, ValueError, SyntaxError
        The file cannot be read, or is not Python.
    """
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")[:MOST_SOURCE]))
    names = {
        name
        for node in nodes
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else [node.attr]
            if isinstance(node, ast.Attribute)
            else []
        )
    }
    return next((name for name in PACKAGES_OWN if name in names), "")
