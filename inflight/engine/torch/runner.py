"""One iteration of the model in PyTorch, on a GPU: tokens of several sequences in, one row of logits a sequence out.

    model = TorchModel(read("engine"))
    model.allocate_kv_cache(num_blocks=256)
    rows = model.forward([Chunk(token_ids=[1, 2, 3], num_past=0, blocks=[0])])
    rows[0].argmax()                                                 # the likeliest token; the logits stay on the GPU

Read on: `layers` is the model, `attention` how it finds the keys of a sequence in the blocks of the cache,
`graphs` how the step of single tokens is recorded and replayed. The same code runs on a CPU, for tests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from inflight import schemas
from inflight.engine.config import Chunk
from inflight.engine.config_file import TorchConfig
from inflight.engine.folder import DTYPE_BYTES, EngineInfo
from inflight.engine.torch import attention as torch_attention
from inflight.engine.torch import device as torch_device
from inflight.engine.torch import weights as torch_weights
from inflight.engine.torch.attention import Step
from inflight.engine.torch.graphs import DecodeGraphs, StepBuffers
from inflight.engine.torch.layers import LanguageModel

log = logging.getLogger("inflight.engine.torch.runner")


class Row:
    """Logits of one sequence, which stay on the device until all of them are asked for.

    Parameters
    ----------
    logits : tensor [vocab_size]
    likeliest, highest
        The token with the highest logit, and that logit.
    """

    def __init__(self, logits: torch.Tensor, likeliest: int, highest: float):
        self._logits, self._likeliest, self._highest = logits, likeliest, highest

    def __len__(self) -> int:
        return len(self._logits)

    def argmax(self) -> int:
        return self._likeliest

    def __getitem__(self, token: int) -> float:
        return self._highest if token == self._likeliest else float(self._logits[token])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self._logits.float().cpu().numpy().astype(dtype or np.float32)


class Rows(Sequence):
    """Logits of every sequence of an iteration, valid until the next."""

    def __init__(self, logits: torch.Tensor, best: list[list[float]]):
        self._logits, self._best = logits, best

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, index):
        highest, likeliest = self._best[index]
        return Row(self._logits[index], int(likeliest), highest)

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self._logits.float().cpu().numpy().astype(dtype or np.float32)


class TorchModel:
    """An engine, loaded, with its KV cache; see `inflight.engine.model.Model`.

    Attributes
    ----------
    info : EngineInfo
    block_bytes : int
        Bytes of one KV cache block: keys and values of `tokens_per_block` tokens in every layer.

    Parameters
    ----------
    device : str, optional
        "cuda" or "cpu"; by default what the engine was built for.

    Raises
    ------
    CourseError
        There is no GPU, or none that has room for the weights; the engine is of an architecture that is not computed
        here; its weights are not those of its config.json.
    """

    def __init__(self, info: EngineInfo, device: str | None = None):
        self.info = info
        self._device = device or info.device
        again = "Build it again: `inflight build`."
        schemas.check(TorchConfig, info.pretrained_config, f"The model in the engine {info.folder}", again)
        if self._device == "cuda":
            torch_device.refuse_without_gpu(info)
            torch_device.refuse_without_arithmetic(info)
        build, model = info.build_config, info.pretrained_config
        self._dtype = getattr(torch, build.dtype)
        if "seed" in model:
            log.warning("the weights of %s are random: what it answers means nothing", info.folder)
        with torch.inference_mode(), torch_device.memory_errors(f"the weights of {info.folder}"):
            weights = torch_weights.load(info, self._device)
            self._model = LanguageModel(model, weights, build.max_seq_len, self._dtype)
        self._most_blocks = -(-build.max_seq_len // build.tokens_per_block)
        numbers = 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_size"]
        self.block_bytes = numbers * build.tokens_per_block * DTYPE_BYTES[build.dtype]
        self._graphs: DecodeGraphs | None = None

    @torch.inference_mode()
    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Give the model a cache of `num_blocks` blocks, and one more that is nobody's.

        On a CPU memory is taken as blocks are first written. Zeros and not whatever the memory holds: a masked place
        still enters the sums with weight 0, and 0 times NaN is NaN.

        Raises
        ------
        CourseError
            The GPU has no room for it.
        """
        build, model = self.info.build_config, self.info.pretrained_config
        self._graphs = None
        shape = (
            model["num_hidden_layers"],
            num_blocks + 1,
            build.tokens_per_block,
            2 * model["num_key_value_heads"],
            model["head_size"],
        )
        with torch_device.memory_errors(f"a KV cache of {num_blocks} blocks"):
            self._caches = torch.zeros(shape, dtype=self._dtype, device=self._device)
            self._way = torch_attention.best(
                self._caches[0], model["num_attention_heads"], build.max_batch_size, build.max_seq_len
            )
            if self._device == "cuda":
                self._record(spare_block=num_blocks)

    def _record(self, spare_block: int) -> None:
        """Record the graphs of decoding; without them the engine goes on, and says that it is slow."""
        build = self.info.build_config
        buffers = StepBuffers(
            build.max_batch_size,
            self._most_blocks,
            spare_block,
            build.tokens_per_block,
            build.max_seq_len,
            self._device,
        )
        try:
            self._graphs = DecodeGraphs(self._compute, buffers, build.max_batch_size)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            log.warning("decoding is not recorded as a CUDA graph, and slow for it (%s)", str(error).splitlines()[0])

    @torch.inference_mode()
    def forward(self, chunks: list[Chunk]) -> Rows:
        """Run one iteration.

        Parameters
        ----------
        chunks : list of Chunk
            One a sequence.

        Returns
        -------
        Rows
            Logits that follow the last new token of each chunk; valid until the next call.
        """
        step = step_of(chunks, self.info.build_config.tokens_per_block)
        if self._graphs is not None and step.is_decode:
            logits, best = self._graphs.run(step)
        else:
            logits, best = self._compute(step.to(self._device))
        return Rows(logits, best.tolist())

    def _compute(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [sequences, vocab_size], and of each the highest and its token, [sequences, 2], in float32.

        Together, so that one copy brings both to the host; the number of a token is exact in float32.
        """
        logits = self._model(step, self._caches, self._way(step))
        highest, likeliest = logits.max(-1)
        return logits, torch.stack([highest.float(), likeliest.float()], -1)


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
        counts=counts,
        longest=int(lengths.max()),
    )
