"""The one exception that a learner is meant to read."""


class CourseError(Exception):
    """A problem the user can cause and can fix.

    The message is one sentence or two: what happened, where, and the one thing to do next. The command line and
    notebooks show it without a traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython prints of it."""
        return [f"{type(self).__name__}: {self}"]
