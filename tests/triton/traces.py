"""What a server would leave behind, found from outside by the repository that it serves."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from inflight.triton import keeper


def processes_with(text: str) -> list[psutil.Process]:
    """The living processes with `text` in their arguments."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and any(text in argument for argument in process.cmdline()):
                found.append(process)
    return found


@dataclass(frozen=True)
class Traces:
    """Of a server that was started: its keeper's process, `tritonserver`, their folder, and its shared memory."""

    keeper: psutil.Process
    folder: Path
    shm_prefix: str

    @classmethod
    def of(cls, repo: Path) -> Traces | None:
        """Of the server of a repository; None as long as none is started."""
        for process in processes_with(keeper.__file__):
            with contextlib.suppress(psutil.Error):
                arguments = process.cmdline()
                if f"--model-repository={repo}" in arguments:
                    [prefix] = re.findall(r"shm-region-prefix-name=(\S+)", " ".join(arguments))
                    return cls(process, Path(arguments[arguments.index(keeper.__file__) + 1]), prefix)
        return None

    def tritonserver(self) -> psutil.Process:
        [server] = self.keeper.children()
        return server

    def left(self) -> list[str]:
        """What there is of it: processes, whose arguments name its folder, the folder, shared memory."""
        files = [self.folder, *Path("/dev/shm").glob(f"{self.shm_prefix}*")]
        return [*map(str, processes_with(str(self.folder))), *(str(file) for file in files if file.exists())]
