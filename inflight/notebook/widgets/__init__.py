"""Controls for notebooks: a prediction, a playground, an editor of a model's config; and what dashboards are made of.

A notebook runs without anybody touching a widget; what goes wrong is shown inside the widget.
"""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
