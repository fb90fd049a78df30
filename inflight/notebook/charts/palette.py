"""Colours and measures that every picture of the course shares.

The colours are Okabe and Ito's, which are told apart with any kind of colour vision, darkened where they are too light
for a white page: a mark has a contrast of 3 : 1 with white at least, words one of 4.5 : 1. Each means one thing in the
whole course, and none tells it alone: a pattern, a dash, a symbol or words do too.
"""

from typing import Any

PREFILL = "#C77C00"
DECODE = "#0072B2"
WASTE = "#8C8C8C"
WASTE_TEXT = "#6E6E6E"  # WASTE is too light for words
REQUEST = ["#009E73", "#CC79A7", "#2B97C4", "#D55E00", "#938A00"]
EMPTY: dict[str, Any] = {
    "color": "#E4E4E4",
    "line": {"color": WASTE, "width": 1},
}  # marker of a place in which there is nothing
SHADES = (DECODE, "#3D93C6", "#005080")  # for neighbours of one meaning that have to be told apart
ON_SHADES = ("white", "black", "white")  # words on them

# Verdicts of a check, as borders: the words alone say it too. RIGHT_AREA is a light area of RIGHT.
RIGHT, RIGHT_AREA, OPEN, PARTLY, WRONG = REQUEST[0], "#DDF1EA", "#999999", "#E69F00", "#D55E00"
FRAME = "#767676"  # the border of text in place of a widget

INK, GRID, FONT = "#222222", "#DDDDDD", "system-ui, sans-serif"
HEIGHT = 400
MARGIN = {"l": 70, "r": 24, "t": 12, "b": 60}

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star")
# How a mark's pattern is drawn: white and thin on its own colour.
PATTERN = {"fgcolor": "#FFFFFF", "fillmode": "overlay", "size": 8, "solidity": 0.15}


def pattern(shape: str) -> dict:
    """Return one of plotly's patterns, for a marker."""
    return {"shape": shape, **PATTERN}
