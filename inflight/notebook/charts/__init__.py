"""Shared by all pictures of the course; a lesson's own are in its folder of `inflight/lessons`.

A figure function takes DataFrames and returns a plotly figure; `show(figure, alt)` puts it into a notebook as plotly
(JupyterLab, the pages of `make course`) and as words. The notebooks that are read on the web get a static picture
besides when an author builds them.
"""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
