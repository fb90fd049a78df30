"""What passes through the engine: a request, its responses, the chunks of an iteration, and the iteration's figures.

Plain data: it needs only the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight.engine.settings import SamplingConfig
from inflight.errors import CourseError

GUIDES = ("json", "json_schema", "regex", "ebnf_grammar", "choice", "call_or_form")


@dataclass(frozen=True)
class Guide:
    """The form that an answer must have.

    Parameters
    ----------
    kind : str
        One of TensorRT-LLM's names: json (any object or array), json_schema, regex, ebnf_grammar (in the form of Lark
        or of llama.cpp's GBNF); vLLM's choice, one of the texts of a JSON list; or call_or_form, a JSON list of two
        grammars: of a call or another form, followed where the model's own first token may begin either, and of the
        form alone.
    text : str
        The schema, the expression, ...; blank for json.
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in GUIDES:
            raise CourseError(
                f"{self.kind!r} is no kind of guide; it must be {', '.join(GUIDES[:-1])} or {GUIDES[-1]}."
            )


@dataclass(frozen=True)
class Request:
    """One prompt, and how it is to be answered.

    Parameters
    ----------
    input_ids : list of int
        The prompt, at least one token.
    request_output_len : int
        Most tokens of the answer, at least 1.
    end_id : int, optional
        Token that ends the answer; it is not part of it.
    stop_words, bad_words : list of list of int
        Token sequences that end the answer (and are part of it), and that must not appear in it.
    streaming : bool
        One response a token instead of one in all.
    return_log_probs : bool
        Give each token's log-probability.
    allotted_time_ms : float, optional
        Most time from the request's arrival to its end, its wait included.
    request_id : str
        The client's name for it, used in the iteration log.
    guide : Guide, optional
        The form that its answer must have.
    cache_salt : str
        It finds only blocks that requests of the same salt have left.
    """

    input_ids: list[int]
    request_output_len: int
    end_id: int | None = None
    stop_words: list[list[int]] = field(default_factory=list)
    bad_words: list[list[int]] = field(default_factory=list)
    sampling: SamplingConfig = SamplingConfig()
    streaming: bool = False
    return_log_probs: bool = False
    allotted_time_ms: float | None = None
    request_id: str = ""
    guide: Guide | None = None
    cache_salt: str = ""


@dataclass(frozen=True)
class Response:
    """Tokens of a request: the new ones when it streams, all of them when not.

    `finish_reason` of a final response: "end_id", "length", "stop_words", "stopped", "cancelled", "timed_out" or
    "error". `error_code` is that of a CourseError.
    """

    request_id: int
    token_ids: list[int]
    is_final: bool
    finish_reason: str | None = None
    error: str | None = None
    error_code: str = ""
    log_probs: list[float] = field(default_factory=list)
    cum_log_prob: float = 0.0


@dataclass
class Chunk:
    """The new tokens of one sequence in this iteration.

    Attributes
    ----------
    token_ids : list of int
        A prompt or a part of one, or the token made last with its drafts and its padding behind it.
    num_past : int
        Tokens of the sequence that are in the cache already.
    blocks : list of int
        Its cache blocks, with room for past and new tokens.
    is_context : bool
        Whether it is in the context phase (prefill) rather than the generation phase (decode).
    num_logits : int
        After how many of its last tokens logits are wanted: none where the prompt goes on.
    num_padding : int
        How many of its last tokens only keep the iteration's length.
    """

    token_ids: list[int]
    num_past: int
    blocks: list[int]
    is_context: bool = True
    num_logits: int = 1
    num_padding: int = 0

    @property
    def drafts(self) -> list[int]:
        """Its drafts: the tokens after the first one whose logits are wanted."""
        end = len(self.token_ids)
        return self.token_ids[end + 1 - self.num_logits : end - self.num_padding] if self.num_logits else []


@dataclass(frozen=True)
class IterationStats:
    """One iteration in numbers; `active` = `scheduled` + `waiting` + `paused` requests.

    `timestamp` is seconds since 1970 at the iteration's start; `iteration_ms` its length; `finished` the requests it
    completed. Since the start, `kv_blocks_reused` are the blocks found again in memory; `kv_blocks_stored`,
    `kv_blocks_fetched` and `kv_blocks_taken` those written to the store, read from it, and brought into it from another
    engine. `not_computed` lists [request id, tokens found in memory, in the store, at another engine] of each request
    that begins after them. `rows` are the rows of logits computed; `drafted` counts the generation tokens that were
    guesses, `accepted` those that were right and gave another token. `requests` lists [request id, context tokens,
    generation tokens, KV cache blocks] of each scheduled request, and `client_ids`, in the same order, the names that
    their clients gave them, if any; `paused_ids` are those of the paused ones. `longest_wait` is [request id,
    iterations] of the request that has waited longest for its turn, or None.
    """

    iteration: int
    timestamp: float
    iteration_ms: float = 0.0
    active: int = 0
    scheduled: int = 0
    waiting: int = 0
    paused: int = 0
    context_tokens: int = 0
    generation_tokens: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    kv_blocks_used: int = 0
    kv_blocks_free: int = 0
    kv_blocks_max: int = 0
    kv_blocks_reused: int = 0
    kv_blocks_stored: int = 0
    kv_blocks_fetched: int = 0
    kv_blocks_taken: int = 0
    tokens_per_block: int = 0
    finished: int = 0
    empty_slots: int = 0
    requests: list[list[int]] = field(default_factory=list)
    client_ids: list[str] = field(default_factory=list)
    paused_ids: list[int] = field(default_factory=list)
    not_computed: list[list[int]] = field(default_factory=list)
    longest_wait: list[int] | None = None
