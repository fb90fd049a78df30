"""Colours and measures that every picture of the course shares."""

# Okabe and Ito's colours, told apart with any kind of colour vision; each means one thing in the whole course.
PREFILL = "#E69F00"
DECODE = "#0072B2"
WASTE = "#999999"
WASTE_TEXT = "#6E6E6E"  # WASTE is too light for words
REQUEST = ["#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"]

INK, GRID, FONT = "#222222", "#DDDDDD", "system-ui, sans-serif"
WIDTH, HEIGHT = 760, 420
MARGIN = {"l": 70, "r": 24, "t": 80, "b": 76}
