"""Measures how good the course's GPT-2 is, and keeps the figures with the hashes of what they were measured on.

    python -m tools.course_gpt2_quality

The tests judge the kept figures. That takes no time, and is as good as measuring again for as long as the checkpoint is
the same: they compare the hashes first.
"""

import hashlib
import itertools
import json
import math
from pathlib import Path

from inflight.models import huggingface
from inflight.paths import COURSE
from tools import course_gpt2
from tools.course_gpt2 import FOLDER

RECORD = COURSE / "tests" / "tools" / "course_gpt2_quality.json"
MEASURED_ON = ("config.json", "held_out.txt", "model.safetensors", "tokenizer.json")  # all that the figures depend on
PROMPT = "Programming in C++ is like"
OTHERS = (
    "Batching requests is like",
    "A GPU is",
    "The capital of France is",
    "Once upon a time, there was",
    "To serve many users at once,",
    "The best thing about a dog is",
    "A language model is",
    "Cooking soup is like",
)
ANSWER_TOKENS = 48


def hashes(folder: Path = FOLDER) -> dict[str, str]:
    """SHA-256 of each file that the figures depend on, by its name."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in MEASURED_ON}


def measure(folder: Path = FOLDER) -> dict:
    """What is kept of the checkpoint in `folder`.

    Returns
    -------
    dict
        `sha256`: as of `hashes`. `held_out_tokens`, `held_out_perplexity`: of the held-out texts, each by itself.
        `loss_at_the_beginning`, `loss_at_the_end`: nats a token in a row of 1024, at positions 64 to 319 and 768 to
        1023. `answers`: prompt -> what greedy decoding adds in 48 tokens, or fewer where the text ends.
    """
    import torch
    import transformers

    with huggingface.quiet():
        model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, **huggingface.LOCAL).eval()
    text = transformers.AutoTokenizer.from_pretrained(folder, pad_token=course_gpt2.END, **huggingface.LOCAL)
    held_out = course_gpt2.encoded(text.backend_tokenizer, (folder / "held_out.txt").read_text().splitlines())

    row = list(itertools.chain.from_iterable(held_out))[: course_gpt2.POSITIONS + 1]
    with torch.inference_mode():
        logits = model(torch.tensor([row[:-1]])).logits[0]
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="none")

    prompts = [PROMPT, *OTHERS]
    inputs = text(prompts, return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(**inputs, max_new_tokens=ANSWER_TOKENS, do_sample=False, pad_token_id=0)
    answers = text.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return {
        "sha256": hashes(folder),
        "held_out_tokens": sum(map(len, held_out)),
        "held_out_perplexity": round(math.exp(course_gpt2.held_out_loss(model, held_out)), 3),
        "loss_at_the_beginning": round(losses[64:320].mean().item(), 4),
        "loss_at_the_end": round(losses[768:].mean().item(), 4),
        "answers": dict(zip(prompts, answers, strict=True)),
    }


def main() -> None:
    RECORD.write_text(json.dumps(measure(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{RECORD} is written: run the tests of tests/tools/test_course_gpt2.py, which judge it.")


if __name__ == "__main__":
    main()
