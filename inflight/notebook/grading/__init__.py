"""Checks a learner's answers in a lab, and hints when they are not right yet.

    check("1.2", bytes_per_token)

A check never stops a lab. With COURSE_STRICT=1 in the environment (how the solutions are built and tested) it raises.

`finding` is what graders say, `checker` what all checks share; the graders are in the folder of each lesson in
`inflight/lessons`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "checker": ["Result", "check", "grades"],
        "finding": ["NOT_YET", "Finding", "Measured"],
    },
)
