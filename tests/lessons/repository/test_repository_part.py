"""The course's part of lab 02, which later labs serve."""

from inflight.notebook.checks.parts import COURSES_OWN
from inflight.triton import repository
from tests.lessons.repository.test_lab import extend


def test_the_courses_ensemble_is_todays_with_mask_in_it(small_engine, tmp_path):
    """The lesson's `parts` has it as a file; its other files are made of the labs' solutions by `tools.lessons`."""
    made = extend(repository.assemble(tmp_path / "repo", small_engine)) / "ensemble" / "config.pbtxt"
    assert made.read_text() == (COURSES_OWN["repository"] / "ensemble" / "config.pbtxt").read_text()
