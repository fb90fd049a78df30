"""Counts what goes through a GPT-2 model's network while the model is played as Triton would."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.models import gpt2_network
from inflight.notebook.checks.simulate_triton import Names, SimulatedStream, Triton
from inflight.paths import ASSETS

CHECKPOINT = ASSETS / "checkpoints" / "course-gpt2"
NAMES = Names("text_input", "number", "start", "ready", "text_output", piece="token")


@dataclass
class Computed:
    """The counts of a model for all streams."""

    texts: list[str]  # the answer of each stream
    computed: int = 0  # tokens that went through the network
    passes: int = 0  # its forward passes
    together: int = 0  # the most texts in one of them
    served: list[int] = field(default_factory=list)  # of each call in which a text waited: those that got a token
    overtaken: int = 0  # calls in which a text had begun, and one that came before it waited
    kept: int = 0  # what the model keeps when all have been served: its cache, above all
    grown: int = 0  # by how much what the model keeps grew while it served the same streams once more


def with_model(path: str | Path, streams: Sequence[SimulatedStream], slots: int, again: bool = False) -> Computed:
    """The answers of the model in a file; what it raises, and what `Triton` does, comes through.

    `grown` is counted where the streams are played `again`.
    """
    from inflight.lessons.iterative_gpt2.lab_model import Gpt2Model  # it imports PyTorch

    result, likeliest, execute = Computed([]), gpt2_network.Network.likeliest, Gpt2Model.execute

    def counted(network, ids, positions, last, attend):
        result.computed += len(ids)
        result.passes += 1
        result.together = max(result.together, len(last))
        return likeliest(network, ids, positions, last, attend)

    def noted(model, requests):
        execute(model, requests)
        here = [request for request in requests if request.stream]
        got = [len(request.stream.pieces) > request.num_before for request in here]
        if any(not has and not request.had_left for has, request in zip(got, here)):
            result.served.append(sum(got))
        begun = [each.stream.number for each in here if each.stream.pieces]
        waiting = [each.stream.number for each in here if not each.stream.pieces and not each.had_left]
        result.overtaken += any(before < after for before in waiting for after in begun)

    triton = Triton(path, NAMES, slots, checkpoint_dir=str(CHECKPOINT), log=os.devnull)
    with (
        mock.patch.object(gpt2_network.Network, "likeliest", counted),  # wherever the model has put its network
        mock.patch.object(Gpt2Model, "execute", noted),
    ):
        result.texts = ["".join(stream.pieces) for stream in triton.run(streams).streams]
    result.kept = triton.kept
    result.grown = triton.growth(streams) if again else 0
    return result


def without_a_cache(streams: Sequence[SimulatedStream]) -> Computed:
    """The answers, each text alone and whole at every pass, and the tokens that this computes."""
    from torch.nn.functional import scaled_dot_product_attention

    def attend(_layer, projected):
        return scaled_dot_product_attention(*projected.permute(1, 2, 0, 3), is_causal=True).transpose(0, 1)

    network, tokenizer, result = (
        gpt2_network.load(str(CHECKPOINT)),
        load_tokenizer(CHECKPOINT),
        Computed([], together=1),
    )
    for stream in streams:
        ids = tokenizer.encode(stream.text)
        start = len(ids)
        for _ in range(stream.wanted if stream.leaves_after is None else stream.leaves_after):
            result.computed += len(ids)
            result.passes += 1
            ids += network.next_tokens(ids, list(range(len(ids))), [len(ids) - 1], attend)
        result.texts.append("".join(tokenizer.decode([token], skip_special_tokens=False) for token in ids[start:]))
    return result
