"""The loop of an LLM engine: requests in, tokens out, one iteration at a time.

    with Executor.load("engine", ExecutorConfig()) as executor:
        response = executor.generate(Request(input_ids=[1, 2, 3], request_output_len=16))
        print(response.token_ids)

Read `Executor.step` first: it is the whole engine in a few lines. An iteration takes in what came, asks the scheduler
what to compute (`scheduler`), runs the model once, hands each request its token, and writes a line of statistics.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from numpy.typing import NDArray

from inflight.engine.drafts import Drafting, IterationPrices
from inflight.engine.folder import check_weights, read
from inflight.engine.grammar import Guides, GuideThread, Matcher
from inflight.engine.kv_cache import BlockManager
from inflight.engine.limits import check_memory, out_of_time, within_limits
from inflight.engine.messages import Chunk, IterationStats, Request, Response
from inflight.engine.model import Model, free_bytes
from inflight.engine.model import load as load_model
from inflight.engine.moving import Moving
from inflight.engine.own.part import PartError
from inflight.engine.own.plan_rules import enforce
from inflight.engine.own.scheduler import accepted
from inflight.engine.sampling import log_probability
from inflight.engine.scheduler import EMPTY_PLANS, Plan, Scheduler, built_in
from inflight.engine.sequences import Sequence, Sequences
from inflight.engine.settings import ExecutorConfig, SpeculativeConfig
from inflight.engine.statistics import Statistics
from inflight.errors import ENGINE_FAILED, QUEUE_FULL, SHUT_DOWN, CourseError

log = logging.getLogger("inflight.engine.executor")

EMPTY_PLAN_S = 0.01  # after a plan that computes nothing, how long to wait for news before the scheduler is asked again


class Executor:
    """Runs a model in a thread of its own. Every method may be called from any thread.

    Parameters
    ----------
    model : Model
        `Executor.load` takes an engine's folder instead.
    config : ExecutorConfig, optional
    scheduler : Scheduler, optional
        Decides who runs next; by default the one that `config` names.
    guides : Guides, optional
        Makes the matchers of guided answers.
    prices : IterationPrices, optional
        The cost of iterations, for an engine that drafts; measured by default.

    Raises
    ------
    CourseError
        The KV cache would be too small for one longest request; a `drafter_path`, `kv_store_path`, `kv_peer_url` or
        `kv_policy_path` of no use.
    """

    def step(self) -> None:
        """Compute one iteration."""
        started = time.time(), time.perf_counter()
        self._take_in()
        plan = self._plan()
        chunks = self._sequences.carry_out(plan)
        if self.drafting:
            self.drafting.add(chunks, self._sequences)
        logits: Iterable[Any] = self.model.forward(list(chunks.values())) if chunks else ()
        num_finished = self._give_tokens(chunks, logits)
        if chunks:
            self._record(started, chunks, num_finished)
        self._deliver()  # after the record: a client that has its answer finds its iterations in the log

    def __init__(
        self,
        model: Model,
        config: ExecutorConfig | None = None,
        scheduler: Scheduler | None = None,
        guides: Guides | None = None,
        prices: IterationPrices | None = None,
    ):
        self.config = config or ExecutorConfig()
        self.model = model
        self._guides = guides or Guides(model.info)
        self.build_config = model.info.build_config
        self.config.check_prompts_fit(self.build_config)
        by_memory = free_bytes(model.info) * self.config.kv_cache_free_gpu_mem_fraction // model.block_bytes
        num_blocks = self.config.num_blocks(self.build_config, int(by_memory))
        self.blocks = BlockManager(num_blocks, self.build_config.tokens_per_block)
        options = self.config.speculative_config
        assert options is None or isinstance(options, SpeculativeConfig)
        self.model.allocate_kv_cache(self.blocks.num_blocks, 1 + options.max_draft_len if options else 1)
        self.drafting: Drafting | None = None
        if options:
            prices = prices or IterationPrices.measured(model, options.max_draft_len)
            vocab_size = model.info.pretrained_config["vocab_size"]
            self.drafting = Drafting(options, prices, vocab_size, self.config.drafter_path)
        self.scheduler = scheduler or built_in(self.config)
        self._answers_together = getattr(self.scheduler, "answers_together", False)

        # Used by the loop only.
        self._sequences = Sequences(
            self.blocks, self.build_config, self.config.enable_chunked_context, self.config.enable_kv_cache_reuse
        )
        self.moving: Moving | None = None
        if self.config.kv_store_path is not None:
            self.moving = Moving(model, self._sequences, self.config, self._got_ready)
        self.statistics = Statistics(self._sequences, self.config.iteration_log_path, self.moving)
        self.iteration_stats = self.statistics.latest
        self._held: list[Sequence] = []  # finished, to be answered when nobody runs
        self._outbox: list[tuple[Sequence, Response]] = []
        self._num_empty_plans = 0
        # Shared with those who call, under the lock of `_work`.
        self._work = threading.Condition()
        self._unready: dict[int, Sequence] = {}  # their guides are not compiled yet, or their blocks not taken
        self._inbox: list[Sequence] = []
        self._unfinished: dict[int, Sequence] = {}
        self._asked_to_end: dict[int, str] = {}  # id -> "stopped" or "cancelled"
        self._next_id = 1
        self._closing = False

        self._thread = threading.Thread(target=self._loop, name="executor", daemon=True)
        self._thread.start()
        self._compiler = GuideThread(self._guides, self._got_ready)

    @classmethod
    def load(cls, engine_dir: str | Path, config: ExecutorConfig | None = None) -> Executor:
        """Make an executor of the engine in a folder, with the scheduler that `config` names.

        Raises
        ------
        CourseError
            The engine cannot be loaded; memory has no room for it; its KV cache would be too small for one longest
            request; a `scheduler_path` whose scheduler does not pass its trial; a `logits_processor_path` or
            `drafter_path` of no use.
        """
        config = config or ExecutorConfig()
        info = read(engine_dir)
        check_weights(info)
        check_memory(info)
        scheduler = accepted(config, info.build_config) if config.scheduler_path else None
        return cls(load_model(info), config, scheduler, Guides(info, config.logits_processor_path))

    # The loop ---------------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._work:
                if not (self._sequences or self._inbox or self._asked_to_end or self._closing):
                    ends_by_s = min((each.ends_by_s for each in self._unready.values()), default=math.inf)
                    self._work.wait(min(max(ends_by_s - time.monotonic(), 0), threading.TIMEOUT_MAX))
                if self._closing:
                    return
            try:
                self.step()
            except PartError as error:
                log.error("iteration %d: %s", self.statistics.iteration, error)
                self._fail_all(error)
            except Exception as error:  # any error of the model: its requests fail, and the engine goes on
                self._fail_all(self._what_happened(error))

    def _take_in(self) -> None:
        """Let new requests wait, and end those whose clients asked for it or whose time is over.

        What waiting ones find in a store of blocks is read into the cache.
        """
        with self._work:
            for sequence in self._inbox:
                sequence.last_computed = self.statistics.iteration
                self._sequences.add(sequence)
            self._inbox.clear()
            now_s = time.monotonic()
            ending = {number: "timed_out" for number, other in self._unfinished.items() if other.ends_by_s <= now_s}
            ending |= self._asked_to_end
            self._asked_to_end.clear()
            leaving = [(self._unfinished[number], why) for number, why in ending.items() if number in self._unfinished]
            for sequence, _ in leaving:
                self._unready.pop(sequence.id, None)  # while the lock is held: it may get ready right now
        for sequence, reason in leaving:
            self._finish(sequence, reason)
        if self.moving:
            for sequence in self.moving.fetch():
                self._finish(sequence, "error")

    def _got_ready(self, sequence: Sequence, made: Matcher | Exception | None) -> None:
        """Let a request wait whose blocks are taken (None) and whose guide is compiled, or end it with the error."""
        with self._work:
            if sequence.id not in self._unready:
                return  # it ended meanwhile
            if made is None and sequence.request.guide:
                self._compiler.compile(sequence)
                return
            del self._unready[sequence.id]
            if isinstance(made, Exception):
                sequence.error, self._asked_to_end[sequence.id] = self._what_happened(made), "error"
            else:
                sequence.guide = made
                self._inbox.append(sequence)
            self._work.notify()

    def _plan(self) -> Plan:
        """Ask the scheduler for a plan, and check that it can be carried out."""
        if not self._sequences:
            return Plan()
        now = self._sequences.now()
        plan = self.scheduler.schedule(now)
        enforce(plan, now, self.scheduler)
        if plan.compute:
            self._num_empty_plans = 0
        else:
            self._wait_for_news()
        return plan

    def _wait_for_news(self) -> None:
        """Pause until something changes, since the plan computes nothing; the log says when that happens often."""
        self._num_empty_plans += 1
        if self._num_empty_plans == EMPTY_PLANS:
            log.warning("the scheduler has computed nothing %d times in a row, and requests wait", EMPTY_PLANS)
        with self._work:
            self._work.wait_for(lambda: self._inbox or self._asked_to_end or self._closing, timeout=EMPTY_PLAN_S)

    def _give_tokens(self, chunks: dict[Sequence, Chunk], logits: Iterable[NDArray[Any]]) -> int:
        """Choose the next tokens of each request whose known tokens are all computed; return how many finished.

        An error in one of them ends only that one.
        """
        num_finished, rows = 0, iter(logits)
        for sequence, chunk in chunks.items():
            sequence.last_computed = self.statistics.iteration + 1
            drafts, own = chunk.drafts, list(islice(rows, chunk.num_logits))
            self._sequences.computed(sequence, len(chunk.token_ids) - len(drafts) - chunk.num_padding)
            if not own:
                continue
            try:
                reason = self._take_tokens(sequence, own, drafts)
            except Exception as error:
                sequence.error, reason = self._what_happened(error), "error"
            if len(own) > 1:
                self._sequences.give_back_blocks(sequence)
            if reason:
                num_finished += 1
                self._finish(sequence, reason)
        if self.moving:
            self.moving.store()
        return num_finished

    def _take_tokens(self, sequence: Sequence, rows: list[NDArray[Any]], drafts: Iterable[int]) -> str | None:
        """Choose the next token and, as long as the chosen one is what was drafted, the one after it.

        Return why the answer ends now, or None.
        """
        request = sequence.request
        for logits, draft in zip(rows, (*drafts, None)):
            token = sequence.sampler.choose(logits, request.input_ids, sequence.answer)
            log_prob = log_probability(logits, token) if request.return_log_probs else None
            reason = sequence.add(token)
            if log_prob is not None and reason != "end_id":
                sequence.log_probs.append(log_prob)
            if reason:
                return reason
            if request.streaming:
                self._respond(sequence)
            if token != draft:
                break
            self._sequences.computed(sequence, 1)
        return None

    def _what_happened(self, error: Exception) -> CourseError:
        """Return one sentence for the clients; the traceback of an unforeseen error goes into the log."""
        if isinstance(error, CourseError):
            return error
        log.error("iteration %d failed", self.statistics.iteration, exc_info=error)
        why = f"iteration {self.statistics.iteration} failed ({type(error).__name__}): the engine's log says where."
        return CourseError(why, code=ENGINE_FAILED)

    def _finish(self, sequence: Sequence, reason: str) -> None:
        """Take `sequence` out of the engine and answer it. In static batching the answer waits for the whole batch."""
        sequence.finish_reason = reason
        if reason == "timed_out":
            sequence.error = out_of_time(sequence.request)
        is_held = self._answers_together and sequence.id in self._sequences.running and reason != "timed_out"
        self._sequences.remove(sequence)
        with self._work:
            del self._unfinished[sequence.id]
        if is_held:
            self._held.append(sequence)
        else:
            self._respond(sequence)
        if self._held and not self._sequences.running:
            batch, self._held = self._held, []
            for other in sorted(batch, key=attrgetter("id")):
                self._respond(other)

    def _respond(self, sequence: Sequence) -> None:
        """Put the tokens that were not yet handed over into the outbox."""
        cancelled, error = sequence.finish_reason == "cancelled", sequence.error
        response = Response(
            request_id=sequence.id,
            token_ids=[] if cancelled else sequence.answer[sequence.num_sent :],
            is_final=sequence.finish_reason is not None,
            finish_reason=sequence.finish_reason,
            error=None if error is None else str(error),
            error_code="" if error is None else error.code,
            log_probs=sequence.log_probs[sequence.num_sent :],
            cum_log_prob=sum(sequence.log_probs),
        )
        sequence.num_sent = len(sequence.answer)
        self._outbox.append((sequence, response))

    def _deliver(self) -> None:
        """Hand over what is in the outbox."""
        outbox, self._outbox = self._outbox, []
        for sequence, response in outbox:
            try:
                sequence.receive(response)
            except Exception:  # one receiver's error must not stop the other answers
                log.exception("response of request %d could not be delivered", sequence.id)
                self._ask_to_end(sequence.id, "cancelled")

    def _fail_all(self, error: CourseError) -> None:
        """End every request with an error, also those that only wait for the rest of their batch."""
        with self._work:
            failed = [*self._unfinished.values(), *self._held]
            for sequence in failed:
                self._sequences.remove(sequence)
            self._unfinished.clear()
            self._unready.clear()
            self._inbox.clear()
            self._held.clear()
        for sequence in failed:
            sequence.finish_reason, sequence.error = "error", error
            self._respond(sequence)
        self._deliver()

    def _record(self, started: tuple[float, float], chunks: dict[Sequence, Chunk], num_finished: int) -> None:
        with self._work:
            unfinished, not_taken_in = len(self._unfinished), len(self._unready) + len(self._inbox)
        self.statistics.record(started, chunks, num_finished, unfinished, not_taken_in)
        if self.moving:
            self.moving.note(self.iteration_stats[-1])

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
            The request breaks a limit of the engine, the queue is full, or the executor is closed. A guide that cannot
            be followed is told in the only response.
        """
        request = within_limits(request, self.model.info, streams=not self._answers_together)
        guesser = self.drafting.guesser() if self.drafting else None  # the engine's thread does not wait for it
        with self._work:
            if self._closing:
                raise CourseError("The engine is shut down and takes no more requests.", code=SHUT_DOWN)
            num_waiting = len(self._unready) + len(self._inbox) + len(self._sequences.waiting)
            if self.config.max_queue_size and num_waiting >= self.config.max_queue_size:
                full = f"The queue is full: {num_waiting} requests wait (max_queue_size). Try later."
                raise CourseError(full, code=QUEUE_FULL)
            allotted_ms = math.inf if request.allotted_time_ms is None else request.allotted_time_ms
            ends_by_s = time.monotonic() + allotted_ms / 1000
            sequence = Sequence(self._next_id, request, on_response, ends_by_s, guesser)
            self._next_id += 1
            self._unfinished[sequence.id] = sequence
            if self.moving and self.moving.take(sequence):
                self._unready[sequence.id] = sequence
            elif request.guide:
                self._unready[sequence.id] = sequence
                self._compiler.compile(sequence)
            else:
                self._inbox.append(sequence)
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
            if request_id in self._unfinished:
                self._asked_to_end[request_id] = reason
                self._work.notify()

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
        answers: SimpleQueue[Response] = SimpleQueue()
        ids: list[int] = []
        try:
            for request in requests:
                ids.append(self.enqueue_request(replace(request, streaming=False), answers.put))
            responses = {response.request_id: response for response in (answers.get() for _ in requests)}
        except BaseException:  # an interrupt or a refused request: leave nothing running
            for request_id in ids:
                self.cancel_request(request_id)
            raise
        for request_id in ids:
            if error := responses[request_id].error:
                raise CourseError(error, code=responses[request_id].error_code)
        return [responses[request_id] for request_id in ids]

    def snapshot(self) -> IterationStats:
        """Return the latest iteration's figures, or an idle engine's when there is nothing to do."""
        with self._work:
            if self._unfinished and self.iteration_stats:
                return self.iteration_stats[-1]
            return self.statistics.of_an_idle_engine()

    def shutdown(self) -> None:
        """Stop after the running iteration; unfinished requests get an error. May be called twice."""
        with self._work:
            already, self._closing = self._closing, True
            self._work.notify()
        if not already:
            self._compiler.end()
            if self.moving:
                self.moving.end()
            self._thread.join()
            self._fail_all(CourseError("the engine was shut down", code=SHUT_DOWN))
            self.statistics.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
