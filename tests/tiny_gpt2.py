"""A tiny GPT-2 of random weights, for tests that need no sense in its words."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import transformers

from inflight import checkpoint
from inflight.checkpoint import as_huggingface
from inflight.checkpoint.tokenizer import load_tokenizer

POSITIONS = 128


def answer(model, prompt: str, length: int) -> list[str]:
    """Pieces of the answer to a prompt, computed in this process; tests/models compares them with transformers'."""
    sequence, pieces = model.sequence(prompt, {"max_tokens": length, "ignore_eos": True}), []
    assert model.join(sequence)
    while not sequence.is_finished:
        model.step([sequence])
        pieces.append(model.last_piece(sequence))
    model.leave(sequence)
    return pieces


def tiny_gpt2(folder: Path, positions: int = POSITIONS) -> Path:
    """Write a Hugging Face folder of one, in bfloat16, with the tokenizer of the course's own model."""
    source = as_huggingface.folder(checkpoint.fetch())
    end_id = load_tokenizer(source).end_id
    config = transformers.GPT2Config(
        n_layer=2,
        n_embd=64,
        n_head=4,
        n_positions=positions,
        initializer_range=0.4,  # larger than usual, or it would repeat its last token for ever
        bos_token_id=end_id,
        eos_token_id=end_id,
        dtype="bfloat16",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(config).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, folder / name)
    return folder
