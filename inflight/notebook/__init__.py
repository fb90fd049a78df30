"""The contents of notebooks: figures, widgets, dashboards, and the checks of a lab. Its names are in `__init__.pyi`."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
