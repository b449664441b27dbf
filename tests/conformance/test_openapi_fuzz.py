"""Requests made up from our own OpenAPI document: no answer may leave the document."""

from collections.abc import Iterator

import pytest

from engine_api import ApiProcess, serving
from matrix_size import LARGE
from tiny_model import write_model

EXAMPLES = 40 if LARGE else 15
"""Requests of an operation with a body; others have fewer."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with serving(write_model(tmp_path_factory.mktemp("model") / "tiny")) as running:
        yield running


OPERATIONS = [
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/messages", "POST"),
    ("/v1/messages/count_tokens", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/embeddings", "POST"),
    ("/v1/rerank", "POST"),
    ("/v2/rerank", "POST"),
    ("/v1/score", "POST"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/v1/responses/{id}", "GET"),
    ("/v1/responses/{id}", "DELETE"),
    ("/v1/responses/{id}/input_items", "GET"),
    ("/v1/conversations", "POST"),
    ("/v1/conversations/{id}", "GET"),
    ("/v1/conversations/{id}", "POST"),
    ("/v1/conversations/{id}", "DELETE"),
    ("/v1/conversations/{id}/items", "GET"),
    ("/v1/conversations/{id}/items", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{name}", "GET"),
    ("/v1/tokenizer", "GET"),
    ("/readyz", "GET"),
    ("/livez", "GET"),
    ("/metrics", "GET"),
    ("/version", "GET"),
    ("/v1/status", "GET"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_answers_stay_within_the_document(api: ApiProcess, path: str, method: str) -> None:
    from openapi_examples import stay_within_the_document

    stay_within_the_document(api.url, path, method, EXAMPLES if method == "POST" else EXAMPLES // 5)
    assert api.call("GET", "/readyz").status == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/admin/strategy", "PUT"),
        ("/admin/ledger", "GET"),
        ("/admin/flush_cache", "POST"),
        ("/openapi.json", "GET"),
    ],
)
def test_admin_answers_stay_within_the_admin_document(api: ApiProcess, path: str, method: str) -> None:
    from openapi_examples import stay_within_the_document

    stay_within_the_document(api.admin, path, method, EXAMPLES // 2 if method == "PUT" else EXAMPLES // 5)


def test_the_document_names_every_route(api: ApiProcess) -> None:
    paths = api.call("GET", "/openapi.json").json["paths"]
    assert set(paths) == {
        "/v1/completions", "/v1/chat/completions", "/v1/messages",
        "/v1/handover", "/v1/messages/count_tokens", "/v1/models", "/v1/models/{name}",
        "/v1/prefix_changes", "/v1/usage_changes", "/v1/responses", "/v1/status", "/v1/tokenizer",
        "/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score", "/tokenize", "/detokenize",
        "/v1/responses/{id}", "/v1/responses/{id}/input_items",
        "/v1/conversations", "/v1/conversations/{id}", "/v1/conversations/{id}/items",
        "/health", "/livez", "/readyz", "/metrics", "/version", "/openapi.json",
    }  # fmt: skip


def test_every_field_of_a_request_is_described(api: ApiProcess) -> None:
    schemas = api.call("GET", "/openapi.json").json["components"]["schemas"]
    for name in ("CompletionRequest", "ChatCompletionRequest", "ChatMessage", "ErrorBody", "Usage"):
        for field, described in schemas[name]["properties"].items():
            assert described.get("description"), f"{name}.{field}"
