"""Lesson 11: where drafts stop paying, with a slider for the users."""

import ipywidgets
import numpy as np
import pandas as pd

from inflight.lessons.speculation.charts import gains, gains_summary
from inflight.notebook.widgets.dashboard import Frame
from inflight.notebook.widgets.explorable import Explorable


def turning_point(prices: pd.DataFrame, brought: pd.DataFrame) -> Explorable:
    """Speed-up against the length of a draft for any number of users, worked out from prices and counts.

    Parameters
    ----------
    prices : DataFrame
        Milliseconds of an iteration: a row a number of users, a column a number of tokens for each of them.
    brought : DataFrame
        A row a workload and a length of the draft: `workload`, `drafts`, and the tokens that an average iteration
        `brought`.
    """

    def draw(_: pd.DataFrame, users: int) -> Frame:
        by_tokens = [np.interp(users, prices.index, prices[tokens]) for tokens in prices]
        of = 1 + brought["drafts"]  # padding is paid like a draft
        times = brought["brought"] * by_tokens[0] / np.interp(of, prices.columns.astype(float), by_tokens)
        rows = brought.assign(users=users, times=times)
        return Frame(gains(rows), gains_summary(rows))

    slider = ipywidgets.IntSlider(1, int(prices.index.min()), int(prices.index.max()), description="users")
    return Explorable({"users": slider}, draw, "Where drafts stop paying")
