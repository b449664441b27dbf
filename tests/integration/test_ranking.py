"""Ranked documents, scored pairs, and explanations of texts without an answer, from a real engine."""

from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import pytest

from servers import Server

QUERY = "lamp: red. door: blue. " * 8
DOCUMENTS = ["lamp: red. door: blue. " * 7 + "anna", "a", "lamp: green", "lamp: red. door: blue. lamp?"]
SAME = 1e-5
"""Difference of cosines that sums in another order make in float32."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Server("builtin://tiny-recall") as running:
        yield running.url


def post(url: str, path: str, body: Any, **headers: str) -> httpx2.Response:
    return httpx2.post(f"{url}{path}", json=body, headers=headers, timeout=60)


def cosines(url: str, query: Any, documents: Any, **fields: Any) -> np.ndarray[Any, Any]:
    """Return the cosines of a query with each document, by the vectors of embeddings."""
    answer = post(url, "/v1/embeddings", {"input": [query, *documents], **fields}).json()
    vectors = np.array([entry["embedding"] for entry in answer["data"]])
    return vectors[1:] @ vectors[0]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_documents_come_in_the_order_of_their_cosines(url: str, path: str, pooling: str) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "pooling": pooling}
    answer = post(url, path, body).json()
    expected = cosines(url, QUERY, DOCUMENTS, pooling=pooling)
    assert [entry["index"] for entry in answer["results"]] == list(np.argsort(-expected))
    by_index = {entry["index"]: entry["relevance_score"] for entry in answer["results"]}
    np.testing.assert_allclose([by_index[place] for place in range(4)], expected, atol=SAME)
    assert all("document" not in entry for entry in answer["results"])
    first_two = post(url, path, {**body, "top_n": 2, "return_documents": True}).json()["results"]
    assert [entry["index"] for entry in first_two] == list(np.argsort(-expected)[:2])
    assert all(entry["document"] == {"text": DOCUMENTS[entry["index"]]} for entry in first_two)
    assert len(post(url, path, {**body, "top_n": 9}).json()["results"]) == 4


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_pairs_have_the_scores_of_their_vectors(url: str, names: tuple[str, str]) -> None:
    one, other = names
    answer = post(url, "/v1/score", {one: QUERY, other: DOCUMENTS}).json()
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
    expected = cosines(url, QUERY, DOCUMENTS)
    np.testing.assert_allclose([entry["score"] for entry in answer["data"]], expected, atol=SAME)
    pairs = post(url, "/v1/score", {one: DOCUMENTS[:2], other: DOCUMENTS[1:3]}).json()["data"]
    for place, entry in enumerate(pairs):
        (cosine,) = cosines(url, DOCUMENTS[place], [DOCUMENTS[place + 1]])
        assert abs(entry["score"] - cosine) < SAME
    assert post(url, "/v1/score", {one: "a", other: "a"}).json()["data"][0]["score"] == pytest.approx(1)


def test_equal_texts_are_read_and_counted_once(url: str) -> None:
    def tokens(body: Any) -> int:
        usage: dict[str, int] = post(url, "/v1/score", body).json()["usage"]
        assert usage["prompt_tokens"] == usage["total_tokens"]
        return usage["prompt_tokens"]

    once = tokens({"text_1": QUERY, "text_2": DOCUMENTS})
    assert tokens({"text_1": [QUERY] * 8, "text_2": DOCUMENTS * 2}) == once
    ids = [len(post(url, "/tokenize", {"prompt": text}).json()["tokens"]) for text in (QUERY, *DOCUMENTS)]
    assert once == sum(ids)


def test_documents_are_objects_too_and_are_cut_at_their_first_tokens(url: str) -> None:
    body = {"query": "lamp", "documents": [{"text": QUERY}, "lamp: red"], "max_tokens_per_doc": 5}
    answer = post(url, "/v1/rerank", body).json()
    ids = [post(url, "/tokenize", {"prompt": text}).json()["tokens"] for text in ("lamp", QUERY, "lamp: red")]
    expected = cosines(url, ids[0], [ids[1][:5], ids[2][:5]])
    by_index = {entry["index"]: entry["relevance_score"] for entry in answer["results"]}
    np.testing.assert_allclose([by_index[0], by_index[1]], expected, atol=SAME)
    assert answer["usage"]["prompt_tokens"] == len(ids[0]) + 5 + min(5, len(ids[2]))
    # A text that is too long as a whole is read as far as the request asks for it.
    long = {"query": "lamp", "documents": ["a " * 20_000]}
    assert post(url, "/v1/rerank", long).json()["error"]["param"] == "documents"
    assert post(url, "/v1/rerank", {**long, "max_tokens_per_doc": 9}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["c"]}, "rank_fields"),
        ("/v1/rerank", {"query": "a " * 20_000, "documents": ["b"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": [str(place) for place in range(1024)]}, "documents"),
        ("/v1/score", {"text_1": "a"}, "text_1"),
        ("/v1/score", {"text_1": "a", "documents": "b"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_2"),
        ("/v1/score", {"queries": "a", "documents": "b " * 20_000}, "documents"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "instruction": "rank"}, "instruction"),
        ("/v1/score", {"data_1": "a", "data_2": "b"}, "data_1"),
    ],
)
def test_a_wrong_request_is_refused_by_the_name_of_its_field(
    url: str, path: str, body: Any, param: str
) -> None:
    answer = post(url, path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_another_model_is_not_found(url: str) -> None:
    body = {"model": "other", "query": "a", "documents": ["b"]}
    answer = post(url, "/v1/rerank", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


REQUESTS = {
    "/v1/embeddings": {"input": [QUERY, "lamp"]},
    "/v1/rerank": {"query": QUERY, "documents": ["lamp"]},
    "/v1/score": {"text_1": QUERY, "text_2": "lamp"},
}
"""Requests with the same two texts, in the same order."""


@pytest.mark.parametrize("path", REQUESTS)
def test_the_header_explains_what_each_text_resumed(url: str, path: str) -> None:
    salted = {**REQUESTS[path], "pooling": "last", "cache_salt": f"explained at {path}"}
    header = {"X-Mambaserve-Explain": "1"}
    assert "mambaserve" not in post(url, path, {**REQUESTS[path], "cache_salt": f"other {path}"}).json()
    before = post(url, path, salted, **header).json()["mambaserve"]["explain"]
    assert [entry["prompt"] for entry in before] == [0, 1]
    assert (before[0]["reason"], before[0]["resumed_tokens"]) == ("nothing_cached", 0)
    again = post(url, path, salted, **header).json()["mambaserve"]["explain"]
    assert again[0]["resumed_tokens"] > 0
    mean = post(url, path, {**salted, "pooling": "mean"}, **header).json()["mambaserve"]["explain"]
    assert (mean[0]["reason"], mean[0]["resumed_tokens"]) == ("prompt_read_whole", 0)
    refused = post(url, path, salted, **{"X-Mambaserve-Explain": "yes"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Mambaserve-Explain")


@pytest.mark.parametrize("path", REQUESTS)
def test_the_cost_is_told_where_it_is_asked_for(url: str, path: str) -> None:
    costs = post(url, path, REQUESTS[path], **{"X-Mambaserve-Cost": "1"}).json()["usage"]["engine_cost"]
    assert costs["device_seconds"] > 0
