"""The `tensorrt_llm` of a running Triton, as OpenAI's server uses it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.folder import read
from inflight.errors import TOO_LONG, CourseError
from inflight.openai.errors import OpenAIError
from inflight.openai.metrics import Metrics
from inflight.triton.client.client import Client
from inflight.triton.client.connection import tensors
from inflight.triton.repository import get_parameter
from inflight.triton.repository.layout import ENGINE
from inflight.triton.repository.request import ERROR_CODE, is_llmapi

HEALTH_TIMEOUT_S = 5


class Engine:
    """The `tensorrt_llm` of a running Triton: its config, limits and tokenizer, and the one connection to it."""

    def __init__(self, grpc_url: str, engine_dir: Path):
        self.url = grpc_url
        with Client(grpc_url, ENGINE) as client:
            self.config = client.config()
        if is_llmapi(self.config):
            raise CourseError(
                "OpenAI's protocol stands in front of the engine backend's tensorrt_llm, which takes tokens, and "
                "llmapi takes text: leave out --contract llmapi. Of TensorRT-LLM itself, trtllm-serve speaks it."
            )
        if not self.config.model_transaction_policy.decoupled:
            raise CourseError(
                f"OpenAI's clients read answers as they are made, and {ENGINE} is not decoupled: set decoupled_mode to "
                "true. It then refuses clients that wait for one whole response."
            )
        store = get_parameter(self.config, "kv_store_path")
        self.store = Path(store) if store else None  # of blocks, for other engines
        self.limits, self.tokenizer = read(engine_dir).build_config, load_tokenizer(engine_dir)
        # A longer text has too many tokens in any case, and is refused before it is tokenized.
        self.most_characters = self.limits.max_input_len * self.tokenizer.longest_token
        # Clients look for these words, and then choose a model with more room.
        self._too_long = (
            f"This model's maximum context length is {self.limits.max_seq_len} tokens, {self.limits.max_input_len} of "
            "them for the prompt. The prompt is too long."
        )
        self._running: set[Any] = set()
        self.metrics = Metrics(grpc_url)
        self.is_connected, self.is_ending = threading.Event(), False

    def check_length(self, length: int, most: int, of_what: str, param: str) -> None:
        """Refuse a prompt, the field `param` of a request, that is longer than the engine takes."""
        if length > most:
            message = f"{self._too_long} This one has {length} {of_what}: shorten it."
            raise OpenAIError(message, param, code=TOO_LONG)

    @contextlib.asynccontextmanager
    async def connected(self, _: Any) -> AsyncIterator[None]:
        """Keep the connection open, in this event loop, for as long as the block lasts."""
        async with triton.InferenceServerClient(self.url) as self._triton:
            self._loop = asyncio.get_running_loop()
            self.is_connected.set()
            yield

    def end(self) -> None:
        """End running requests, and tell their clients; called from another thread."""
        self.is_ending = True
        self._loop.call_soon_threadsafe(lambda: [responses.cancel() for responses in self._running])

    async def is_ready(self) -> bool:
        """Say whether Triton answers and its models are ready, this one among them."""
        how = {"client_timeout": HEALTH_TIMEOUT_S}
        with contextlib.suppress(InferenceServerException, grpc.RpcError):
            is_up = await self._triton.is_server_ready(**how) and await self._triton.is_model_ready(ENGINE, **how)
            return bool(is_up)
        return False

    @contextlib.asynccontextmanager
    async def ask(self, name: str, arrays: dict[str, NDArray[Any]]) -> AsyncIterator[AsyncIterator[Any]]:
        """Give an iterator of tritonclient's results for a request, which ends with the block."""

        async def request() -> AsyncIterator[dict[str, Any]]:
            outputs = [triton.InferRequestedOutput(name) for name in ("output_ids", "is_final")]
            asked = {"model_name": ENGINE, "inputs": tensors(arrays), "outputs": outputs, "request_id": name}
            yield {**asked, "parameters": {ERROR_CODE: True}}

        async def results() -> AsyncIterator[Any]:
            failed = None
            # After its last response or an error the stream ends by itself, and must not be cancelled: `finish_stream`.
            async for result, error in responses:
                failed = failed or error
                if failed is None:
                    yield result
            if failed is not None:
                raise failed

        self._running.add(responses := self._triton.stream_infer(request()))
        try:
            yield results()
        finally:
            self._running.discard(responses)
            responses.cancel()
