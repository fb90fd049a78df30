"""A mask for answers that must be one of several texts, in whatever tokens."""

import functools
import json

import numpy as np


@functools.cache
def tokens_of(tokenizer):
    """Each text that is a token -> the ids of the tokens that have it."""
    tokens = {}
    for token in range(tokenizer.vocab_size):
        tokens.setdefault(tokenizer.decode([token]), []).append(token)
    return tokens


class LogitsProcessor:
    def __init__(self, guide, tokenizer):
        self.choices, self.tokenizer = json.loads(guide), tokenizer
        self.tokens = tokens_of(tokenizer)

    def __call__(self, token_ids, logits):
        so_far, allowed = self.tokenizer.decode(token_ids), []
        for choice in self.choices:
            if choice == so_far:
                allowed.append(self.tokenizer.end_id)
            elif choice.startswith(so_far):
                rest = choice[len(so_far) :]
                for length in range(1, len(rest) + 1):
                    allowed += self.tokens.get(rest[:length], [])
        masked = np.full_like(logits, -np.inf)
        masked[allowed] = logits[allowed]
        return masked
