"""What TensorRT-LLM's models have and this engine has not: inputs that are accepted when they ask for nothing.

The backend's own clients send some of them always: those of 0.14 ask for one sequence with every request. Whoever asks
for more is refused with the reason, instead of with Triton's "unexpected inference input". Of the outputs, none is ever
given; their names are there because a client may name them, and then be told why there are none.

Takes nothing but NumPy: the models' processes import it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inflight.triton.repository.layout import BASELINE

ENGINE, BEFORE = "tensorrt_llm", "preprocessing"

# How a value that asks for nothing is called, in "NAME must be ..." -> how it is known.
_ASKS_NOTHING: dict[str, Callable[[np.ndarray], bool]] = {
    "anything": lambda values: True,
    "left out": lambda values: not values.any(),  # zeros, blanks, or no values
    "empty": lambda values: not values.size,
    "false": lambda values: not values.any(),
    "1": lambda values: bool((values == 1).all()),
    "0 or 1": lambda values: bool(((values == 0) | (values == 1)).all()),
    "at most 1": lambda values: bool((values <= 1).all()),
    "of one token at most": lambda values: values.size <= len(values),  # of each prompt
}


@dataclass(frozen=True)
class Foreign:
    """An optional input of a model, for outside clients alone.

    Attributes
    ----------
    ensemble : str
        The ensemble's name for it; blank: the ensemble has none.
    must_be : str
        What asks for nothing; a key of `_ASKS_NOTHING`.
    why : str
        The reason, for who asks for something, and what to do instead.
    is_old : bool
        TensorRT-LLM 0.5 has it too.
    """

    model: str
    name: str
    data_type: str
    dims: tuple[int, ...]
    ensemble: str
    must_be: str
    why: str = ""
    is_old: bool = False

    def refusal(self, values: np.ndarray) -> str | None:
        """Why these values are refused, as a sentence; None when they ask for nothing."""
        if _ASKS_NOTHING[self.must_be](values):
            return None
        return f"{self.ensemble or self.name} must be {self.must_be}: {self.why}"


_ONE_ANSWER = "one request gets one answer. For others, ask again with another random_seed."
_NO_LOGITS = "logits are not kept. return_log_probs gives the log-probability of each token."
_NO_FIGURES = "a single request has no figures of its own. /metrics and the iteration log have those of the engine."
_NO_BIAS = "logits are taken as they are. bad_words keeps words out of an answer."
_NO_TABLE = "this engine has no prompt tuning. Put it all into the text."
_NO_LORA = "this engine has no LoRA. Merge the adapter into the checkpoint, and build an engine of that."
_NO_DECODER = "this engine's models have no encoder. Put all text into text_input."
_NO_DRAFT = "this engine does not check drafts of others. Leave the draft out."
_NO_GUIDE = "this engine does not guide its answers. Ask for the form in the text."
_ONE_TOP_P = "top_p is the same for the whole answer. Leave it out."
_LIKELIEST = "this model always takes the likeliest token. Ask the ensemble."

# One beam: what beams are judged by has no effect.
FOREIGN: tuple[Foreign, ...] = (
    Foreign(ENGINE, "num_return_sequences", "INT32", (1,), "num_return_sequences", "1", _ONE_ANSWER),
    Foreign(ENGINE, "len_penalty", "FP32", (1,), "length_penalty", "anything", is_old=True),
    Foreign(ENGINE, "early_stopping", "BOOL", (1,), "", "anything"),
    Foreign(ENGINE, "beam_search_diversity_rate", "FP32", (1,), "", "anything"),
    Foreign(ENGINE, "runtime_top_p_min", "FP32", (1,), "", "left out", _ONE_TOP_P),
    Foreign(ENGINE, "runtime_top_p_decay", "FP32", (1,), "", "1", _ONE_TOP_P),
    Foreign(ENGINE, "runtime_top_p_reset_ids", "INT32", (1,), "", "anything"),
    Foreign(ENGINE, "return_context_logits", "BOOL", (1,), "return_context_logits", "false", _NO_LOGITS),
    Foreign(ENGINE, "return_generation_logits", "BOOL", (1,), "return_generation_logits", "false", _NO_LOGITS),
    Foreign(ENGINE, "return_kv_cache_reuse_stats", "BOOL", (1,), "return_kv_cache_reuse_stats", "false", _NO_FIGURES),
    Foreign(ENGINE, "return_perf_metrics", "BOOL", (1,), "return_perf_metrics", "false", _NO_FIGURES),
    Foreign(ENGINE, "embedding_bias", "FP32", (-1,), "", "left out", _NO_BIAS),
    Foreign(ENGINE, "prompt_embedding_table", "FP16", (-1, -1), "prompt_embedding_table", "left out", _NO_TABLE),
    Foreign(ENGINE, "prompt_vocab_size", "INT32", (1,), "prompt_vocab_size", "left out", _NO_TABLE),
    Foreign(ENGINE, "prompt_table_extra_ids", "UINT64", (-1,), "", "left out", _NO_TABLE),
    Foreign(ENGINE, "lora_task_id", "UINT64", (1,), "lora_task_id", "left out", _NO_LORA),
    Foreign(ENGINE, "lora_weights", "FP16", (-1, -1), "lora_weights", "left out", _NO_LORA),
    Foreign(ENGINE, "lora_config", "INT32", (-1, 3), "lora_config", "left out", _NO_LORA),
    # What preprocessing gives for a model without an encoder is one token.
    Foreign(ENGINE, "decoder_input_ids", "INT32", (-1,), "", "of one token at most", _NO_DECODER),
    Foreign(ENGINE, "decoder_input_lengths", "INT32", (1,), "", "at most 1", _NO_DECODER),
    Foreign(ENGINE, "draft_input_ids", "INT32", (-1,), "", "empty", _NO_DRAFT),
    Foreign(ENGINE, "draft_logits", "FP32", (-1, -1), "", "empty", _NO_DRAFT),
    Foreign(ENGINE, "draft_acceptance_threshold", "FP32", (1,), "", "anything"),
    Foreign(ENGINE, "guided_decoding_guide_type", "STRING", (1,), "guided_decoding_guide_type", "left out", _NO_GUIDE),
    Foreign(ENGINE, "guided_decoding_guide", "STRING", (1,), "guided_decoding_guide", "left out", _NO_GUIDE),
    Foreign(ENGINE, "lookahead_window_size", "INT32", (1,), "", "left out", _NO_DRAFT),
    Foreign(ENGINE, "lookahead_ngram_size", "INT32", (1,), "", "left out", _NO_DRAFT),
    Foreign(ENGINE, "lookahead_verification_set_size", "INT32", (1,), "", "left out", _NO_DRAFT),
    Foreign(BEFORE, "DECODER_QUERY", "STRING", (1,), "decoder_text_input", "left out", _NO_DECODER),
    Foreign(BEFORE, "EMBEDDING_BIAS_WORDS", "STRING", (-1,), "embedding_bias_words", "left out", _NO_BIAS),
    Foreign(BEFORE, "EMBEDDING_BIAS_WEIGHTS", "FP32", (-1,), "embedding_bias_weights", "left out", _NO_BIAS),
    Foreign(BEFORE, "PROMPT_TABLE_EXTRA_ID", "UINT64", (1,), "prompt_table_extra_id", "left out", _NO_TABLE),
    # For clients that are pointed from the ensemble to the baseline beside it.
    Foreign(BASELINE, "num_return_sequences", "INT32", (1,), "", "1", _ONE_ANSWER, is_old=True),
    Foreign(BASELINE, "beam_width", "INT32", (1,), "", "1", _LIKELIEST, is_old=True),
    Foreign(BASELINE, "temperature", "FP32", (1,), "", "0 or 1", _LIKELIEST, is_old=True),
    Foreign(BASELINE, "top_k", "INT32", (1,), "", "0 or 1", _LIKELIEST, is_old=True),
    Foreign(BASELINE, "top_p", "FP32", (1,), "", "0 or 1", _LIKELIEST, is_old=True),
    Foreign(BASELINE, "bad_words", "STRING", (-1,), "", "left out", _LIKELIEST, is_old=True),
    Foreign(BASELINE, "stop_words", "STRING", (-1,), "", "left out", _LIKELIEST, is_old=True),
)

# Outputs of the engine and of the ensemble: name, type, dims.
FOREIGN_OUTPUTS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("context_logits", "FP32", (-1, -1)),
    ("generation_logits", "FP32", (-1, -1, -1)),
    *(
        (name, "INT32", (1,))
        for name in ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks")
    ),
    *(
        (name, "INT64", (1,))
        for name in ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    ),
    ("acceptance_rate", "FP32", (1,)),
    ("total_accepted_draft_tokens", "INT32", (1,)),
    ("total_draft_tokens", "INT32", (1,)),
)


def of(model: str) -> dict[str, Foreign]:
    """The foreign inputs of a model, by name."""
    return {tensor.name: tensor for tensor in FOREIGN if tensor.model == model}
