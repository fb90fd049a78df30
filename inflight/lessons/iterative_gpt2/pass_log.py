"""The forward passes that the lecture's models note: what went through each."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd


def passes(path: str | Path, start: int = 0) -> pd.DataFrame:
    """Read the log from byte `start` on: one row a text and pass.

    Returns
    -------
    DataFrame
        `pass`, from 1; `stream`, from 1 in the order of their first pass; `tokens` of it that went through the model.
    """
    with open(path, "rb") as log:
        log.seek(start)
        lines = map(json.loads, log.read().splitlines())
    rows = [(number, text, tokens) for number, line in enumerate(lines, 1) for text, tokens in line.items()]
    table = pd.DataFrame(rows, columns=["pass", "stream", "tokens"])
    return table.assign(stream=pd.factorize(table["stream"])[0] + 1)
