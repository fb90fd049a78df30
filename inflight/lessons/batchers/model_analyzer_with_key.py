"""Triton's Model Analyzer, its requests with the key of the server that they go to.

    python -m inflight.lessons.batchers.model_analyzer_with_key profile -f settings.yaml

It has no setting for headers, but makes its clients in one place. Run as a process of its own: the Model Analyzer is in
no environment but that of this process.
"""

from tritonclient.grpc import InferenceServerClientPlugin

from inflight.triton import keys


class KeySender(InferenceServerClientPlugin):
    """Has a client of tritonclient send the key of the server that it asks."""

    def __init__(self, url: str):
        self._headers = keys.headers(url)

    def __call__(self, request) -> None:
        request.headers = {**request.headers, **self._headers}


def main() -> None:
    """Run the Model Analyzer's command line."""
    from model_analyzer import entrypoint
    from model_analyzer.triton.client.client_factory import TritonClientFactory

    create = TritonClientFactory.create_grpc_client

    def create_with_key(server_url: str, **options):
        client = create(server_url, **options)
        client._client.register_plugin(KeySender(server_url))
        return client

    TritonClientFactory.create_grpc_client = staticmethod(create_with_key)
    entrypoint.main()


if __name__ == "__main__":
    main()
