"""Computes one iteration in PyTorch, on a GPU: tokens of several sequences in, rows of logits out.

    model = TorchModel(read("engine"))
    model.allocate_kv_cache(num_blocks=256)
    rows = model.forward([Chunk(token_ids=[1, 2, 3], num_past=0, blocks=[0])])
    rows[0].argmax()                                                 # the likeliest token; the logits stay on the GPU

Read on: `llama` is the model, `attention` how it finds the keys of a sequence in the blocks of the cache,
`graphs` how the step of single tokens is recorded and replayed. The same code runs on a CPU, for tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from inflight.engine.block_format import BlockFormat
from inflight.engine.folder import DTYPE_BYTES, TORCH_WEIGHTS_FILE, EngineInfo, cannot_be_loaded
from inflight.engine.messages import Chunk
from inflight.engine.model import rows_with_logits
from inflight.engine.torch import attention, device
from inflight.engine.torch.attention import Step
from inflight.engine.torch.graphs import DecodeGraphs, StepBuffers
from inflight.engine.torch.llama import Llama
from inflight.errors import reason


class LogitsRows(Sequence[Any]):
    """All logits of an iteration; they stay on the device until one is asked for. Valid until the next iteration.

    Parameters
    ----------
    logits : tensor [rows, vocab_size]
    best : list
        The highest logit of each row, and its token.
    """

    def __init__(self, logits: torch.Tensor, best: list[list[float]]):
        self._logits, self._best = logits, best

    @cached_property
    def on_host(self) -> NDArray[Any]:
        on_host: NDArray[Any] = self._logits.float().cpu().numpy()
        return on_host

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, index: Any) -> Any:
        highest, likeliest = self._best[index]
        return LogitsRow(self, index, int(likeliest), highest)

    def __iter__(self) -> Iterator[LogitsRow]:
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self.on_host.astype(dtype or np.float32)


class LogitsRow:
    """Logits after one token: the highest is known, and for any other all rows are brought to the host."""

    def __init__(self, rows: LogitsRows, index: int, likeliest: int, highest: float):
        self._rows, self._index, self._likeliest, self._highest = rows, index, likeliest, highest

    def __len__(self) -> int:
        return len(self._rows.on_host[self._index])

    def argmax(self) -> int:
        return self._likeliest

    def __getitem__(self, token: int) -> float:
        return self._highest if token == self._likeliest else float(self._rows.on_host[self._index, token])

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        row: NDArray[Any] = self._rows.on_host[self._index]
        return row.astype(dtype or np.float32)


class TorchModel:
    """An engine, loaded, with its KV cache; see `inflight.engine.model.Model`.

    Raises
    ------
    CourseError
        There is no GPU, or none that has room for the weights; the weights cannot be read.
    """

    def __init__(self, info: EngineInfo):
        self.info = info
        if info.device == "cuda":
            device.refuse_without_gpu(info)
        build, model = info.build_config, info.pretrained_config
        try:
            with torch.inference_mode(), device.memory_errors(f"the weights of {info.folder}"):
                weights = load_file(info.folder / TORCH_WEIGHTS_FILE, info.device)
                self._model = Llama(model, weights, build.max_seq_len)
        except (SafetensorError, OSError, KeyError) as error:
            raise cannot_be_loaded(info, reason(error)) from error
        numbers = 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_size"]
        self.block_bytes = numbers * build.tokens_per_block * DTYPE_BYTES[build.dtype]
        self._format = BlockFormat(info)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def allocate_kv_cache(self, num_blocks: int, tokens_of_answer: int = 1) -> None:
        """Give the model a cache of `num_blocks` blocks and a spare one; see `Model`.

        On a CPU memory is taken as blocks are first written. Zeros and not whatever the memory holds: a masked place
        still enters the sums with weight 0, and 0 times NaN is NaN.

        Raises
        ------
        CourseError
            The GPU has no room for it.
        """
        build, model = self.info.build_config, self.info.pretrained_config
        shape = (
            model["num_hidden_layers"],
            num_blocks + 1,
            build.tokens_per_block,
            2 * model["num_key_value_heads"],
            model["head_size"],
        )
        with device.memory_errors(f"a KV cache of {num_blocks} blocks"):
            self._caches = torch.zeros(shape, dtype=getattr(torch, build.dtype), device=self.info.device)
            self._attention = attention.choose(self._caches[0])
            is_cuda = self.info.device == "cuda"
            self._graphs = self._recorded(num_blocks, tokens_of_answer) if is_cuda else None

    def _recorded(self, spare_block: int, tokens_of_answer: int) -> DecodeGraphs:
        build = self.info.build_config
        most = build.max_batch_size * tokens_of_answer
        most_blocks = -(-build.max_seq_len // build.tokens_per_block)
        width, longest = build.tokens_per_block, build.max_seq_len
        buffers = StepBuffers(most, most_blocks, spare_block, width, longest, self.info.device)
        return DecodeGraphs(self._compute, buffers, most)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def forward(self, chunks: list[Chunk]) -> LogitsRows:
        """Run one iteration; see `Model.forward`."""
        step = step_of(list(_answers_apart(chunks)), self.info.build_config.tokens_per_block)
        if self._graphs is not None and step.is_decode and len(step.counts) <= self._graphs.most_sequences:
            logits, best = self._graphs.replay(step)
        else:
            logits, best = self._compute(step.to(self.info.device))
        return LogitsRows(logits, best.tolist())

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def read_blocks(self, blocks: list[int]) -> bytes:
        """Return what is in blocks; see `Model.read_blocks`."""
        return self._format.sealed([self._caches[:, blocks].cpu().view(torch.uint8).numpy()])

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def write_blocks(self, blocks: list[int], data: bytes) -> None:
        """Fill blocks; see `Model.write_blocks`."""
        content = self._format.opened(data, len(blocks) * self.block_bytes)
        given = torch.frombuffer(bytearray(content), dtype=self._caches.dtype).to(self._caches.device)
        self._caches[:, blocks] = given.view(-1, len(blocks), *self._caches.shape[2:])

    def _compute(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [rows, vocab_size], and of each the highest and its token, [rows, 2], in float32.

        Together, so that one copy brings both to the host; the number of a token is exact in float32.
        """
        logits = self._model(step, self._caches, self._attention(step))
        highest, likeliest = logits.max(-1)
        return logits, torch.stack([highest.float(), likeliest.float()], -1)


def _answers_apart(chunks: list[Chunk]) -> Iterable[Chunk]:
    """Chunks, with each token of an answer, drafts among them, as one of its own.

    Attention comes when all keys are in the cache, and each token sees those up to its own place. So drafts make a step
    of single tokens, which is computed in one call and recorded, as the answers' latest tokens are.
    """
    for chunk in chunks:
        if chunk.is_context or len(chunk.token_ids) == 1:
            yield chunk
        else:
            for past, token in enumerate(chunk.token_ids, chunk.num_past):
                yield replace(chunk, token_ids=[token], num_past=past, num_logits=1, num_padding=0)


def step_of(chunks: list[Chunk], width: int) -> Step:
    """The step on the host that computes `chunks`, with blocks of `width` tokens."""
    counts = [len(chunk.token_ids) for chunk in chunks]
    past = np.array([chunk.num_past for chunk in chunks], np.int32)
    lengths = past + np.array(counts, np.int32)
    begins = np.cumsum([0, *counts], dtype=np.int32)
    owners = np.repeat(np.arange(len(chunks)), counts)
    positions = np.arange(begins[-1], dtype=np.int32) - begins[owners] + past[owners]
    used = -(-lengths // width)
    tables = np.zeros((len(chunks), used.max()), np.int32)
    for row, chunk, number in zip(tables, chunks, used):
        row[:number] = chunk.blocks[:number]
    slots = tables[owners, positions // width] * width + positions % width
    ids = np.concatenate([chunk.token_ids for chunk in chunks]).astype(np.int32)
    return Step(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        begins=torch.from_numpy(begins),
        lengths=torch.from_numpy(lengths),
        tables=torch.from_numpy(tables),
        logits_after=torch.from_numpy(rows_with_logits(chunks, begins[1:])),
        counts=counts,
        longest=int(lengths.max()),
    )
