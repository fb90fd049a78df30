"""What a notebook shows: figures, widgets, dashboards, and the checks of a lab."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "boards",
        "charts",
        "explorables",
        "grid",
        "mine",
        "progress",
        "record",
        "session",
        "syllabus",
        "tuning_board",
        "tuning_report",
        "widgets",
        "workspace",
    ],
    submod_attrs={
        "grading": ["broken_repositories", "check"],
        "leader_board": ["leader_board"],
        "sections": ["catch_up"],
    },
)
