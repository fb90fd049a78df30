"""A step of single tokens as a CUDA graph: recorded once, replayed at every step with other numbers in the same places.

One step of a model is some hundreds of small kernels. Started one by one from Python they take longer to start than to
run; a graph starts them all at once. What it reads and writes stays where it was when the graph was recorded: so the
step lies in buffers of a fixed size, and there is one graph for each of a few numbers of sequences. A step with a
number between two of them takes the larger graph, whose surplus sequences read and write a spare block of the cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from inflight.engine.torch.attention import Step

FIRST_SIZES, THEN_EVERY = (1, 2, 4, 8), 8
WARM_UPS = 2  # before a recording: libraries take their workspace, and what is compiled is


def sizes(most: int) -> list[int]:
    """Return the numbers of sequences to record graphs for, the largest first: its memory has room for the others."""
    found = {size for size in (*FIRST_SIZES, *range(FIRST_SIZES[-1], most, THEN_EVERY)) if size < most}
    return sorted(found | {most}, reverse=True)


class StepBuffers:
    """The numbers of a step in one buffer on the device, filled by one copy.

    Parameters
    ----------
    most_sequences, most_blocks : int
        Of a step, and of a sequence.
    spare_block, width : int
        The spare block, which no sequence holds, and the tokens of a block.
    longest : int
        Most tokens of a sequence.
    """

    def __init__(self, most_sequences: int, most_blocks: int, spare_block: int, width: int, longest: int, device: str):
        empty = torch.zeros(most_sequences, 4 + most_blocks, dtype=torch.int32)
        empty[:, 2] = spare_block * width
        empty[:, 3] = 1
        empty[:, 4:] = spare_block
        self._empty = empty.t().contiguous()  # ids, positions, slots, lengths, then the blocks: [4 + blocks, sequences]
        self._host = self._empty.clone()
        if device == "cuda":
            self._host = self._host.pin_memory()  # else the copy would wait for itself
        self._device = self._host.to(device)
        self._begins = torch.arange(most_sequences + 1, dtype=torch.int32, device=device)
        self._longest = longest

    def step(self, size: int) -> Step:
        """Return the step of `size` sequences that lies in the buffer."""
        ids, positions, slots, lengths = (row[:size] for row in self._device[:4])
        tables = self._device[4:, :size].t().contiguous()
        begins, every = self._begins[: size + 1], self._begins[:size].long()
        return Step(ids, positions, slots, begins, lengths, tables, every, [1] * size, self._longest)

    def fill(self, step: Step) -> None:
        """Copy a step from the host into the buffer; surplus sequences get the spare block."""
        number = len(step.counts)
        self._host.copy_(self._empty)
        for row, values in zip(self._host, (step.ids, step.positions, step.slots, step.lengths)):
            row[:number] = values
        self._host[4 : 4 + step.tables.shape[1], :number] = step.tables.t()
        self._device.copy_(self._host, non_blocking=True)


class DecodeGraphs:
    """Graphs of a step of single tokens.

    Parameters
    ----------
    compute : callable
        A step in, a tensor out; all of it on the device, and nothing in it that depends on a tensor's values.
    buffers : StepBuffers
    most_sequences : int
        Of a step that can be run; a larger one has no graph.
    """

    def __init__(self, compute: Callable[[Step], tuple[torch.Tensor, ...]], buffers: StepBuffers, most_sequences: int):
        self._buffers, self.most_sequences = buffers, most_sequences
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...]]] = {}
        pool = torch.cuda.graph_pool_handle()
        for size in sizes(most_sequences):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    compute(buffers.step(size))
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # thread_local: what other threads of this process ask of CUDA meanwhile is no part of it
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                found = compute(buffers.step(size))
            self._graphs[size] = graph, found

    def replay(self, step: Step) -> tuple[torch.Tensor, ...]:
        """Return what `compute` gives for a step on the host, valid until the next replay."""
        number = len(step.counts)
        graph, found = self._graphs[min(size for size in self._graphs if size >= number)]
        self._buffers.fill(step)
        graph.replay()
        return tuple(tensor[:number] for tensor in found)
