"""The checkpoint as a model of embeddings, in process and behind Triton."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from inflight.errors import CourseError
from inflight.models import huggingface
from inflight.models.embedding import Embedder
from inflight.triton import repository, telemetry
from inflight.triton.client.connection import Connection
from inflight.triton.repository import EMBEDDING
from inflight.triton.serving.server import Server
from tests.engines import wait_until

pytestmark = pytest.mark.server

TEXTS = ["how tall is it", "a much longer text about the tower that everybody knows", "pasta", "how tall is the tower"]


@pytest.fixture(scope="module")
def folder(small_checkpoint, tmp_path_factory):
    """The small checkpoint as a Hugging Face folder, in a cache of this file's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        yield huggingface.folder(small_checkpoint)


@pytest.fixture(scope="module")
def embedder(folder):
    return Embedder(folder, "float32")


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("served") / "repo",
        models=(EMBEDDING,),
        checkpoint_dir=folder,
        embedding_dtype="float32",
    )
    with Server(repo, drain_s=0) as server:
        yield server


@pytest.fixture
def connection(server):
    with Connection(server.grpc_url) as connection:
        yield connection


def by_hand(folder, text):
    """Mean of the last hidden states, by the libraries' own classes."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder, local_files_only=True)(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)(ids).last_hidden_state
    mean = states[0].mean(0).numpy()
    return mean / np.linalg.norm(mean)


# In process -----------------------------------------------------------------------------------------------------------


def test_it_is_the_mean_of_the_last_hidden_states(folder, embedder):
    [vector] = embedder([embedder.encode(TEXTS[1])])
    assert vector.shape == (embedder.width,) and vector.dtype == np.float32
    np.testing.assert_allclose(vector, by_hand(folder, TEXTS[1]), atol=1e-6)


def test_an_embedding_does_not_depend_on_its_company(embedder):
    encoded = [embedder.encode(text) for text in TEXTS]
    assert len({len(ids) for ids in encoded}) > 2, "some of them are padded"
    together = embedder(encoded)
    alone = np.concatenate([embedder([ids]) for ids in encoded])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(embedder(encoded[::-1])[::-1], alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(("text", "message"), [("  ", "text_input is empty"), ("word " * 9000, "positions: shorten")])
def test_a_text_that_cannot_be_computed(embedder, text, message):
    with pytest.raises(CourseError, match=message):
        embedder.encode(text)


# Behind Triton --------------------------------------------------------------------------------------------------------


def test_requests_that_share_a_batch_get_their_own_rows_and_their_own_errors(server, connection, embedder):
    server.load(
        EMBEDDING,
        **{"dynamic_batching.max_queue_delay_microseconds": 5_000_000, "dynamic_batching.preferred_batch_size": 4},
    )
    before = telemetry.statistics(server.http_url, EMBEDDING)
    results = together(connection, TEXTS)
    expected = before.inferences + len(TEXTS)
    wait_until(
        lambda: telemetry.statistics(server.http_url, EMBEDDING).inferences >= expected, "Triton counts all requests"
    )
    assert (telemetry.statistics(server.http_url, EMBEDDING) - before).batches.to_dict() == {4: 1}
    np.testing.assert_allclose(np.concatenate(results), embedder([embedder.encode(text) for text in TEXTS]), atol=1e-5)
    good, empty, strange, last = together(connection, ["pasta", " ", b"\xff", "how tall is it"])
    assert "text_input is empty" in str(empty) and "not valid UTF-8" in str(strange)
    for text, vector in (("pasta", good), ("how tall is it", last)):
        np.testing.assert_allclose(vector, embedder([embedder.encode(text)]), atol=1e-5)


def together(connection, texts):
    """Embeddings or errors of requests that are under way at the same moment, in their order."""
    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(lambda text: outcome(connection, text), texts))


def outcome(connection, text):
    data = np.array([[text if isinstance(text, bytes) else text.encode()]], np.object_)
    try:
        return connection.infer(EMBEDDING, {"text_input": data}, timeout_s=60).as_numpy("embedding")
    except CourseError as error:
        return error
