"""The examples of the OpenAPI document, sent as the page at /docs fills them in, to the shipped model."""

import json
import urllib.request
from typing import Any

from servers import Server

OPERATIONS = ("/v1/chat/completions", "/v1/completions")


def test_every_example_of_the_document_is_answered_as_it_stands() -> None:
    with Server("builtin://tiny-recall") as running:
        document = _json(f"{running.url}/openapi.json")
        for path in OPERATIONS:
            body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            assert {"stream"} < set(body["examples"])
            for name, example in body["examples"].items():
                assert example["value"]["model"] == "tiny-recall"
                told = _sent(f"{running.url}{path}", example["value"])
                if name == "stream":
                    assert told.endswith("data: [DONE]\n\n")
                    continue
                choice = json.loads(told)["choices"][0]
                if name == "schema":
                    assert set(json.loads(choice["message"]["content"])) == {"city", "capital"}
                if name == "tools":
                    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"


def _json(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def _sent(url: str, body: dict[str, Any]) -> str:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        told: str = answer.read().decode()
    return told
