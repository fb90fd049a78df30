"""How fast the device reads its memory: what no way of serving can beat."""

from __future__ import annotations

import time

from inflight import tiers

CPU_BUFFER_BYTES, GPU_BUFFER_BYTES = 2**30, 2**32  # much more than any cache holds
READS = 5


def read_bandwidth(threads: int | None = None, device: str | None = None) -> float:
    """Bytes a second that PyTorch reads from a device's memory.

    The sum of a buffer of float32 that is much larger than the caches, as in the STREAM benchmark but reading alone:
    the fastest of `READS` times.

    Parameters
    ----------
    threads : int, optional
        How many read from this machine's memory together; by default as many as PyTorch takes, one a core.
    device : str, optional
        "cpu" or "cuda"; by default that of this machine's tier.
    """
    device = tiers.checked(device)
    import torch

    size = CPU_BUFFER_BYTES
    if device != "cpu":
        size = min(GPU_BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        buffer = torch.ones(size // 4, dtype=torch.float32, device=device)
        buffer.sum().item()
        times = []
        for _ in range(READS):
            started = time.perf_counter()
            buffer.sum().item()  # the item waits for the GPU
            times.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    return size / min(times)
