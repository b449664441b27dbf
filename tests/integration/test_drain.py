"""SIGTERM and the admin drain: running requests finish, new ones are sent away, nothing is lost."""

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_api import ApiProcess, end, launch, read_ready_line, serving
from eventually import PATIENCE, wait_until
from tiny_model import write_model

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def api(model: Path) -> Iterator[ApiProcess]:
    running = launch(model)
    try:
        read_ready_line(running)
        yield running
    finally:
        end(running)


class Stream:
    """A streamed request in a thread: the tokens that came, and how it ended."""

    def __init__(self, api: ApiProcess, **fields: Any) -> None:
        self.events: list[str] = []
        self.failure: Exception | None = None
        self.begun = threading.Event()
        body = json.dumps({"prompt": "one two", "stream": True, "cache_salt": "slow", **fields}).encode()
        self._request = urllib.request.Request(
            api.url + TEXT, data=body, headers={"content-type": "application/json"}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.begun.wait(PATIENCE)

    def _run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=PATIENCE) as answer:
                for line in answer:
                    if line.startswith(b"data: "):
                        self.events.append(line[6:].decode().strip())
                        self.begun.set()
        except Exception as error:
            self.failure = error
            self.begun.set()

    def finish(self) -> list[str]:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.events


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Return a file; running answers go on until it exists."""
    return tmp_path / "open"


@pytest.fixture
def held(model: Path, gate: Path) -> Iterator[ApiProcess]:
    with serving(model, script={"hold": str(gate)}) as running:
        yield running


def test_sigterm_lets_streams_finish_sends_new_requests_away_and_exits_0(
    held: ApiProcess, gate: Path
) -> None:
    api = held
    stream = Stream(api, max_tokens=40, cache_salt="held", return_token_ids=True)
    api.process.send_signal(signal.SIGTERM)
    wait_until(lambda: api.call("GET", "/readyz").status != 200)
    ready = api.call("GET", "/readyz")
    assert ready.json["status"] == "draining"
    refused = api.call("POST", TEXT, {"prompt": "x"})
    assert (refused.status, refused.error["code"]) == (503, "not_ready")
    assert int(refused.headers["retry-after"]) >= 1
    assert api.call("GET", "/livez").status == 200
    gate.touch()
    events = stream.finish()
    assert stream.failure is None
    # How many tokens share an event depends on how fast they are read.
    assert sum(len(json.loads(each)["choices"][0]["token_ids"]) for each in events[:-1]) == 40
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
    assert api.wait_exit() == 0


def test_a_server_that_goes_takes_requests_until_none_has_come(model: Path) -> None:
    with serving(model, drain_quiet=0.5) as api:
        api.process.send_signal(signal.SIGTERM)
        api.wait_log("leaving")
        late = api.call("POST", TEXT, {"prompt": "one two", "max_tokens": 2})
        assert late.status == 200
        assert api.is_ready()
        assert api.wait_exit() == 0


def test_an_idle_server_ends_at_once(api: ApiProcess) -> None:
    api.process.send_signal(signal.SIGTERM)
    assert api.wait_exit() == 0


def test_ctrl_c_drains_too(api: ApiProcess) -> None:
    stream = Stream(api, max_tokens=20)
    api.process.send_signal(signal.SIGINT)
    assert stream.finish()[-1] == "[DONE]"
    assert api.wait_exit() == 0


def test_a_second_signal_ends_at_once_and_streams_are_told(api: ApiProcess) -> None:
    stream = Stream(api, max_tokens=100, cache_salt="slow+stuck")
    api.process.send_signal(signal.SIGTERM)
    api.wait_log("draining")
    api.process.send_signal(signal.SIGTERM)
    assert api.wait_exit() == 1
    events = stream.finish()
    assert stream.failure is None
    assert "error" in json.loads(events[-2])


def test_after_the_deadline_what_still_runs_is_cut_and_told(model: Path) -> None:
    with serving(model, drain_timeout=0.3) as api:
        stream = Stream(api, max_tokens=100, cache_salt="slow+stuck")
        api.process.send_signal(signal.SIGTERM)
        assert api.wait_exit() == 1
        assert "error" in json.loads(stream.finish()[-2])


def test_sigterm_while_loading_ends_at_once(model: Path) -> None:
    api = launch(model, script={"load": 60})
    try:
        api.wait_log("engine_started")
        api.process.send_signal(signal.SIGTERM)
        api.wait_log("stopped_while_loading")
        assert api.wait_exit() == 0
        assert "draining" not in "".join(api.logs)
    finally:
        end(api)


def test_the_engine_is_gone_when_the_api_has_ended(api: ApiProcess) -> None:
    pid = api.engine()["pid"]
    api.process.send_signal(signal.SIGTERM)
    api.wait_exit()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class TestAdminDrain:
    def test_drain_and_undrain_turn_readiness_and_admission(self, api: ApiProcess) -> None:
        stream = Stream(api, max_tokens=20)
        answer = api.call("POST", "/admin/drain", admin=True)
        assert answer.json == {"draining": True, "underWay": 1}
        assert api.call("GET", "/readyz").json["status"] == "draining"
        assert api.call("POST", TEXT, {"prompt": "x"}).status == 503
        assert stream.finish()[-1] == "[DONE]"
        assert api.call("POST", "/admin/undrain", admin=True).json["draining"] is False
        assert api.call("GET", "/readyz").status == 200
        assert api.call("POST", TEXT, {"prompt": "x"}).status == 200

    def test_a_drained_server_still_ends_with_0(self, api: ApiProcess) -> None:
        api.call("POST", "/admin/drain", admin=True)
        api.process.send_signal(signal.SIGTERM)
        assert api.wait_exit() == 0
