"""The runners that compute, for tests of what goes on around them."""

from dataclasses import replace

import pytest

from inflight.engine.executor import Executor
from tests.engines import SMALL_BUILD, build_small, build_tiny


@pytest.fixture(scope="session", params=["openvino", "torch"])  # session: one after the other
def load_real(request, tmp_path_factory):
    """Makes executors over one of the runners that compute: `load_real(config, **build_options)`."""
    build_engine = {"openvino": build_small, "torch": build_tiny}[request.param]
    checkpoint = request.getfixturevalue({"openvino": "small_checkpoint", "torch": "tiny_llama"}[request.param])
    folders = {}

    def load(config=None, **options):
        build = replace(SMALL_BUILD, **options)
        if build not in folders:
            folders[build] = build_engine(checkpoint, tmp_path_factory.mktemp("runner") / "engine", **options)
        return Executor.load(folders[build], config)

    return load
