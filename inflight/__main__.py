"""`python -m inflight` is the same as the `inflight` command."""

from inflight.cli import main

main()
