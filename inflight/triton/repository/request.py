"""One table of what a request may ask for, with the names, types and shapes of each field in every contract.

A row of `FIELDS` is a field: its names in the course and the ensemble, in the other models and in OpenAI's protocol,
and the field of the engine's `Request` that it sets. If this engine lacks it, the row says which values ask for nothing
and why others are refused. All else is made from it: the tensors of a served config (`contracts.apply_contract`), the
arrays that a client sends (`arrays_for`), the engine's request that a model makes of them (`engine_request`), and what
OpenAI's server takes. A new field is a new row.

The models' processes import this: nothing is taken here but NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inflight.engine.messages import Guide, Request
from inflight.engine.settings import SamplingConfig
from inflight.errors import CourseError, did_you_mean
from inflight.triton.repository.layout import (
    BASELINE,
    DEFAULT_CONTRACT,
    ENGINE,
    ENSEMBLE,
    LLMAPI,
    OLDEST_CONTRACT,
    PREPROCESSING,
)

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

OPENAI = "openai"  # whose names a field has, too: OpenAI's protocol

ERROR_CODE = "error_code"  # parameter of a request whose client wants the code of an error behind its sentence


def _has_format(given: dict[str, Any]) -> bool:
    return given.get("format") not in (None, {"type": "text"})


# What a message calls a value that asks for nothing ("NAME must be ...") -> the test of such a value.
_ASKS_NOTHING: dict[str, Callable[[NDArray[Any]], bool]] = {
    "anything": lambda values: True,
    "left out": lambda values: not values.any(),  # zeros, blanks, or no values
    "empty": lambda values: not values.size,
    "false": lambda values: not values.any(),
    "0": lambda values: not values.any(),
    "1": lambda values: bool((values == 1).all()),
    "0 or 1": lambda values: bool(((values == 0) | (values == 1)).all()),
    "at most 1": lambda values: bool((values <= 1).all()),
    '"auto" or "none"': lambda values: all(value in ("auto", "none") for value in values.flat),
    "without format": lambda values: not any(isinstance(each, dict) and _has_format(each) for each in values.flat),
    "of one token at most": lambda values: values.size <= len(values),  # of each prompt
}


class Tensor(NamedTuple):
    """What a tensor holds: Triton's name of its type, its shape without the batch, and whether it may be left out."""

    type: str
    dims: tuple[int, ...]
    is_optional: bool = False

    @property
    def or_none(self) -> Tensor:
        return self._replace(is_optional=True)


class Forms(NamedTuple):
    """A field's tensor today, and in the contract of 0.5; None where that one has no such field."""

    today: Tensor
    oldest: Tensor | None


def changed(today: Tensor, oldest: Tensor) -> Forms:
    return Forms(today, oldest)


def new(today: Tensor) -> Forms:
    return Forms(today, None)


class At(NamedTuple):
    """A field's name in a place and, where its tensor is another one there, that."""

    name: str
    forms: Forms | None = None


class Input(NamedTuple):
    """An input of a served model."""

    name: str
    tensor: Tensor


@dataclass(frozen=True)
class Field:
    """A row of the table.

    Attributes
    ----------
    name : str
        As the course and, where it has it, the ensemble call it.
    forms : Forms or None
        Its tensor; None where it is none, but JSON of OpenAI's protocol.
    asks : str
        The field of the engine's `Request` that it sets: a name, or "sampling." or "guide." and a name in
        `SamplingConfig` or `Guide`; else what a model does itself under that name. Blank: accepted and ignored.
    places : dict
        Whose name it is (`ENSEMBLE`, `ENGINE`, `LLMAPI`, `OPENAI`, ...) -> the name there.
    must_be : str
        The value that asks for nothing, a key of `_ASKS_NOTHING`; blank: the field is obeyed.
    why : str
        Why any other value is refused, and what to do instead.
    """

    name: str
    forms: Forms | None
    asks: str
    places: dict[str, At]
    must_be: str = ""
    why: str = ""

    def tensor(self, place: str, contract: str = DEFAULT_CONTRACT) -> Input | None:
        """Return the field as an input of a place, in a contract; None where it is not there."""
        if (at := self.places.get(place)) is None or (forms := at.forms or self.forms) is None:
            return None
        tensor = forms.oldest if contract == OLDEST_CONTRACT else forms.today
        return None if tensor is None else Input(at.name, tensor)

    def refusal(self, place: str, value: Any) -> str | None:
        """Say in a sentence why a value, an array or JSON, is refused; None when it is obeyed or asks for nothing."""
        values = value if isinstance(value, np.ndarray) else np.array([value], object)
        if not self.must_be or _ASKS_NOTHING[self.must_be](values):
            return None
        # A client that asks one of a pipeline's models directly is told the ensemble's name, too.
        called = self.places[place].name if place in (LLMAPI, OPENAI) else self.name
        return f"{called} must be {self.must_be}: {self.why}"


def _row(
    name: str,
    form: Tensor | Forms | None,
    asks: str = "",
    must_be: str = "",
    why: str = "",
    /,
    *,
    llama_python: str | At | None = None,
    **places: str | At,
) -> Field:
    """Make a row of the table; a field without places is the engine's, under its own name.

    The ensemble has what the engine or preprocessing has, unless it says `ensemble=""`.
    """
    if llama_python is not None:
        places[BASELINE] = llama_python
    if places.keys() <= {ENSEMBLE}:
        places[ENGINE] = name
    if places.keys() & {PREPROCESSING, ENGINE}:
        places = {ENSEMBLE: name, **places}
    ats = {place: At(at) if isinstance(at, str) else at for place, at in places.items() if at}
    return Field(name, _forms(form), asks, ats, must_be, why)


def at(name: str, form: Tensor | Forms) -> At:
    return At(name, _forms(form))


def _forms(form: Tensor | Forms | None) -> Forms | None:
    return Forms(form, form) if isinstance(form, Tensor) else form


def _foreign(name: str, form: Tensor | Forms | None, must_be: str, why: str = "", /, **places: str | At) -> Field:
    """Make the row of a field that only outside clients send."""
    return _row(name, form, "", must_be, why, **places)


TEXT, TEXTS = Tensor("STRING", (1,)), Tensor("STRING", (-1,))
INT, INTS, WORDS, TRIPLES = (Tensor("INT32", dims) for dims in ((1,), (-1,), (2, -1), (-1, 3)))
UINT, UINTS = Tensor("UINT32", (1,)), Tensor("UINT32", (-1,))
LONG, LONGS = Tensor("UINT64", (1,)), Tensor("UINT64", (-1,))
FLOAT, FLOATS, LOGITS = (Tensor("FP32", dims) for dims in ((1,), (-1,), (-1, -1)))
HALVES, FLAG = Tensor("FP16", (-1, -1)), Tensor("BOOL", (1,))

_ONE_ANSWER = "one request gets one answer. For others, ask again with another seed."
_NO_LOGITS = "logits are not kept. return_log_probs gives the log-probability of each token."
_NO_FIGURES = "a single request has no figures of its own. /metrics has those of the engine."
_AS_THEY_ARE = "logits are taken as they are. bad_words keeps words out of an answer."
_NO_TUNING = "this engine has no prompt tuning. Put it all into the text."
_NO_LORA = "this engine has no LoRA. Merge the adapter into the checkpoint, and build an engine of that."
_NO_ENCODER = "this engine's models have no encoder. Put all text into text_input."
_NO_DRAFTS = "this engine does not check drafts of others. Leave the draft out."
_TOP_P_STAYS = "top_p is the same for the whole answer. Leave it out."
# How other servers, and older versions, are asked for a form: vLLM, TensorRT-LLM's tensors, SGLang, llama.cpp and TGI,
# Ollama, text-generation-webui, TabbyAPI, Gemini, Anthropic.
_FORMS_ELSEWHERE = (
    "guided_json", "guided_json_object", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern",
    "guided_decoding", "structural_tag", "guided_decoding_guide_type", "guided_decoding_guide", "regex", "ebnf",
    "json_schema", "grammar", "format", "grammar_string", "regex_pattern", "guided_ebnf", "response_schema",
    "response_json_schema", "output_schema", "output_format",
)  # fmt: skip
_THEIR_NAMES = "its names are response_format and structured_outputs."
_LIKELIEST = "this model always takes the likeliest token. Ask the ensemble."

FIELDS: tuple[Field, ...] = (
    # The prompt, and how long its answer may be. Through preprocessing, words become [2, n]: token ids of all words in
    # a row; below them where each word ends, then -1.
    _row("text_input", changed(TEXT, TEXTS), preprocessing="QUERY", llama_python="text_input",
         llmapi=at("text_input", TEXTS)),
    _row("input_ids", INTS, "input_ids", ensemble=""),
    _row("input_lengths", INT, "input_lengths", ensemble=""),
    _row("max_tokens", changed(INT, UINTS), "request_output_len", preprocessing="REQUEST_OUTPUT_LEN",
         tensorrt_llm=at("request_output_len", changed(INT, UINT)), llama_python="max_tokens",
         llmapi=at("sampling_param_max_tokens", INT.or_none), openai="max_tokens"),
    _row("max_completion_tokens", INT.or_none, "request_output_len", openai="max_completion_tokens"),
    _row("bad_words", changed(TEXTS.or_none, TEXTS), "bad_words", preprocessing="BAD_WORDS_DICT",
         tensorrt_llm=at("bad_words_list", WORDS.or_none)),
    _row("stop_words", changed(TEXTS.or_none, TEXTS), "stop_words", preprocessing="STOP_WORDS_DICT",
         tensorrt_llm=at("stop_words_list", WORDS.or_none), llmapi="sampling_param_stop", openai="stop"),
    _row("end_id", changed(INT.or_none, UINT.or_none), "end_id", preprocessing="END_ID", tensorrt_llm="end_id"),
    _row("pad_id", changed(INT.or_none, UINT.or_none), preprocessing="PAD_ID", tensorrt_llm="pad_id"),
    # How its tokens are chosen.
    _row("temperature", FLOAT.or_none, "sampling.temperature", tensorrt_llm="temperature",
         llmapi="sampling_param_temperature", openai="temperature"),
    _row("top_k", changed(INT.or_none, UINT.or_none), "sampling.top_k", tensorrt_llm="runtime_top_k",
         llmapi="sampling_param_top_k", openai="top_k"),
    _row("top_p", FLOAT.or_none, "sampling.top_p", tensorrt_llm="runtime_top_p", llmapi="sampling_param_top_p",
         openai="top_p"),
    _row("repetition_penalty", FLOAT.or_none, "sampling.repetition_penalty", tensorrt_llm="repetition_penalty",
         openai="repetition_penalty"),
    _row("presence_penalty", FLOAT.or_none, "sampling.presence_penalty", tensorrt_llm="presence_penalty",
         llmapi="sampling_param_presence_penalty", openai="presence_penalty"),
    _row("frequency_penalty", FLOAT.or_none, "sampling.frequency_penalty", tensorrt_llm="frequency_penalty",
         llmapi="sampling_param_frequency_penalty", openai="frequency_penalty"),
    _row("min_length", changed(INT.or_none, UINT.or_none), "sampling.min_length", tensorrt_llm="min_length",
         llama_python="min_length", openai="min_tokens"),
    _row("random_seed", LONG.or_none, "sampling.random_seed", tensorrt_llm="random_seed",
         llmapi="sampling_param_seed", openai="seed"),
    # The same two, as later releases call them.
    _row("min_tokens", INT.or_none, "sampling.min_length"),
    _row("seed", LONG.or_none, "sampling.random_seed"),
    # What form the answer must have. OpenAI's protocol says it in several ways, which its server turns into these two.
    _row("guided_decoding_guide_type", new(TEXT.or_none), "guide.kind"),
    _row("guided_decoding_guide", new(TEXT.or_none), "guide.text"),
    _row("cache_salt", new(TEXT.or_none), "cache_salt", tensorrt_llm="cache_salt", openai="cache_salt"),
    _row("response_format", None, "guide", openai="response_format"),
    _row("structured_outputs", None, "guide", openai="structured_outputs"),
    _row("tools", None, "guide", openai="tools"),
    _row("tool_choice", None, "guide", openai="tool_choice"),
    # How the answer comes, and whether another request is to end.
    _row("stream", FLAG.or_none, "streaming", tensorrt_llm="streaming", llmapi="streaming", openai="stream"),
    _row("stop", FLAG.or_none, "stop", ensemble="", tensorrt_llm="stop", llmapi="stop"),
    _row("exclude_input_in_output", FLAG.or_none, "exclude_input_in_output", tensorrt_llm="exclude_input_in_output",
         llmapi="sampling_param_exclude_input_from_output"),
    _row("return_log_probs", FLAG.or_none, "return_log_probs"),
    _row("return_finish_reason", FLAG.or_none, "finish_reason", llmapi="return_finish_reason"),
    _row("return_stop_reason", FLAG.or_none, "stop_reason", llmapi="return_stop_reason"),
    _row("return_cumulative_logprob", FLAG.or_none, "return_log_probs", llmapi="return_cumulative_logprob"),
    # What TensorRT-LLM or OpenAI's protocol has, and this engine has not.
    _foreign("num_return_sequences", new(INT.or_none), "1", _ONE_ANSWER, tensorrt_llm="num_return_sequences",
         llama_python=at("num_return_sequences", INT.or_none), openai="n"),
    _foreign("best_of", INT.or_none, "1", _ONE_ANSWER, llmapi="sampling_param_best_of", openai="best_of"),
    _foreign("beam_width", changed(INT.or_none, UINT.or_none), "1", "this engine decodes one beam."),
    _foreign("length_penalty", FLOAT.or_none, "anything", tensorrt_llm="len_penalty"),
    _foreign("early_stopping", new(FLAG.or_none), "anything", ensemble=""),
    _foreign("beam_search_diversity_rate", new(FLOAT.or_none), "anything", ensemble=""),
    _foreign("runtime_top_p_min", new(FLOAT.or_none), "left out", _TOP_P_STAYS, ensemble=""),
    _foreign("runtime_top_p_decay", new(FLOAT.or_none), "1", _TOP_P_STAYS, ensemble=""),
    _foreign("runtime_top_p_reset_ids", new(INT.or_none), "anything", ensemble=""),
    _foreign("min_p", FLOAT.or_none, "0", "this engine has top_k and top_p. Leave it out.", openai="min_p"),
    _foreign("return_context_logits", new(FLAG.or_none), "false", _NO_LOGITS),
    _foreign("return_generation_logits", new(FLAG.or_none), "false", _NO_LOGITS),
    _foreign("logprobs", INT.or_none, "0",
         "log-probabilities are not given here. tensorrt_llm has return_log_probs.", openai="logprobs"),
    _foreign("top_logprobs", INT.or_none, "0",
         "log-probabilities are not given here. tensorrt_llm has return_log_probs.", openai="top_logprobs"),
    _foreign("return_kv_cache_reuse_stats", new(FLAG.or_none), "false", _NO_FIGURES),
    _foreign("return_perf_metrics", new(FLAG.or_none), "false", _NO_FIGURES, tensorrt_llm="return_perf_metrics",
         llmapi="sampling_param_return_perf_metrics"),
    _foreign("embedding_bias", new(FLOATS.or_none), "left out", _AS_THEY_ARE, ensemble=""),
    _foreign("embedding_bias_words", new(TEXTS.or_none), "left out", _AS_THEY_ARE,
         preprocessing="EMBEDDING_BIAS_WORDS"),
    _foreign("embedding_bias_weights", new(FLOATS.or_none), "left out", _AS_THEY_ARE,
         preprocessing="EMBEDDING_BIAS_WEIGHTS"),
    _foreign("logit_bias", None, "left out", "logits are taken as they are. Leave it out.", openai="logit_bias"),
    _foreign("prompt_embedding_table", new(HALVES.or_none), "left out", _NO_TUNING),
    _foreign("prompt_vocab_size", new(INT.or_none), "left out", _NO_TUNING),
    _foreign("prompt_table_extra_ids", new(LONGS.or_none), "left out", _NO_TUNING, ensemble=""),
    _foreign("prompt_table_extra_id", new(LONG.or_none), "left out", _NO_TUNING, preprocessing="PROMPT_TABLE_EXTRA_ID"),
    _foreign("lora_task_id", new(LONG.or_none), "left out", _NO_LORA),
    _foreign("lora_weights", new(HALVES.or_none), "left out", _NO_LORA),
    _foreign("lora_config", new(TRIPLES.or_none), "left out", _NO_LORA),
    _foreign("lora_id", LONG.or_none, "left out", _NO_LORA, llmapi="lora_id"),
    _foreign("lora_name", TEXT.or_none, "left out", _NO_LORA, llmapi="lora_name"),
    _foreign("lora_path", TEXT.or_none, "left out", _NO_LORA, llmapi="lora_path"),
    _foreign("lora_ckpt_source", TEXT.or_none, "left out", _NO_LORA, llmapi="lora_ckpt_source"),
    _foreign("decoder_text_input", new(TEXT.or_none), "left out", _NO_ENCODER, preprocessing="DECODER_QUERY"),
    _foreign("decoder_input_ids", new(INTS.or_none), "of one token at most", _NO_ENCODER, ensemble=""),
    _foreign("decoder_input_lengths", new(INT.or_none), "at most 1", _NO_ENCODER, ensemble=""),
    _foreign("image_url", TEXTS.or_none, "left out", "this engine's models read text alone. Leave the image out.",
         llmapi="image_url"),
    _foreign("draft_input_ids", new(INTS.or_none), "empty", _NO_DRAFTS, ensemble=""),
    _foreign("draft_logits", new(LOGITS.or_none), "empty", _NO_DRAFTS, ensemble=""),
    _foreign("draft_acceptance_threshold", new(FLOAT.or_none), "anything", ensemble=""),
    _foreign("lookahead_window_size", new(INT.or_none), "left out", _NO_DRAFTS, ensemble=""),
    _foreign("lookahead_ngram_size", new(INT.or_none), "left out", _NO_DRAFTS, ensemble=""),
    _foreign("lookahead_verification_set_size", new(INT.or_none), "left out", _NO_DRAFTS, ensemble=""),
    _foreign("echo", FLAG.or_none, "false", "answers come without their prompt. Leave it out.", openai="echo"),
    _foreign("suffix", TEXT.or_none, "left out", "an answer follows its prompt. Leave it out.", openai="suffix"),
    _foreign("store", FLAG.or_none, "false", "nothing is kept here. Leave it out.", openai="store"),
    *(  # of OpenAI's Responses, and of Anthropic's Messages; beside the form they have what asks for none
        _foreign(name, None, "without format", _THEIR_NAMES, openai=name)
        for name in ("text", "output_config")
    ),
    _foreign("function_call", None, '"auto" or "none"', "its name is tool_choice.", openai="function_call"),
    *(
        _foreign(name, None, "left out", why, openai=name)
        for why, names in (
            ("its name is tools.", ("functions",)),
            (_THEIR_NAMES, _FORMS_ELSEWHERE),
            ("stop takes texts alone. Leave it out.", ("stop_token_ids", "include_stop_str_in_output")),
            (_AS_THEY_ARE, ("bad_words", "allowed_token_ids", "logits_processors", "custom_logit_processor")),
            ("this engine decodes one beam. Leave it out.", ("use_beam_search",)),
            ("every answer is a turn of its own. Leave it out.", ("continue_final_message",)),
            ("log-probabilities are not given here. Leave it out.", ("prompt_logprobs",)),
        )
        for name in names
    ),
    # The baseline, which computes one request after the other.
    *(
        _foreign(name, form, must_be, _LIKELIEST, llama_python=name)
        for name, form, must_be in (
            ("beam_width", changed(INT.or_none, UINT.or_none), "1"),
            ("temperature", FLOAT.or_none, "0 or 1"),
            ("top_k", changed(INT.or_none, UINT.or_none), "0 or 1"),
            ("top_p", FLOAT.or_none, "0 or 1"),
            ("bad_words", TEXTS.or_none, "left out"),
            ("stop_words", TEXTS.or_none, "left out"),
        )
    ),
)  # fmt: skip


@cache
def fields(place: str) -> dict[str, Field]:
    """Return the fields that a place has, by their names there."""
    return {field.places[place].name: field for field in FIELDS if place in field.places}


def engine_request(asked: dict[str, Any]) -> Request:
    """Make the engine's request from values by `Field.asks`; None asks for nothing.

    Raises
    ------
    CourseError
        A field has a value that it may not have.
    """
    given = {name: value for name, value in asked.items() if value is not None}

    def taken(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): given.pop(name) for name in list(given) if name.startswith(prefix)}

    sampling, guide = SamplingConfig(**taken("sampling.")), taken("guide.")
    if guide.get("text") and not guide.get("kind"):
        raise CourseError("guided_decoding_guide comes without its guided_decoding_guide_type: say what it is.")
    return Request(**given, sampling=sampling, guide=Guide(**guide) if guide.get("kind") else None)


# As a client writes it ------------------------------------------------------------------------------------------------


def arrays_for(config: ModelConfig, inputs: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Turn a request's inputs, each a value or a list of values, into arrays of a served model's types and shapes.

    Each has the shape [1, n], or [n] where the model has no batch dimension, with more dimensions of 1 in front where
    the model has them. Words that it requires are blank where none are given.

    Parameters
    ----------
    config : ModelConfig
        As the server has it.
    inputs : dict
        By the course's names, or the model's own.

    Raises
    ------
    CourseError
        The model has no such input, or the input does not take such a value.
    """
    known = {tensor.name: tensor for tensor in config.input}
    inputs = _named(config, inputs)
    if unknown := next((name for name in inputs if name not in known), None):
        raise CourseError(f"There is no option {unknown!r}. {did_you_mean(unknown, known)}")
    return {name: _array(known[name], value, bool(config.max_batch_size)) for name, value in inputs.items()}


def _named(config: ModelConfig, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return inputs by the names of a served model, with those added that it requires."""
    place = LLMAPI if is_llmapi(config) else config.name
    if place == LLMAPI:
        inputs = {"exclude_input_in_output": True, **inputs}  # as the ensemble does unless it is told otherwise
    names = {field.name: own for own, field in fields(place).items()}
    words = ("bad_words", "stop_words")  # which TensorRT-LLM 0.5 requires
    blank = {tensor.name: "" for tensor in config.input if tensor.name in words and not tensor.optional}
    return {**blank, **{names.get(name, name): value for name, value in inputs.items()}}


def is_llmapi(config: ModelConfig) -> bool:
    """Say whether a model is TensorRT-LLM's of today, which takes text itself."""
    return config.name == ENGINE and any(tensor.name == "text_input" for tensor in config.input)


def _array(tensor: Any, value: Any, is_batched: bool) -> NDArray[Any]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    kinds = type(tensor).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    kind = kinds[tensor.data_type].name.removeprefix("TYPE_")
    wanted = np.dtype(_NUMPY.get(kind) or kind.lower())
    try:
        if wanted == np.object_:
            values = [item if isinstance(item, bytes) else item.encode("utf-8") for item in values]
        elif np.issubdtype(wanted, np.integer):
            values = [_whole(item, np.iinfo(wanted)) for item in values]
        return np.array(values, wanted).reshape([1] * (is_batched + len(tensor.dims) - 1) + [-1])
    except (ValueError, OverflowError, AttributeError, TypeError) as error:
        raise CourseError(f"{tensor.name} is {value!r}, which cannot be sent as {kind} ({error}).") from None


_NUMPY = {"STRING": "object", "FP16": "float16", "FP32": "float32", "FP64": "float64"}  # others have NumPy's names


def _whole(value: Any, limits: np.iinfo[Any]) -> int:
    """Refuse what numpy would cut to fit. -1 says "none"; where there are no negative numbers, the largest does."""
    if value == -1 and limits.min == 0:
        return limits.max
    if not isinstance(value, (int, np.integer)) or not limits.min <= value <= limits.max:
        raise ValueError(f"it takes whole numbers from {limits.min} to {limits.max}")
    return int(value)
