"""The one exception that a learner is meant to read."""


class CourseError(Exception):
    """A problem the user can cause and can fix.

    The message is one sentence or two: what happened, where, and the one thing to do next. The command line prints it
    without a traceback; notebooks show it as any exception.
    """
