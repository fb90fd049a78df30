"""The figures of /metrics, under the names that vLLM's server uses: what clients meet, and how full the engine is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from inflight.errors import CourseError
from inflight.triton import telemetry
from inflight.triton.repository.layout import ENGINE

Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)

# Seconds: vLLM's buckets of the time to first token, as far as a request may take here.
BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160
)  # fmt: skip


class Metrics:
    """All of them. How full the engine is, it says itself at Triton's own /metrics, when somebody asks."""

    def __init__(self, grpc_url: str):
        self._url = grpc_url
        self.registry = CollectorRegistry()
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From a request's tokens to the first one of its answer."
        )
        self.itl = self._histogram("inter_token_latency_seconds", "From one piece of an answer to the next.")
        self.tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean of an answer, without its first token."
        )
        self.e2e = self._histogram("e2e_request_latency_seconds", "From a request's tokens to the end of its answer.")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens of answers.")
        self.blocks_sent = Counter("inflight:kv_blocks_sent", "Blocks given to other engines.", registry=self.registry)
        self.answers_ended = Counter(
            "vllm:request_success", "Answers, by their end.", ["model_name", "finished_reason"], registry=self.registry
        )
        self.registry.register(self)

    def _histogram(self, name: str, about: str) -> Histogram:
        named = Histogram(f"vllm:{name}", about, ["model_name"], registry=self.registry, buckets=BUCKETS_S)
        return named.labels(ENGINE)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"vllm:{name}", about, ["model_name"], registry=self.registry).labels(ENGINE)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the engine's own figures; none where its page cannot be read."""
        try:
            of_engine = telemetry.engine_figures(self._url)
        except CourseError:
            return
        for name, about, value in (
            ("num_requests_running", "Requests in the latest iteration.", of_engine["scheduled"]),
            ("num_requests_waiting", "Requests that wait.", of_engine["active"] - of_engine["scheduled"]),
            ("kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1.", of_engine["fraction"]),
        ):
            yield _of_engine(GaugeMetricFamily, f"vllm:{name}", about, value)
        reused, fetched = (of_engine.get(what, 0) * of_engine["tokens_per"] for what in ("reused", "fetched"))
        yield _of_engine(CounterMetricFamily, "vllm:prefix_cache_hits", "Tokens found in the KV cache.", reused)
        about = "Tokens found in the store of blocks."
        yield _of_engine(CounterMetricFamily, "vllm:external_prefix_cache_hits", about, fetched)
        about = "Of blocks that move: to the store, from it, from a peer."
        for way in ("stored", "fetched", "taken"):
            for what in (way, f"{way}_bytes", f"{way}_seconds"):
                if what in of_engine:
                    yield _of_engine(CounterMetricFamily, f"inflight:kv_blocks_{what}", about, of_engine[what])


def _of_engine(kind: type[Family], name: str, about: str, value: float) -> Family:
    family = kind(name, about, labels=["model_name"])
    family.add_metric([ENGINE], value)
    return family


class RequestMetrics:
    """Counts one answer for /metrics while it comes."""

    def __init__(self, metrics: Metrics, prompt_tokens: int):
        self._metrics, self._prompt_tokens, self._tokens, self._has_ended = metrics, prompt_tokens, 0, False
        self._began = self._first = self._latest = time.monotonic()

    def count(self, tokens: int, reason: str | None) -> None:
        """Count a piece, after which the answer has so many `tokens`; with a `reason` it is the last."""
        now, metrics = time.monotonic(), self._metrics
        if not self._tokens:
            metrics.prompt_tokens.inc(self._prompt_tokens)
            metrics.ttft.observe(now - self._began)
            self._first = now
        elif tokens > self._tokens:
            metrics.itl.observe(now - self._latest)
        metrics.generation_tokens.inc(tokens - self._tokens)
        self._tokens, self._latest = tokens, now
        if reason:
            metrics.e2e.observe(now - self._began)
            if tokens > 1:
                metrics.tpot.observe((now - self._first) / (tokens - 1))
            self._end(reason)

    def end(self) -> None:
        """Count an answer that its client has left, or that failed."""
        if not self._has_ended:
            self._end("abort")

    def _end(self, reason: str) -> None:
        self._has_ended = True
        self._metrics.answers_ended.labels(ENGINE, reason).inc()
