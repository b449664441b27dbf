"""Why a prompt was no hit, over HTTP and by command: in every dialect, and never in another key's words."""

import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from typer.testing import CliRunner

from eventually import wait_until
from mamba_api.dialects.messages_answer import MessagesResponse
from mamba_api.dialects.responses_answer import ResponsesResponse
from mamba_api.openai_responses import ChatCompletionChunk, ChatCompletionResponse, CompletionResponse
from mamba_cli.errors import InvalidInput
from mamba_cli.main import application
from matrix_size import LARGE
from servers import Command, Server, call

pytestmark = pytest.mark.slow

MODEL = "tiny-recall"
EXPLAIN = {"X-Mambaserve-Explain": "1"}
RULES = " ".join(f"rule{number}" for number in range(30))
Explained = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("ann-key ann\nbob-key bob\n")
    options = ("--arena-bytes", "8Mi", "--max-model-len", "1024", "--api-key-file", str(keys))
    with Server(f"builtin://{MODEL}", *options) as running:
        yield running


def post(server: Server, path: str, body: Any, key: str = "ann", **headers: str) -> bytes:
    fields = {"Content-Type": "application/json", "Authorization": f"Bearer {key}-key", **EXPLAIN, **headers}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), fields)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def completion(server: Server, prompt: Any, key: str = "ann", **more: Any) -> Any:
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
    answer = json.loads(post(server, "/v1/completions", body, key))
    CompletionResponse.model_validate(answer)
    return answer


def chat(day: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": f"{RULES} Today is {day}. {RULES}"},
        {"role": "user", "content": "hello"},
    ]


def test_every_dialect_says_where_a_prompt_parts_and_a_stream_says_it_once(server: Server) -> None:
    def explained(path: str, day: str, stream: bool, **more: Any) -> list[Explained]:
        messages = chat(day)
        if path == "/v1/responses":
            body = {"instructions": messages[0]["content"], "input": messages[1:], "max_output_tokens": 2}
        elif path == "/v1/messages":
            body = {"system": messages[0]["content"], "messages": messages[1:], "max_tokens": 2}
        else:
            body = {"messages": messages, "max_tokens": 2}
        raw = post(server, path, {"model": MODEL, "stream": stream, **body, **more})
        if not stream:
            answer = json.loads(raw)
            forms = {"/v1/responses": ResponsesResponse, "/v1/messages": MessagesResponse}
            forms.get(path, ChatCompletionResponse).model_validate(answer)
            return [answer["mambaserve"]["explain"][0]]
        events = [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]
        if path == "/v1/chat/completions":
            for event in events:
                ChatCompletionChunk.model_validate(event)
        found = [event.get("response", event).get("mambaserve") for event in events]
        return [each["explain"][0] for each in found if each is not None]

    explained("/v1/chat/completions", "2026-11-20", stream=False)
    usage = {"stream_options": {"include_usage": True}}
    cases = [
        ("/v1/chat/completions", True, {}),
        ("/v1/chat/completions", True, usage), ("/v1/messages", False, {}), ("/v1/messages", True, {}),
        ("/v1/responses", False, {}), ("/v1/responses", True, {}),
    ]  # fmt: skip
    for number, (path, stream, more) in enumerate(cases):
        [one] = explained(path, f"2026-11-2{number + 1}", stream, **more)
        assert one["shared_text"].endswith("Today is 2026-11-2"), (path, one)
        assert one["prompt_text"].startswith(f"{number + 1}. rule0"), (path, one)
        assert one["cached_text"][1:].startswith(". rule0"), (path, one)
        assert one["resumed_tokens"] <= one["common_tokens"] < one["prompt_tokens"]
    [same] = explained("/v1/chat/completions", "2026-11-21", stream=False)
    assert same["reason"] == "resumed_all"


def test_several_prompts_and_choices_are_explained_one_by_one(server: Server) -> None:
    answer = completion(server, ["alpha beta " * 20, "gamma delta " * 20], n=2)
    assert [each["prompt"] for each in answer["mambaserve"]["explain"]] == [0, 1]
    stream = post(server, "/v1/completions", {"prompt": "a b c", "n": 3, "max_tokens": 2, "stream": True})
    assert stream.count(b'"explain"') == 1
    assert b'"explain"' in stream.split(b"\n\n")[-3]


def test_the_depth_is_that_of_the_token_ids_and_the_resumed_tokens_are_those_of_the_usage(
    server: Server,
) -> None:
    first = list(range(300, 400))
    completion(server, first)
    for depth in (0, 1, 37, 64, 99):
        answer = completion(server, [*first[:depth], *range(450, 500)])
        [one] = answer["mambaserve"]["explain"]
        # A whole page is cached at the end of a prompt, not its last tokens.
        assert one["common_tokens"] == min(depth, 96)
        assert one["resumed_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_nobody_reads_or_measures_what_another_key_or_salt_has_cached(server: Server) -> None:
    secret = "the code of the vault is four nine two seven, and nobody else may ever know that. " * 3
    guess = "the code of the vault is four nine three " * 2
    completion(server, secret)
    [own] = completion(server, guess)["mambaserve"]["explain"]
    assert "wo seven" in own["cached_text"]
    completion(server, secret + "more", cache_salt="ann's own")
    for key, salt in (("bob", None), ("bob", "bob's own"), ("ann", "bob's own")):
        answer = completion(server, guess + "again", key, cache_salt=salt)
        text = json.dumps(answer["mambaserve"])
        assert "wo seven" not in text, text
        [one] = answer["mambaserve"]["explain"]
        if key == "bob" and salt is None:
            assert one["common_tokens"] % 16 == 0
        if (key, salt) == ("bob", "bob's own"):
            assert one["common_tokens"] == 0


@pytest.mark.skipif(not LARGE, reason="two engines at work, 17 CPU seconds: MAMBASERVE_GATES=large")
def test_behind_a_gateway_a_prompt_that_another_engine_has_names_that_engine() -> None:
    options = ("--arena-bytes", "8Mi", "--max-model-len", "1024")
    with ExitStack() as stack:
        having, chosen = (stack.enter_context(Server(f"builtin://{MODEL}", *options)).url for _ in range(2))
        # What an engine has cached hardly counts, so the one that is at work is avoided nonetheless.
        gateway = stack.enter_context(
            Command(
                "gateway", "--port", "0", "--backend", having, "--backend", chosen,
                "--prefix-weight", "0.000001", "--load-weight", "100", "--probe-interval", "0.2",
            )
        )  # fmt: skip
        url = gateway.wait_for(r"gateway ready at (http://\S+)")[1]
        numbers, stop = itertools.count(), threading.Event()
        explained: list[Explained] = []

        def ask(place: str, prompt: str) -> Any:
            body = json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
            fields = {"Content-Type": "application/json", **EXPLAIN}
            request = urllib.request.Request(f"{place}/v1/completions", body, fields)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())

        def work() -> None:
            while not stop.is_set():
                call(f"{having}/v1/completions", {"prompt": "work", "max_tokens": 900, "ignore_eos": True})

        def is_explained_by(reason: str) -> bool:
            prompt = f"{next(numbers)} " + "words that only one engine has read so far " * 6
            for place in (having, url):
                answer = ask(place, prompt)
            explained[:] = answer["mambaserve"]["explain"]
            return bool(explained[0]["reason"] == reason)

        wait_until(lambda: is_explained_by("resumed_all"), "a gateway that knows what engines have")
        working = threading.Thread(target=work)
        working.start()
        try:
            wait_until(
                lambda: is_explained_by("other_engine"), "a request beside the engine that has its prompt"
            )
        finally:
            stop.set()
            working.join()
        [one] = explained
        assert one["other_engine"]["name"] == having.removeprefix("http://")
        assert one["resumed_tokens"] < one["other_engine"]["tokens"] <= one["prompt_tokens"]


def test_the_header_has_two_values_and_without_it_nothing_is_added(server: Server) -> None:
    body = {"prompt": "plain words", "max_tokens": 1}
    assert b"mambaserve" not in post(server, "/v1/completions", body, **{"X-Mambaserve-Explain": "0"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server, "/v1/completions", body, **{"X-Mambaserve-Explain": "please"})
    error = json.loads(refused.value.read())["error"]
    assert (refused.value.code, error["param"]) == (400, "X-Mambaserve-Explain")


def test_official_clients_take_the_field_as_it_comes(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="ann-key") as client:
        messages: Any = chat("2026-12-01")
        plain = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=1, extra_headers=EXPLAIN
        )
        assert plain.model_extra is not None
        assert plain.model_extra["mambaserve"]["explain"][0]["prompt_tokens"] == plain.usage.prompt_tokens  # type: ignore[union-attr]
        with client.chat.completions.stream(
            model=MODEL, messages=messages, max_tokens=2, extra_headers=EXPLAIN
        ) as stream:
            assert any(event.type == "chunk" and event.chunk.model_extra for event in stream)
    with anthropic.Anthropic(base_url=server.url, api_key="ann-key") as claude:
        message = claude.messages.create(
            model=MODEL, messages=messages[1:], max_tokens=1, extra_headers=EXPLAIN
        )
        assert message.model_extra is not None
        assert "mambaserve" in message.model_extra


def why(*arguments: str | Path) -> tuple[int, str]:
    """Run `mambaserve why …`; return the exit code and everything that it printed."""
    with Command("why", *map(str, arguments)) as process:
        return process.wait(), process.output


def test_the_command_shows_a_request_and_tries_a_prompt_for_which_nothing_is_computed(
    server: Server, tmp_path: Path
) -> None:
    prompt = "one two three four five " * 12
    answer = completion(server, prompt)
    code, text = why(answer["id"], "--url", server.admin, "--output", "json")
    assert (code, json.loads(text)[0]["explain"]) == (0, answer["mambaserve"]["explain"])
    (file := tmp_path / "prompt.txt").write_text(prompt[:150] + "and something else")
    before = server.ledger()
    code, text = why("--prompt", file, "--key", "ann", "--url", server.admin)
    assert code == 0, text
    assert "five" in text.split("cached ")[-1]
    assert server.ledger() == before
    status, refusal = call(f"{server.admin}/admin/explanations/no-such-request")
    assert (status, refusal["error"]["code"]) == (404, "no_explanation")
    post(server, "/v1/completions", {"prompt": "a", "max_tokens": 1}, **{"X-Request-Id": "team/../a:1"})
    result = CliRunner().invoke(application("why"), ["why", "team/../a:1", "--url", server.admin])
    assert result.exit_code == 0, result.exception
    (other := tmp_path / "other.json").write_text('{"model": "other", "prompt": "a"}')
    for arguments, words in (
        (("a?b=1",), "is no identifier of a request"),
        (("../explain",), "no explanation of '../explain' is kept here"),
        (("",), "is no identifier of a request"),
        (("no-such-request",), "no explanation of 'no-such-request' is kept here"),
        (("--prompt", other), "other"),
    ):
        result = CliRunner().invoke(application("why"), ["why", *map(str, arguments), "--url", server.admin])
        assert isinstance(result.exception, InvalidInput), arguments
        assert words in str(result.exception)
