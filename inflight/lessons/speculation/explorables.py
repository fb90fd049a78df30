"""Lesson 11: where drafts stop paying, with sliders for the users, the chance of a guess, and the drafter's price."""

import ipywidgets
import numpy as np
import pandas as pd

from inflight.lessons.speculation.charts import gains, gains_summary
from inflight.notebook.widgets.dashboard import Frame
from inflight.notebook.widgets.explorable import Explorable


def turning_point(prices: pd.DataFrame) -> Explorable:
    """Speed-up against the length of a draft, worked out from prices of iterations.

    The sliders: the number of users; the chance that a guess is right if all before it were; and what the drafter takes
    for a guess, as a share of an iteration of one user without drafts.

    Parameters
    ----------
    prices : DataFrame
        Milliseconds of an iteration: a row a number of users, a column a number of tokens for each of them.
    """

    def draw(users: int, right: float, guess: float) -> Frame:
        drafts = np.arange(int(prices.columns.max()))
        by_tokens = [np.interp(users, prices.index, prices[tokens]) for tokens in prices]
        price_ms = np.interp(1 + drafts, prices.columns.astype(float), by_tokens)
        price_ms += drafts * guess * prices.to_numpy()[0, 0]
        times = np.cumsum(right**drafts) * price_ms[0] / price_ms
        rows = pd.DataFrame({"users": users, "workload": "this drafter", "drafts": drafts, "times": times})
        return Frame(gains(rows), gains_summary(rows))

    sliders = {
        "users": ipywidgets.IntSlider(1, int(prices.index.min()), int(prices.index.max()), description="users"),
        "right": ipywidgets.FloatSlider(0.8, min=0.0, max=0.95, step=0.05, description="chance α"),
        "guess": ipywidgets.FloatSlider(0.0, min=0.0, max=0.5, step=0.05, description="a guess costs"),
    }
    return Explorable(sliders, draw, "Where drafts stop paying")
