"""Results of benchmarks that are kept, in files named by benchmark, model and device: for lessons on other machines.

save(result, "floor", "llama-3-8b")         # assets/results/floor_llama-3-8b_nvidia-h200.json
table("floor", "ratios")                    # of every model and device there is a result of
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from inflight import files
from inflight.bench import report
from inflight.paths import ASSETS

RESULTS = Path(os.environ.get("INFLIGHT_RESULTS") or ASSETS / "results")


def path(benchmark: str, model: str, device: str) -> Path:
    """File in `RESULTS` for a benchmark, a model and the name of a device."""
    return RESULTS / f"{_safe(benchmark)}_{_safe(model)}_{_safe(device)}.json"


def check(benchmark: str, model: str, device: str) -> None:
    """Refuse, before anything is measured, what could not be kept."""
    report.check_writable(path(benchmark, model, device))


def save(result: dict, benchmark: str, model: str) -> Path:
    """Keep a benchmark's result, named by the device of its sides; one of the same name is replaced.

    Raises
    ------
    CourseError
        The file cannot be written.
    """
    device = " and ".join(dict.fromkeys(result["devices"].values()))
    target = path(benchmark, model, device)
    content = {**result, "settings": {**result["settings"], "checkpoint": model}}
    report.write(target, json.dumps(content, indent=2) + "\n")
    return target


def every(benchmark: str) -> Iterator[tuple[str, str, dict]]:
    """Device, model and result of each that is kept of a benchmark."""
    for file in sorted(RESULTS.glob(f"{_safe(benchmark)}_*.json")):
        text = files.read_text(file, "result", 2**24, "Remove it, or check the repository out again.")
        result = json.loads(text)
        device = " and ".join(dict.fromkeys(result["devices"].values()))
        yield device, result["settings"]["checkpoint"], result


def table(benchmark: str, part: str = "rows", gpus_only: bool = False) -> pd.DataFrame:
    """What is kept of a benchmark, of all devices and models.

    Parameters
    ----------
    part : str
        "rows", another list of rows such as "rows_by_length", or "ratios".
    gpus_only : bool
        Leave out what a CPU computed.

    Returns
    -------
    DataFrame
        `device`, the `cores` of the machine's CPU and `checkpoint`, then the columns of that part; a ratio has `ratio`,
        `median`, `min`, `max`. Empty when nothing is kept.
    """
    tables = []
    for device, model, result in every(benchmark):
        if gpus_only and result["machine"]["cpu"] in result["devices"].values():
            continue
        rows = result.get(part, [])
        if part == "ratios":
            rows = [{"ratio": name, **values} for name, values in rows.items()]
        tables.append(pd.DataFrame(rows))
        tables[-1].insert(0, "device", device)
        tables[-1].insert(1, "cores", result["machine"]["cores"])
        tables[-1].insert(2, "checkpoint", model)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["device", "cores", "checkpoint"])


def reported(name: str) -> pd.DataFrame:
    """The table that another program reported, as it was kept in `RESULTS` under this name."""
    return pd.read_csv(RESULTS / f"{name}.csv")


def _safe(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
