"""What nbval compares of a notebook that is run again: neither the static pictures, which only an author's build makes,
nor whose home a folder is in.

Notebooks run behind a proxy that is dead: nothing of theirs leaves the machine, and what stays on it asks none.
"""

import os

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

from tools.homes import without_home

DEAD_PROXY = dict.fromkeys(["http_proxy", "https_proxy", "grpc_proxy", "all_proxy"], "http://127.0.0.1:9")


def pytest_configure(config):
    os.environ["COURSE_STRICT"] = "1"  # a check in a notebook that is not passed fails its cell
    compare = IPyNbCell.compare_outputs

    def compare_outputs(self, test, ref, skip_compare=None):
        return compare(self, without_home(test), ref, skip_compare)

    IPyNbCell.compare_outputs = compare_outputs
    start_kernel = IPyNbFile.setup

    def setup(self):
        with pytest.MonkeyPatch.context() as environment:
            for name, address in DEAD_PROXY.items():
                environment.setenv(name, address)
            start_kernel(self)

    IPyNbFile.setup = setup


def pytest_collectstart(collector):
    if hasattr(collector, "skip_compare"):  # a notebook; nbval skips PNG and JPEG by itself
        collector.skip_compare += ("image/svg+xml",)


def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, IPyNbCell):
            item.add_marker(pytest.mark.timeout(0))  # nbval's own limit holds for a cell
