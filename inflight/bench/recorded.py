"""Results of benchmarks that are kept in assets/results: for lessons that run on another machine.

table("gpt2", "ratios")                     # of every model and device there is a result of
"""

from __future__ import annotations

import json

import pandas as pd

from inflight.paths import ASSETS

RESULTS = ASSETS / "results"


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
    for file in sorted(RESULTS.glob(f"{benchmark}_*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        settings, machine = result["settings"], result["machine"]
        if gpus_only and settings["device"] == machine["cpu"]:
            continue
        rows = result.get(part, [])
        if part == "ratios":
            rows = [{"ratio": name, **values} for name, values in rows.items()]
        named = {"device": settings["device"], "cores": machine["cores"], "checkpoint": settings["checkpoint"]}
        tables.append(pd.DataFrame([{**named, **row} for row in rows]))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["device", "cores", "checkpoint"])
