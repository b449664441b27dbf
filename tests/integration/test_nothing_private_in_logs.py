"""Contents of requests and secrets appear in no log line and no span of any process, whatever goes wrong."""

from collections.abc import Iterator
from typing import Any

import pytest

from engine_api import ApiProcess, end, serving
from otlp_receiver import Received, http_receiver
from servers import Command, call
from tiny_model import TEMPLATE, write_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KEY, WRONG_KEY, PASSWORD = "marked-key", "marked-wrong-key", "marked-password"
SAID = "marked words of a client"
# An error that no handler knows: the filter gets text where it needs a number.
FAILING = "{% if messages[0].content[:5] == 'crash' %}{{ messages[0].content | indent('x') }}{% endif %}"


Processes = tuple[ApiProcess, Command, str, Received]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder = tmp_path_factory.mktemp("private")
    (keys := folder / "keys").write_text(f"{KEY}\n")
    model = write_model(folder / "tiny", template=TEMPLATE + FAILING)
    with (
        http_receiver() as received,
        serving(model, log_level="debug", api_key_file=str(keys), otlp_endpoint=received.url) as api,
    ):
        options = ("--port", "0", "--log-level", "debug", "--api-key-file", str(keys),
                   "--backend-key-file", str(keys), "--otlp-endpoint", received.url)  # fmt: skip
        lost = f"http://user:{PASSWORD}@127.0.0.1:9"
        with Command("gateway", "--backend", api.url, "--backend", lost, *options) as gateway:
            yield api, gateway, gateway.wait_for(r"ready at (http://\S+)")[1], received


def bodies() -> Iterator[tuple[str, Any]]:
    message = {"role": "user", "content": SAID}
    yield TEXT, {"prompt": SAID, "max_tokens": 2, "user": SAID, "unheard_of": SAID}
    yield TEXT, {"prompt": SAID, "temperature": SAID, "stop": [1, SAID]}
    yield TEXT, {"prompt": SAID * 100}
    yield TEXT, {"prompt": SAID, "structured_outputs": {"grammar": f'start: no_rule "{SAID}"'}}
    yield TEXT, {"prompt": SAID, "max_tokens": 2, "structured_outputs": {"choice": [SAID]}}
    yield TEXT, {"prompt": SAID, "max_tokens": 9, "cache_salt": "fail"}
    yield TEXT, {"prompt": SAID, "max_tokens": 9, "stream": True, "cache_salt": "fail"}
    yield CHAT, {"messages": [message], "max_tokens": 2}
    yield CHAT, {"messages": [{**message, "role": "tool", "name": SAID}], "max_tokens": 2}
    yield CHAT, {"messages": [{**message, "content": "refuse me"}, message]}
    yield CHAT, {"messages": [{**message, "content": f"crash {SAID}"}]}
    yield CHAT, {"messages": [{**message, "content": {"text": SAID}}]}
    yield CHAT, b'{"messages": "' + SAID.encode()


def test_nothing_that_clients_say_or_keep_secret_is_logged_or_traced(processes: Processes) -> None:
    api, gateway, url, received = processes
    for key in (KEY, WRONG_KEY):
        headers = {"authorization": f"Bearer {key}"}
        for path, body in bodies():
            raw = body if isinstance(body, bytes) else None
            sent = None if raw else body
            statuses = [api.call("POST", path, sent, raw=raw, headers=headers).status]
            through = ApiProcess(api.process, api.output, url=url)
            statuses.append(through.call("POST", path, sent, raw=raw, headers=headers).status)
            if raw or not body.get("stream"):  # a stream that fails may or may not have begun by then
                assert statuses[0] == statuses[1]
            assert {status == 401 for status in statuses} == {key == WRONG_KEY}
    assert call(f"{url}/v1/models?api_key={KEY}")[0] == 401
    gateway.terminate()
    gateway.wait()
    end(api)
    assert {span.service for span in received.spans} == {"mambaserve", "mambaserve-gateway"}
    assert any(span.failed for span in received.spans)
    sent = b"".join(received.raw).decode("utf-8", "replace")
    written = "".join(api.logs) + gateway.output
    assert written.count("request") > 10
    for secret in (KEY, WRONG_KEY, PASSWORD, SAID):
        assert secret not in written
        assert secret not in sent
