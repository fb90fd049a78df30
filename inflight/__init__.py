"""A hands-on course on serving LLMs with Triton. `inflight doctor` says what this machine has for it."""

from inflight.errors import CourseError

__all__ = ["CourseError", "__version__"]
__version__ = "0.1.0"
