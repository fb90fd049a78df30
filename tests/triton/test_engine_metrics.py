"""What an engine's figures at /metrics count, in an iteration that has a prompt and answers."""

from types import SimpleNamespace
from unittest.mock import MagicMock

from inflight.engine.messages import Request
from tests.engine.test_executor import Receiver, load, send
from tests.triton import backend_stand_ins


class MetricFamily:
    """Keeps what its gauges were set to last, as `Triton` shows them."""

    GAUGE, shown = "gauge", {}

    def __init__(self, name, description, kind):
        self.name = name

    def Metric(self, labels):
        *_, label = labels.values()
        return SimpleNamespace(set=lambda value: self.shown.update({(self.name, label): value}))


def test_a_prompt_is_a_context_request_and_an_answer_a_generation_request():
    with backend_stand_ins.backend(MagicMock(MetricFamily=MetricFamily)), load() as executor:
        from inflight.triton.model.engine_model import EngineMetrics

        metrics = EngineMetrics({"model_name": "tensorrt_llm", "model_version": "1"}, executor)
        seen = []

        def on_token(receiver):
            metrics.update()
            seen.append(dict(MetricFamily.shown))
            if len(receiver.tokens) == 3:
                others.extend(send(executor, Request([1] * length, 2)) for length in (9, 20))

        others: list = []
        first = Receiver(on_token=on_token)
        executor.enqueue_request(Request([1] * 5, 6, streaming=True), first)
        first.wait()
        for other in others:
            other.wait()
    requests, batcher = "nv_trt_llm_request_metrics", "nv_trt_llm_inflight_batcher_metrics"
    figures = [
        (one[requests, "scheduled"], one[requests, "context"], one[batcher, "generation_requests"]) for one in seen
    ]
    assert figures == [(1, 1, 0), (1, 0, 1), (1, 0, 1), (3, 2, 1), (3, 0, 3)]
    assert [one[batcher, "total_context_tokens"] for one in seen] == [5, 0, 0, 29, 0]
