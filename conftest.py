"""What nbval compares of a notebook that is run again: not the static pictures, which only an author's build makes."""


def pytest_collectstart(collector):
    if hasattr(collector, "skip_compare"):  # a notebook; nbval skips PNG and JPEG by itself
        collector.skip_compare += ("image/svg+xml",)
