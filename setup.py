"""What a build adds to the package: the course itself, as `inflight/course`, and its page on the package index.

All else is in pyproject.toml.

A clone has the course beside the package (`inflight/paths.py`), so an editable installation copies nothing.
"""

import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# The last two are for a set-up that holds every file against its hash: `python -m inflight.bootstrap --here`.
CARRIED = ("assets", "labs", "notebooks", "solutions", "requirements.txt", "pyproject.toml")
LITTER = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")


def page() -> str:
    """README.md as the package index shows it, with addresses for the clone's own files."""
    address = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    text = re.sub(r"(!\[[^]]*\]\()(?!https:)", rf"\1{address}/raw/HEAD/", Path("README.md").read_text(encoding="utf-8"))
    return re.sub(r"(\]\()(?!https:|#)", rf"\1{address}/blob/HEAD/", text)


class WithCourse(build_py):
    """Builds the package, and the course in it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        course = Path(self.build_lib, "inflight", "course")
        shutil.rmtree(course, ignore_errors=True)  # what an earlier build left there
        course.mkdir(parents=True)
        for name in CARRIED:
            if Path(name).is_dir():
                shutil.copytree(name, course / name, ignore=LITTER)
            else:
                shutil.copy2(name, course / name)


setup(cmdclass={"build_py": WithCourse}, long_description=page(), long_description_content_type="text/markdown")
