"""Vectors and tokens of texts, by the official client from a real engine."""

import base64
import math
from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from servers import Server

TEXT = "lamp: red. door: blue. anna = green. " * 8
CLOSE = 2e-5
"""Difference that sums in another order make in float32."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Yield the address of an engine that computes prompts in pieces of 64 tokens."""
    with Server("builtin://tiny-recall", "--chunked-prefill-tokens", "64") as running:
        yield running.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def post(url: str, path: str, body: Any) -> httpx2.Response:
    return httpx2.post(f"{url}{path}", json=body, timeout=60)


def vectors(client: openai.OpenAI, texts: Any, **fields: Any) -> np.ndarray[Any, Any]:
    extra = {name: fields.pop(name) for name in ("pooling", "normalize", "cache_salt") if name in fields}
    answer = client.embeddings.create(model="tiny-recall", input=texts, extra_body=extra, **fields)
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    return np.array([entry.embedding for entry in answer.data])


def test_the_mean_is_that_of_the_last_states_of_all_beginnings(client: openai.OpenAI, url: str) -> None:
    ids = post(url, "/tokenize", {"prompt": TEXT}).json()["tokens"]
    assert len(ids) > 2 * 64  # so that the prompt is computed in several pieces
    last = vectors(client, [ids[: end + 1] for end in range(len(ids))], pooling="last", normalize=False)
    (mean,) = vectors(client, TEXT, pooling="mean", normalize=False)
    np.testing.assert_allclose(mean, last.mean(0), atol=CLOSE * abs(last).max())


def test_the_last_state_is_that_of_its_text(client: openai.OpenAI) -> None:
    (one,) = vectors(client, TEXT, pooling="last", normalize=False)
    (again,) = vectors(client, TEXT, pooling="last", normalize=False, cache_salt="other")
    np.testing.assert_allclose(one, again, atol=CLOSE * abs(one).max())
    (other,) = vectors(client, TEXT + "x", pooling="last", normalize=False)
    assert abs(one - other).max() > 0.01


def test_a_prefix_in_the_cache_changes_no_vector(client: openai.OpenAI) -> None:
    client.completions.create(model="tiny-recall", prompt=TEXT, max_tokens=1)
    for pooling in ("last", "mean"):
        (warm,) = vectors(client, TEXT + "door?", pooling=pooling)
        (cold,) = vectors(client, TEXT + "door?", pooling=pooling, cache_salt=f"{pooling}-cold")
        np.testing.assert_allclose(warm, cold, atol=1e-4)


def test_vectors_of_a_batch_are_those_of_each_text(client: openai.OpenAI) -> None:
    texts = ["a", "lamp: red", TEXT, "x y z"]
    together = vectors(client, texts, pooling="mean")
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(vectors(client, text, pooling="mean")[0], vector, atol=1e-4)


def test_dimensions_and_lengths(client: openai.OpenAI) -> None:
    (whole,) = vectors(client, TEXT)
    assert math.isclose(np.linalg.norm(whole), 1, abs_tol=1e-5)
    (part,) = vectors(client, TEXT, dimensions=8)
    np.testing.assert_allclose(part, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        vectors(client, TEXT, dimensions=65000)


def test_base64_has_the_numbers_of_the_list(url: str) -> None:
    body = {"input": "lamp", "encoding_format": "base64"}
    coded = post(url, "/v1/embeddings", body).json()["data"][0]["embedding"]
    plain = post(url, "/v1/embeddings", {"input": "lamp"}).json()
    numbers = np.frombuffer(base64.b64decode(coded), "<f4")
    np.testing.assert_array_equal(numbers, np.array(plain["data"][0]["embedding"], np.float32))
    assert plain["usage"]["prompt_tokens"] == plain["usage"]["total_tokens"] > 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[5000]]}, "input"),
        ({"input": "a " * 20_000}, "input"),
        ({"input": "x", "messages": [1]}, "messages"),
        ({}, "input"),
    ],
)
def test_a_wrong_request_is_refused_by_the_name_of_its_field(url: str, body: Any, param: str) -> None:
    answer = post(url, "/v1/embeddings", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_tokens_make_the_round_trip(url: str) -> None:
    found = post(url, "/tokenize", {"prompt": "lamp: réd", "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert post(url, "/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "lamp: réd"}
    chat = {"messages": [{"role": "user", "content": "lamp?"}]}
    ids = post(url, "/tokenize", chat).json()["tokens"]
    text = post(url, "/detokenize", {"tokens": ids}).json()["prompt"]
    assert text == "<|user|>lamp?<|end|><|assistant|>"
    assert post(url, "/detokenize", {"tokens": [10**6]}).status_code == 400
    assert post(url, "/tokenize", {}).json()["error"]["param"] == "prompt"
