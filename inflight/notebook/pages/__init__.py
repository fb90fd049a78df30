"""Notebooks as pages: a learner's copies and their blanks, runs, slides, and what a page shows while it runs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
