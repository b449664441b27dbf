"""Requests of the OpenAPI document, the pages and the example programs: the shipped model answers each."""

import json
import re
import runpy
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from documented_commands import ROOT, DocumentedCommand, documented_commands
from servers import Server

ADDRESS = re.compile(r"^(?:http://)?(?:127\.0\.0\.1|localhost):8000(?=/)")
LEFT_OUT = ("/admin/load_lora_adapter", "/admin/unload_lora_adapter", "/admin/lora_adapters")
"""Paths of the admin port, which need adapters: tests/integration/test_adapters.py calls them."""
ANSWERED = {
    "/v1/chat/completions": "choices",
    "/v1/completions": "choices",
    "/v1/messages": "content",
    "/v1/messages/count_tokens": "input_tokens",
    "/v1/responses": "output",
    "/v1/embeddings": "data",
    "/v1/rerank": "results",
    "/v2/rerank": "results",
    "/v1/score": "data",
    "/tokenize": "tokens",
    "/detokenize": "prompt",
}
"""Paths whose document has examples, and a field of each answer."""


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with Server("builtin://tiny-recall") as server:
        yield server


def test_every_example_of_the_document_is_answered_as_it_stands(running: Server) -> None:
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
                assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"city", "capital"}
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


def requests() -> dict[tuple[str, ...], DocumentedCommand]:
    """Return the commands of curl on all pages, each once."""
    return {command.words: command for command in documented_commands() if command.program == "curl"}


def sent(words: tuple[str, ...], url: str) -> list[str]:
    """Return the arguments of a command for the server of a test and the shipped model."""
    arguments = [ADDRESS.sub(url, word) for word in words[1:]]
    return [re.sub(r'"model": "[^"]*"', '"model": "tiny-recall"', word) for word in arguments]


@pytest.mark.slow
def test_each_request_of_a_page_is_answered(running: Server) -> None:
    commands = requests()
    answered = 0
    for words, command in commands.items():
        if any(word.endswith(LEFT_OUT) for word in words):
            continue
        done = subprocess.run(
            ["curl", "-s", "--fail-with-body", *sent(words, running.url)],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        if "-o" not in words:
            body = json.loads(re.split(r"\r?\n\r?\n", done.stdout)[-1])
            assert "choices" in body or body["data"][0]["id"] == "tiny-recall", command
        answered += 1
    assert answered > 8


@pytest.mark.slow
def test_each_program_of_the_examples_that_asks_a_server_runs_as_it_stands(
    running: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAMBASERVE_URL", running.url)
    printed = {}
    for name in ("chat", "stream", "tools", "schema", "logprobs"):
        runpy.run_path(str(ROOT / f"examples/python/{name}.py"), run_name="__main__")
        printed[name] = capsys.readouterr().out
    assert printed["chat"].splitlines()[:2] == ["iron", "red"]
    assert re.search(r"^\d\d of 43 prompt tokens resumed$", printed["chat"], re.MULTILINE)
    assert printed["stream"].startswith("3 4 5 6 7 8 9\n")
    assert printed["tools"].startswith("weather({")
    assert printed["schema"].startswith("Ticket(product=")
    assert "'4" in printed["logprobs"]
