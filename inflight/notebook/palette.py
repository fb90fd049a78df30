"""Colours and measures that every picture of the course shares.

The colours are Okabe and Ito's, which are told apart with any kind of colour vision, darkened where they are too light
for a white page: a mark has a contrast of 3 : 1 with white at least, words one of 4.5 : 1. Each means one thing in the
whole course, and none tells it alone: a pattern, a dash, a symbol or words do too.
"""

from itertools import cycle, islice

PREFILL = "#C77C00"
DECODE = "#0072B2"
WASTE = "#8C8C8C"
WASTE_TEXT = "#6E6E6E"  # WASTE is too light for words
REQUEST = ["#009E73", "#CC79A7", "#2B97C4", "#D55E00", "#938A00"]
EMPTY = {"color": "#E4E4E4", "line": {"color": WASTE, "width": 1}}  # marker of a place in which there is nothing
SHADES = (DECODE, "#3D93C6", "#005080")  # of one meaning: neighbours that have to be told apart

INK, GRID, FONT = "#222222", "#DDDDDD", "system-ui, sans-serif"
HEIGHT = 400
MARGIN = {"l": 70, "r": 24, "t": 12, "b": 60}

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star")
PATTERN = {"fgcolor": "#FFFFFF", "fillmode": "overlay", "size": 8, "solidity": 0.15}
_PATTERNS = ("", "/", "x", ".", "-", "\\", "+", "|")


def contrast(one: str, other: str) -> float:
    """How well two colours ("#RRGGBB") are told apart, from 1 to 21: the contrast ratio of WCAG 2."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def text_on(colour: str) -> str:
    """White or black, whichever reads better on a mark of `colour`."""
    return max("#FFFFFF", "#000000", key=lambda text: contrast(text, colour))


def patterns(number: int) -> list[dict]:
    """`pattern` of the markers of so many kinds of bars, the first of them plain."""
    return [pattern(shape) if shape else {} for shape in islice(cycle(_PATTERNS), number)]


def pattern(shape: str) -> dict:
    """One of plotly's patterns, white and thin on the marker's own colour."""
    return {"shape": shape, **PATTERN}


def _luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
