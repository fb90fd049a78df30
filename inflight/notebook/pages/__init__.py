"""Notebooks as pages: a learner's copies and their blanks, runs, slides, and what a page shows while it runs."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
