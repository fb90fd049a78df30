"""The tokenizer of a model with random weights: `fetch("random:llama-3-8b")`, to measure speed alone.

Its text means nothing, and says so: whatever the model answers, each token reads as the word "meaningless".
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders

from inflight.paths import ASSETS

TEXT = " meaningless"


def write_tokenizer(vocab_size: int, folder: Path) -> None:
    """Write a tokenizer of `vocab_size` tokens, which cuts text as the course's own GPT-2 does."""
    own = Tokenizer.from_file(str(ASSETS / "checkpoints" / "course-gpt2" / "tokenizer.json"))
    content = json.loads(own.to_str())
    vocabulary = content["model"]["vocab"]
    taken = set(vocabulary.values()) | {token["id"] for token in content["added_tokens"]}
    vocabulary |= {f"[unused{index}]": index for index in range(vocab_size) if index not in taken}
    text = Tokenizer.from_str(json.dumps(content))
    text.decoder = decoders.Replace(Regex(r"[\s\S]+"), TEXT)
    (folder / "tokenizer.json").write_text(text.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        (ASSETS / "checkpoints" / "course-gpt2" / "tokenizer_config.json").read_text(encoding="utf-8"), encoding="utf-8"
    )
