"""The engine process dies, hangs, refuses to start: what the API process and its clients see."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from engine_api import ApiProcess, end, launch, read_ready_line, serving
from eventually import PATIENCE, wait_until
from testcluster.free_ports import free_port
from tiny_model import write_model

USER = [{"role": "user", "content": "one two three"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def api(model: Path) -> Iterator[ApiProcess]:
    with serving(model) as running:
        yield running


def client(api: ApiProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key="any", max_retries=0, timeout=PATIENCE)


def counted(api: ApiProcess) -> tuple[float, float]:
    """Return the restarts of the engine, and the requests that ended in an error."""
    names = ("engine_restarts_total{", 'requests_finished_total{model="tiny",reason="error"}')
    lines = api.call("GET", "/metrics").body.decode().splitlines()
    restarts, errors = (
        sum(float(line.split()[-1]) for line in lines if line.startswith(f"mambaserve_{name}"))
        for name in names
    )
    return restarts, errors


def engine_pid(api: ApiProcess) -> int:
    pid: int = api.engine()["pid"]
    return pid


def in_background(job: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(job())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


class TestKilled:
    def test_a_running_stream_gets_an_error_event_a_waiting_request_503_and_then_all_is_well(
        self, api: ApiProcess
    ) -> None:
        restarts, errors = counted(api)
        with client(api) as made:
            before = engine_pid(api)
            waiting, answers = in_background(
                lambda: api.call("POST", "/v1/completions", {"prompt": "x", "cache_salt": "never"})
            )
            stream = made.chat.completions.create(
                model="tiny", messages=USER, stream=True, extra_body={"cache_salt": "slow"}
            )
            chunks = iter(stream)
            next(chunks)
            next(chunks)
            wait_until(lambda: len(api.engine()["running"]) == 2)
            os.kill(before, signal.SIGKILL)
            with pytest.raises(openai.APIError, match="signal 9"):
                list(chunks)
            waiting.join(PATIENCE)
            answer = answers[0]
            assert (answer.status, answer.error["code"]) == (503, "engine_lost")
            assert int(answer.headers["retry-after"]) >= 1
            api.wait_ready()
            assert engine_pid(api) != before
            done = made.chat.completions.create(model="tiny", messages=USER, max_tokens=2)
            assert done.choices[0].finish_reason == "length"
            assert counted(api) == (restarts + 1, errors + 2)

    def test_while_it_restarts_requests_get_503_and_readyz_says_why(
        self, model: Path, tmp_path: Path
    ) -> None:
        gate = tmp_path / "open"
        gate.touch()
        with serving(model, script={"gate": str(gate)}) as api:
            gate.unlink()
            os.kill(engine_pid(api), signal.SIGKILL)
            wait_until(lambda: not api.is_ready())
            ready = api.call("GET", "/readyz")
            assert ready.json["status"] == "restarting"
            assert "signal 9" in ready.json["reason"]
            assert int(ready.headers["retry-after"]) >= 1
            answer = api.call("POST", "/v1/completions", {"prompt": "x"})
            assert (answer.status, answer.error["code"]) == (503, "not_ready")
            assert api.call("GET", "/livez").status == 200
            admin = api.call("GET", "/admin/plan", admin=True)
            assert (admin.status, admin.error["code"]) == (503, "not_ready")
            gate.touch()
            api.wait_ready()

    def test_dying_again_it_comes_back_again_and_removes_the_sockets_of_the_dead(
        self, api: ApiProcess
    ) -> None:
        seen = set()
        for _ in range(2):
            pid = engine_pid(api)
            seen.add(pid)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not api.is_ready())
            api.wait_ready()
            assert api.call("POST", "/v1/completions", {"prompt": "x"}).status == 200
        assert len(seen) == 2
        process = psutil.Process(api.process.pid)
        folders = {
            str(Path(link.laddr).parent)
            for link in process.net_connections("unix")
            if "mambaserve-" in str(link.laddr)
        }
        assert len(folders) == 1

    def test_an_engine_that_ends_in_the_middle_of_an_answer_by_itself_is_told_too(
        self, api: ApiProcess
    ) -> None:
        answer = api.call("POST", "/v1/completions", {"prompt": "a b c d", "cache_salt": "die+slow"})
        assert (answer.status, answer.error["code"]) == (503, "engine_lost")
        assert "exit code 9" in answer.error["message"]
        api.wait_ready()


def test_a_hung_engine_is_replaced(model: Path) -> None:
    with serving(model, engine_silence=1.0) as api:
        before = engine_pid(api)
        os.kill(before, signal.SIGSTOP)
        answer = api.call("POST", "/v1/completions", {"prompt": "x"})
        assert (answer.status, answer.error["code"]) == (503, "engine_lost")
        assert "hung" in answer.error["message"]
        api.wait_ready()
        assert engine_pid(api) != before


def test_an_engine_that_does_not_hang_is_left_alone(model: Path) -> None:
    with serving(model, engine_silence=2.5, script={"beat": 0.1}) as api:
        before = engine_pid(api)
        time.sleep(3)
        assert engine_pid(api) == before


def test_an_engine_that_talks_nonsense_is_replaced(model: Path, tmp_path: Path) -> None:
    script = {"once": str(tmp_path / "mark"), "first": {"garbage": True, "load": 0.2}, "then": {}}
    with serving(model, script=script) as api:
        assert api.call("GET", "/readyz").status == 200
        assert api.wait_log("engine_message_unreadable")["level"] == "error"


class TestStart:
    def exit_of(self, api: ApiProcess) -> tuple[int, str]:
        try:
            code = api.wait_exit()
            wait_until(lambda: any(line.startswith("error:") for line in api.logs))
            return code, "".join(line for line in api.logs if line.startswith("error:"))
        finally:
            end(api)

    def test_fatal_before_ready_ends_the_api_with_its_code_and_words(self, model: Path) -> None:
        api = launch(model, script={"fatal": "needs 12 GiB, has 8", "exit_code": 3})
        assert self.exit_of(api) == (3, "error: needs 12 GiB, has 8\n")

    def test_an_engine_that_never_comes_up_is_given_up(self, model: Path) -> None:
        code, message = self.exit_of(launch(model, script={"die": 7}))
        assert code == 1
        assert "exit code 7" in message
        assert "3 starts in a row" in message

    def test_one_bad_start_is_forgiven(self, model: Path, tmp_path: Path) -> None:
        script = {"once": str(tmp_path / "mark"), "first": {"die": 5}, "then": {}}
        with serving(model, script=script) as api:
            assert api.call("GET", "/readyz").status == 200

    def test_while_it_loads_readyz_tells_how_far(self, model: Path) -> None:
        api = launched_at_a_known_port(model, {"progress": 40})
        try:
            seen: dict[int, bool] = {}
            while len(seen) < 3:
                answer = api.call("GET", "/readyz")
                if answer.json.get("stage") == "weights":
                    assert answer.status == 503
                    assert answer.json["status"] == "loading"
                    assert answer.json["total"] == 40
                    seen[answer.json["done"]] = True
                time.sleep(0.02)
            assert sorted(seen) == list(seen)
            assert len(seen) == 3
            assert api.call("GET", "/health").status == 503
            refused = api.call("POST", "/v1/completions", {"prompt": "x"})
            assert (refused.status, refused.error["code"]) == (503, "not_ready")
            read_ready_line(api)
            assert api.call("GET", "/readyz").json["status"] == "ready"
        finally:
            end(api)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"model": "/no/such/directory"}, "/no/such/directory"),
            ({"api_key_file": "/no/such/file"}, "api_key_file: /no/such/file"),
            ({"arena_bytes": "many"}, "--arena-bytes"),
        ],
    )
    def test_invalid_input_is_one_message_and_exit_code_2(
        self, model: Path, settings: dict[str, Any], words: str
    ) -> None:
        given = {"model": str(model), **settings}
        code, message = self.exit_of(launch(**given))
        assert code == 2
        assert words in message

    def test_a_tokenizer_of_another_model_is_refused(self, tmp_path: Path) -> None:
        small = write_model(tmp_path / "small", config={"vocab_size": 100})
        code, message = self.exit_of(launch(small))
        assert code == 2
        assert "tokenizer.json" in message
        assert "vocab_size 100" in message

    def test_a_taken_port_is_told(self, api: ApiProcess, model: Path) -> None:
        port = int(api.url.rsplit(":", 1)[1])
        code, message = self.exit_of(launch(model, port=port))
        assert code == 1
        assert f"127.0.0.1:{port}" in message

    def test_the_engine_gets_the_settings_with_the_model_resolved(self, api: ApiProcess, model: Path) -> None:
        settings = api.engine()["settings"]
        assert settings["model"] == str(model)
        assert settings["served_model_name"] == "tiny"


def launched_at_a_known_port(model: Path, script: dict[str, Any]) -> ApiProcess:
    """Start a process that listens but is not ready; retry if its port was taken."""
    while True:
        port = free_port()
        api = launch(model, script=script, port=port, admin_port=0)
        api.url = f"http://127.0.0.1:{port}"
        wait_until(partial(answers_or_ended, api))
        if api.process.poll() is None:
            return api
        end(api)


def answers_or_ended(api: ApiProcess) -> bool:
    return api.process.poll() is not None or answers(api)


def answers(api: ApiProcess) -> bool:
    try:
        return bool(api.call("GET", "/livez").status)
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
def test_the_ready_line_tells_both_addresses_and_the_engine_dies_with_its_api_process(model: Path) -> None:
    api = launch(model)
    try:
        line = read_ready_line(api)
        assert line == f"mambaserve: ready: tiny at {api.url}/v1 (admin {api.admin})\n"
        assert api.call("GET", "/readyz").status == 200
        assert api.call("GET", "/admin/plan", admin=True).status == 200
        engine = psutil.Process(engine_pid(api))
        api.process.kill()
        api.wait_exit()
        _, alive = psutil.wait_procs([engine], timeout=PATIENCE)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    finally:
        end(api)
