"""When the next guest may sit down: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["run_files"],
    submod_attrs={
        "dashboard": ["board"],
        "charts": [
            "slot_map",
            "slot_map_summary",
            "who_pays",
            "who_pays_summary",
        ],
        "explorables": ["simulated_slots"],
        "full_queue": ["run_from_full_queue"],
        "simulate": ["waits"],
    },
)
