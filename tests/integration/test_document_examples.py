"""The examples of the OpenAPI document, sent as the page at /docs fills them in, to the shipped model."""

import json
import urllib.request
from typing import Any

from servers import Server

ANSWERED = {
    "/v1/chat/completions": "choices",
    "/v1/completions": "choices",
    "/v1/messages": "content",
    "/v1/messages/count_tokens": "input_tokens",
    "/v1/responses": "output",
    "/v1/embeddings": "data",
    "/tokenize": "tokens",
    "/detokenize": "prompt",
}
"""Paths whose document has examples, and a field of each answer."""


def test_every_example_of_the_document_is_answered_as_it_stands() -> None:
    with Server("builtin://tiny-recall") as running:
        document = _json(f"{running.url}/openapi.json")
        for path, field in ANSWERED.items():
            body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            for name, example in body["examples"].items():
                assert example["value"]["model"] == "tiny-recall"
                told = _sent(f"{running.url}{path}", example["value"])
                if name == "stream":
                    assert told.startswith(("data: {", "event: "))
                    continue
                answer = json.loads(told)
                assert answer[field]
                if name == "schema":
                    content = answer["choices"][0]["message"]["content"]
                    assert set(json.loads(content)) == {"city", "capital"}
                if name == "tools":
                    call = answer["choices"][0]["message"]["tool_calls"][0]
                    assert call["function"]["name"] == "weather"
    assert {path for path, operation in document["paths"].items() if _has_examples(operation)} == set(
        ANSWERED
    )


def _has_examples(operations: dict[str, Any]) -> bool:
    content = operations.get("post", {}).get("requestBody", {}).get("content", {})
    return "examples" in content.get("application/json", {})


def _json(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def _sent(url: str, body: dict[str, Any]) -> str:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        told: str = answer.read().decode()
    return told
