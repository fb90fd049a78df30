"""A server that computes prompts and one that writes answers, a core each, behind the router of vLLM.

with Apart(engine_dir) as apart:
    OpenAI(base_url=apart.url, api_key="none")
"""

import os
from pathlib import Path

from inflight.lessons.replicas.service import Replicas

PREFILLER, DECODER = 0, 1


class Apart(Replicas):
    """Two servers, each with a store of its own; the second takes blocks from the first.

    Parameters
    ----------
    **settings
        Of both engines, as of `inflight serve --set`.
    """

    def __init__(self, engine_dir: str | Path, **settings):
        super().__init__(engine_dir, 2, enable_kv_cache_reuse="true", **settings)

    def store(self, number: int) -> Path:
        """Return the folder of a server's store."""
        return self.folder / f"store{number}"

    def _whom(self) -> list[str]:
        """Each request goes to the prefiller for one token, then whole to the decoder."""
        return ["--vllm-pd-disaggregation", "--prefill", self.servers[PREFILLER], "--decode", self.servers[DECODER]]

    def _settings_of(self, number: int) -> dict[str, object]:
        peer = {"kv_peer_url": self.servers[PREFILLER]} if number == DECODER else {}
        return super()._settings_of(number) | {"kv_store_path": self.store(number)} | peer

    def _serve(self, number: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        try:  # what a thread starts has the thread's cores
            os.sched_setaffinity(0, {cores[number % len(cores)]})
            super()._serve(number)
        finally:
            os.sched_setaffinity(0, cores)
