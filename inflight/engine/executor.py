"""Requests in, tokens out, one iteration at a time: the scheduling of an LLM engine.

    with Executor("engine", ExecutorConfig()) as executor:
        response = executor.generate(Request(input_ids=[1, 2, 3], request_output_len=16))
        print(response.token_ids)

Read `Executor.step` first: it is the whole engine in five lines. An iteration admits waiting requests to free seats,
picks the tokens to compute, runs the model once, hands each request its token, and writes a line of statistics.

Who may sit down when is `gpt_model_type`: with "V1" (static batching) a batch forms when all seats are empty and its
answers are given when the last of it has finished; with "inflight_fused_batching" requests join and leave at every
iteration. What happens when KV cache blocks are short is `batch_scheduler_policy`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil

from inflight.engine.config import (
    Chunk,
    ExecutorConfig,
    IterationStats,
    Request,
    Response,
)
from inflight.engine.kv_cache import BlockManager
from inflight.engine.openvino_runner import PagedModel
from inflight.engine.sampling import Sampler, log_probability
from inflight.errors import CourseError

log = logging.getLogger("inflight.engine.executor")


class _Sequence:
    """A request on its way through the engine."""

    def __init__(self, request_id: int, request: Request, on_response: Callable[[Response], None]):
        self.id = request_id
        self.request = request
        self.on_response = on_response
        self.sampler = Sampler(request.sampling, request.end_id, request.bad_words)
        self.answer: list[int] = []
        self.log_probs: list[float] = []
        self.num_sent = 0
        self.num_cached = 0
        self.blocks: list[int] = []
        self.finish_reason: str | None = None
        self.asked_to_end: str | None = None  # "stopped" or "cancelled", set by another thread

    @property
    def tokens(self) -> list[int]:
        return self.request.input_ids + self.answer

    @property
    def num_tokens(self) -> int:
        return len(self.request.input_ids) + len(self.answer)

    @property
    def max_num_tokens(self) -> int:
        return len(self.request.input_ids) + self.request.request_output_len

    @property
    def num_pending(self) -> int:
        """Tokens that are known and not in the cache: the whole prompt at first, then one."""
        return self.num_tokens - self.num_cached

    def is_finished_by(self, token: int) -> str | None:
        """Why `token` ends the answer, or None. The end token itself does not become part of the answer."""
        if token == self.request.end_id:
            return "end_id"
        self.answer.append(token)
        if any(self.answer[-len(word) :] == word for word in self.request.stop_words):
            return "stop_words"
        return "length" if len(self.answer) >= self.request.request_output_len else None


class Executor:
    """Runs an engine in a thread of its own. Every method may be called from any thread.

    Parameters
    ----------
    engine_dir : path
    config : ExecutorConfig, optional

    Raises
    ------
    CourseError
        The engine cannot be loaded, or its KV cache would be too small for one longest request.
    """

    def __init__(self, engine_dir: str | Path, config: ExecutorConfig | None = None):
        self.config = config or ExecutorConfig()
        self.model = PagedModel(engine_dir)
        self.build_config = self.model.info.build_config
        if (
            self.build_config.max_num_tokens < self.build_config.max_input_len
            and not self.config.enable_chunked_context
        ):
            raise CourseError(
                f"A prompt of max_input_len ({self.build_config.max_input_len}) tokens does not fit into an "
                f"iteration of max_num_tokens ({self.build_config.max_num_tokens}): set "
                "enable_chunked_context, or build the engine with a larger max_num_tokens."
            )
        self.blocks = BlockManager(self._num_blocks(), self.build_config.tokens_per_block)
        self.model.allocate_kv_cache(self.blocks.num_blocks)
        self.iteration_stats: deque[IterationStats] = deque(maxlen=1000)

        self._sequences: dict[int, _Sequence] = {}  # every unfinished request
        self._waiting: deque[_Sequence] = deque()
        self._paused: deque[_Sequence] = deque()
        self._seated: list[_Sequence] = []
        self._outbox: list[tuple[_Sequence, Response]] = []
        self._iteration = 0
        self._next_id = 1
        self._closing = False
        self._work = threading.Condition()  # guards the fields above; the loop alone changes _seated, _paused, _outbox
        self._log_file = self._open_log()
        self._thread = threading.Thread(target=self._loop, name="executor", daemon=True)
        self._thread.start()

    # The loop ---------------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._sequences or self._closing)
                if self._closing:
                    return
            try:
                self.step()
            except Exception as error:  # whatever the model raises: its requests fail, the engine goes on
                log.exception("iteration %d failed", self._iteration)
                self._fail_all(f"iteration {self._iteration} failed: {error}")

    def step(self) -> None:
        """One iteration."""
        started = time.time(), time.perf_counter()
        self._admit()
        chunks = self._schedule()
        logits = self.model.forward(list(chunks.values())) if chunks else []
        num_finished = self._give_tokens(chunks, logits)
        if chunks:
            self._record(started, chunks, num_finished)
        self._deliver()  # last, so that who has an answer finds its iterations in the log

    def _admit(self) -> None:
        """Let requests sit down: paused ones first, then the waiting ones in their order."""
        with self._work:
            ending = [sequence for sequence in self._sequences.values() if sequence.asked_to_end]
        for sequence in ending:
            self._finish(sequence, sequence.asked_to_end)
        if self.config.gpt_model_type == "V1" and self._seated:
            return
        with self._work:
            for line in (self._paused, self._waiting):
                while line and len(self._seated) < self.build_config.max_batch_size and self._fits(line[0]):
                    sequence = line.popleft()
                    if self.config.enable_kv_cache_reuse:
                        sequence.num_cached = self.blocks.find(sequence.blocks, sequence.tokens)
                    # Under max_utilization a seat is worth its blocks only at once, before the next in line is judged.
                    self.blocks.grow(sequence.blocks, sequence.num_tokens)
                    self._seated.append(sequence)
                if line:
                    return

    def _fits(self, sequence: _Sequence) -> bool:
        if self.config.batch_scheduler_policy == "max_utilization" and self.config.gpt_model_type != "V1":
            return self.blocks.can_grow(sequence.blocks, sequence.num_tokens)
        promised = sum(self.blocks.blocks_for(other.max_num_tokens) for other in self._seated)
        return promised + self.blocks.blocks_for(sequence.max_num_tokens) <= self.blocks.num_blocks

    def _schedule(self) -> dict[_Sequence, Chunk]:
        """What to compute now: one token of each answer, then as much of new prompts as `max_num_tokens` allows."""
        chunks, budget = {}, self.build_config.max_num_tokens
        for sequence in sorted(self._seated, key=lambda s: s.num_pending > 1):  # stable: answers, then prompts
            if sequence.finish_reason or sequence not in self._seated:
                continue
            num_new = sequence.num_pending
            if num_new > budget:
                if not self.config.enable_chunked_context or budget == 0:
                    continue
                num_new = budget
            if not self._has_blocks(sequence, chunks):
                continue
            budget -= num_new
            new_ids = sequence.tokens[sequence.num_cached : sequence.num_cached + num_new]
            chunks[sequence] = Chunk(new_ids, sequence.num_cached, sequence.blocks)
        return chunks

    def _has_blocks(self, sequence: _Sequence, chunks: dict[_Sequence, Chunk]) -> bool:
        """Get blocks for all tokens of `sequence`, pausing the youngest requests if none are free."""
        while not self.blocks.can_grow(sequence.blocks, sequence.num_tokens):
            youngest = self._seated[-1]
            self._seated.remove(youngest)
            self.blocks.release(youngest.blocks)
            youngest.num_cached = 0
            self._paused.appendleft(youngest)
            chunks.pop(youngest, None)
            if youngest is sequence:
                return False
        self.blocks.grow(sequence.blocks, sequence.num_tokens)
        return True

    def _give_tokens(self, chunks: dict[_Sequence, Chunk], logits) -> int:
        """Choose the next token of each request whose known tokens are all computed; return how many finished."""
        num_finished = 0
        for (sequence, chunk), row in zip(chunks.items(), logits):
            sequence.num_cached += len(chunk.token_ids)
            if self.config.enable_kv_cache_reuse:
                self.blocks.keep(sequence.blocks, sequence.tokens[: sequence.num_cached])
            if sequence.num_pending:
                continue
            token = sequence.sampler.choose(row, sequence.request.input_ids, sequence.answer)
            reason = sequence.is_finished_by(token)
            if sequence.request.return_log_probs and reason != "end_id":
                sequence.log_probs.append(log_probability(row, token))
            if reason:
                num_finished += 1
                self._finish(sequence, reason)
            elif sequence.request.streaming:
                self._respond(sequence)
        return num_finished

    def _finish(self, sequence: _Sequence, reason: str) -> None:
        """Take `sequence` out of the engine and answer it. With V1 the answer waits for the whole batch."""
        sequence.finish_reason = reason
        self.blocks.release(sequence.blocks)
        with self._work:
            del self._sequences[sequence.id]
            for line in (self._waiting, self._paused):
                if sequence in line:
                    line.remove(sequence)
        if sequence not in self._seated:
            self._respond(sequence)
        elif self.config.gpt_model_type != "V1":
            self._seated.remove(sequence)
            self._respond(sequence)
        elif all(other.finish_reason for other in self._seated):
            batch, self._seated = self._seated, []
            for other in batch:
                self._respond(other)

    def _respond(self, sequence: _Sequence, error: str | None = None) -> None:
        """Put the tokens that were not handed over yet into the outbox."""
        cancelled = sequence.finish_reason == "cancelled"
        new = [] if cancelled else sequence.answer[sequence.num_sent :]
        response = Response(
            request_id=sequence.id,
            token_ids=new,
            is_final=sequence.finish_reason is not None,
            finish_reason=sequence.finish_reason,
            error=error,
            log_probs=sequence.log_probs[sequence.num_sent :],
            cum_log_prob=sum(sequence.log_probs),
            preceding_ids=sequence.answer[max(0, sequence.num_sent - 8) : sequence.num_sent],
        )
        sequence.num_sent = len(sequence.answer)
        self._outbox.append((sequence, response))

    def _deliver(self) -> None:
        """Hand over what is in the outbox."""
        outbox, self._outbox = self._outbox, []
        for sequence, response in outbox:
            try:
                sequence.on_response(response)
            except Exception:  # the receiver's trouble must not stop the others
                log.exception("response of request %d could not be delivered", sequence.id)
                sequence.asked_to_end = "cancelled"

    def _fail_all(self, message: str) -> None:
        with self._work:
            failed = list(self._sequences.values()) + [s for s in self._seated if s.finish_reason]
            for sequence in failed:
                self.blocks.release(sequence.blocks)
            self._sequences.clear()
            self._waiting.clear()
            self._paused.clear()
            self._seated.clear()
        for sequence in failed:
            sequence.finish_reason = "error"
            self._respond(sequence, error=message)
        self._deliver()

    # What others call -------------------------------------------------------------------------------------------------

    def enqueue_request(self, request: Request, on_response: Callable[[Response], None]) -> int:
        """Add a request; `on_response` is called from the engine's thread with each of its responses.

        Returns
        -------
        int
            Request id, for `stop_request` and `cancel_request`.

        Raises
        ------
        CourseError
            The request breaks a limit of the engine, the queue is full, or the executor is closed.
        """
        request = self._checked(request)
        with self._work:
            if self._closing:
                raise CourseError("The engine is shut down and takes no more requests.")
            if self.config.max_queue_size and len(self._waiting) >= self.config.max_queue_size:
                raise CourseError(f"The queue is full: {len(self._waiting)} requests wait (max_queue_size). Try later.")
            sequence = _Sequence(self._next_id, request, on_response)
            self._next_id += 1
            self._sequences[sequence.id] = sequence
            self._waiting.append(sequence)
            self._work.notify()
            return sequence.id

    def stop_request(self, request_id: int) -> None:
        """End a request after the running iteration; it is answered with its tokens so far. Unknown ids are ignored."""
        self._ask_to_end(request_id, "stopped")

    def cancel_request(self, request_id: int) -> None:
        """End a request after the running iteration; its final response is empty. Unknown ids are ignored."""
        self._ask_to_end(request_id, "cancelled")

    def _ask_to_end(self, request_id: int, reason: str) -> None:
        with self._work:
            if request_id in self._sequences:
                self._sequences[request_id].asked_to_end = reason

    def generate(self, request: Request) -> Response:
        """Run one request to its end; all tokens in one response.

        Raises
        ------
        CourseError
            As `enqueue_request`, and when the engine failed on the request.
        """
        return self.generate_all([request])[0]

    def generate_all(self, requests: list[Request]) -> list[Response]:
        """Run requests side by side to their end; responses in the order of the requests."""
        parts: list[list[Response]] = [[] for _ in requests]
        done = threading.Semaphore(0)

        def collect(index: int) -> Callable[[Response], None]:
            def on_response(response: Response) -> None:
                parts[index].append(response)
                if response.is_final:
                    done.release()

            return on_response

        ids = []
        try:
            for index, request in enumerate(requests):
                ids.append(self.enqueue_request(request, collect(index)))
            for _ in requests:
                done.acquire()
        except BaseException:  # an interrupt or a refused request: leave nothing running
            for request_id in ids:
                self.cancel_request(request_id)
            raise
        for responses in parts:
            if responses[-1].error:
                raise CourseError(responses[-1].error)
        return [_joined(responses) for responses in parts]

    def shutdown(self) -> None:
        """Stop after the running iteration; unfinished requests get an error. May be called twice."""
        with self._work:
            already, self._closing = self._closing, True
            self._work.notify()
        if not already:
            self._thread.join()
            self._fail_all("the engine was shut down")
            if self._log_file:
                self._log_file.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_) -> None:
        self.shutdown()

    # Limits and statistics --------------------------------------------------------------------------------------------

    def _checked(self, request: Request) -> Request:
        limits, length = self.build_config, len(request.input_ids)
        vocab_size = self.model.info.pretrained_config["vocab_size"]
        if length == 0:
            raise CourseError("The prompt is empty: it needs at least one token.")
        if request.request_output_len < 1:
            raise CourseError(
                f"request_output_len (max_tokens) is {request.request_output_len}; it must be at least 1."
            )
        if length > limits.max_input_len:
            raise CourseError(
                f"Prompt length ({length}) exceeds maximum input length ({limits.max_input_len}): shorten "
                "the prompt, or build the engine with a larger max_input_len."
            )
        for name, ids in (
            ("input_ids", request.input_ids),
            ("stop_words_list", sum(request.stop_words, [])),
            ("bad_words_list", sum(request.bad_words, [])),
        ):
            wrong = [token for token in ids if not 0 <= token < vocab_size]
            if wrong:
                raise CourseError(
                    f"{name} has the token id {wrong[0]}; this model's ids go from 0 to {vocab_size - 1}."
                )
        if request.streaming and self.config.gpt_model_type == "V1":
            raise CourseError(
                "Static batching (gpt_model_type V1) gives whole answers and cannot stream: leave out "
                "streaming, or use inflight_fused_batching."
            )
        room = limits.max_seq_len - length
        if request.request_output_len > room:
            log.warning(
                "prompt (%d) + request_output_len (%d) exceed max_seq_len (%d): at most %d tokens are made",
                length,
                request.request_output_len,
                limits.max_seq_len,
                room,
            )
            request = Request(**{**_fields(request), "request_output_len": room})
        return request

    def _num_blocks(self) -> int:
        """KV cache blocks: the least of what is allowed, what memory has, and what full seats could ever use."""
        config, build = self.config, self.build_config
        per_sequence = -(-build.max_seq_len // build.tokens_per_block)
        by_memory = int(
            psutil.virtual_memory().available * config.kv_cache_free_gpu_mem_fraction // self.model.block_bytes
        )
        num_blocks = min(per_sequence * build.max_batch_size, by_memory)
        limit = f"kv_cache_free_gpu_mem_fraction ({config.kv_cache_free_gpu_mem_fraction})"
        if config.max_tokens_in_paged_kv_cache is not None:
            by_tokens = config.max_tokens_in_paged_kv_cache // build.tokens_per_block
            if by_tokens < num_blocks:
                num_blocks, limit = by_tokens, f"max_tokens_in_paged_kv_cache ({config.max_tokens_in_paged_kv_cache})"
        if num_blocks < per_sequence:
            raise CourseError(
                f"{limit} gives {max(num_blocks, 0) * build.tokens_per_block} tokens of KV cache, too few for one request of "
                f"max_seq_len: it needs {per_sequence * build.tokens_per_block}. Raise it, or build the engine with a "
                "smaller max_seq_len."
            )
        return num_blocks

    def _record(self, started: tuple[float, float], chunks: dict[_Sequence, Chunk], num_finished: int) -> None:
        rows = []
        for sequence, chunk in chunks.items():
            num_new = len(chunk.token_ids)
            is_context = num_new > 1 or chunk.num_past < len(sequence.request.input_ids)
            num_blocks = self.blocks.blocks_for(chunk.num_past + num_new)  # the sequence's own are gone if it finished
            rows.append([sequence.id, num_new if is_context else 0, 0 if is_context else num_new, num_blocks])
        with self._work:
            paused_ids = [sequence.id for sequence in self._paused]
            unscheduled = [s for s in self._seated if s not in chunks and s.finish_reason is None]
            waiting = len(self._waiting) + len(unscheduled)
            active = len(self._sequences) + num_finished
        self._iteration += 1
        stats = IterationStats(
            iteration=self._iteration,
            timestamp=started[0],
            iteration_ms=(time.perf_counter() - started[1]) * 1000,
            active=active,
            scheduled=len(chunks),
            waiting=waiting,
            paused=len(paused_ids),
            context_tokens=sum(row[1] for row in rows),
            generation_tokens=sum(row[2] for row in rows),
            kv_blocks_used=self.blocks.num_used,
            kv_blocks_free=self.blocks.num_free,
            kv_blocks_max=self.blocks.num_blocks,
            kv_blocks_reused=self.blocks.num_reused,
            tokens_per_block=self.blocks.tokens_per_block,
            finished=num_finished,
            empty_seats=self.build_config.max_batch_size - len(chunks),
            requests=rows,
            paused_ids=paused_ids,
        )
        self.iteration_stats.append(stats)
        if self._log_file:
            try:
                self._log_file.write(json.dumps(asdict(stats)) + "\n")
            except OSError as error:
                log.warning("iteration log %s cannot be written (%s): going on without it", self._log_file.name, error)
                self._log_file = None

    def snapshot(self) -> IterationStats:
        """The latest iteration's figures, or an idle engine's when nothing is to do."""
        with self._work:
            if self._sequences and self.iteration_stats:
                return self.iteration_stats[-1]
            timestamp = self.iteration_stats[-1].timestamp if self.iteration_stats else time.time()
            return IterationStats(
                iteration=self._iteration,
                timestamp=timestamp,
                iteration_ms=0.0,
                active=0,
                scheduled=0,
                waiting=0,
                paused=0,
                context_tokens=0,
                generation_tokens=0,
                kv_blocks_used=0,
                kv_blocks_free=self.blocks.num_blocks,
                kv_blocks_max=self.blocks.num_blocks,
                kv_blocks_reused=self.blocks.num_reused,
                tokens_per_block=self.blocks.tokens_per_block,
                finished=0,
                empty_seats=self.build_config.max_batch_size,
                requests=[],
                paused_ids=[],
            )

    def _open_log(self):
        if self.config.iteration_log_path is None:
            return None
        try:
            return open(self.config.iteration_log_path, "a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise CourseError(
                f"The iteration log {self.config.iteration_log_path} cannot be written "
                f"({error.strerror}). Name another file."
            ) from error


def _fields(request: Request) -> dict:
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


def _joined(responses: list[Response]) -> Response:
    """The responses of one request as one."""
    last = responses[-1]
    return Response(
        last.request_id,
        sum((r.token_ids for r in responses), []),
        True,
        last.finish_reason,
        None,
        sum((r.log_probs for r in responses), []),
        last.cum_log_prob,
    )
