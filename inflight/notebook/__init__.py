"""The contents of notebooks: figures, widgets, dashboards, and the checks of a lab."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "blanks",
        "charts",
        "palette",
        "parts",
        "progress",
        "record",
        "session",
        "syllabus",
        "widgets",
        "workspace",
    ],
    submod_attrs={
        "checks": ["check"],
        "comparison": ["told_apart"],
    },
)
