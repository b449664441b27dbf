"""`mambaserve gateway`: options and environment become its settings, and each failure has its exit code."""

import errno
import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mamba_cli import main
from mamba_cli.commands import gateway as gateway_command
from mamba_edge.api_keys import KeyFileError
from mamba_edge.listener import CannotListen
from mamba_gateway.settings import GatewaySettings

Run = Callable[..., tuple[int, str]]
PICKER = ("--backend", "http://[fd00::1]:8000", "--endpoint-picker-port", "9002")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[GatewaySettings]:
    """Return the settings of each started gateway; it ends at once, with code 0."""
    seen: list[GatewaySettings] = []

    async def serve(
        settings: GatewaySettings,
        ready: Callable[[str], None],
        picker_ready: Callable[[int], None],
        **_: Any,
    ) -> int:
        seen.append(settings)
        if settings.endpoint_picker_port is not None:
            picker_ready(settings.endpoint_picker_port)
        ready(f"http://{settings.host}:{settings.port}")
        return 0

    monkeypatch.setattr("mamba_gateway.process.server.serve", serve)
    monkeypatch.setattr("mamba_telemetry.logs.set_up_logs", lambda **_: None)
    return seen


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command: exit code and standard error. Nothing may go to standard output."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["mambaserve", "gateway", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        said = capsys.readouterr()
        assert said.out == ""
        return int(ended.value.code or 0), said.err

    return run


def test_options_become_settings(gateway: Run, started: list[GatewaySettings]) -> None:
    code, said = gateway(
        "--backend", "http://a:1/v1", "--backend", "http://b:2/", "--port", "0", "--max-queue", "0",
        "--max-body-bytes", "1MiB", "--drain-timeout", "2.5",
    )  # fmt: skip
    assert code == 0
    [settings] = started
    assert settings.backend == ("http://a:1", "http://b:2")
    assert (settings.port, settings.max_queue, settings.drain_timeout) == (0, 0, 2.5)
    assert settings.max_body_bytes == 1 << 20
    assert said == "mambaserve gateway ready at http://127.0.0.1:0\n"


def test_it_serves_also_where_nobody_can_be_told_that_it_is_ready(
    started: list[GatewaySettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.FileIO("/dev/full", "w")
    with io.TextIOWrapper(raw, write_through=True) as full:
        monkeypatch.setattr("sys.stderr", full)
        assert gateway_command.run({"backend": ("http://a:1",)}) == 0
    assert len(started) == 1


def test_the_environment_stands_in_for_options_and_for_what_has_none(
    gateway: Run, started: list[GatewaySettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_BACKEND", "http://a:1 http://b:2")
    monkeypatch.setenv("MAMBASERVE_MAX_ATTEMPTS", "7")
    monkeypatch.setenv("MAMBASERVE_QUEUE_TIMEOUT", "1.5")
    assert gateway("--max-attempts", "2")[0] == 0
    assert started[0].backend == ("http://a:1", "http://b:2")
    assert (started[0].max_attempts, started[0].queue_timeout) == (2, 1.5)


def test_one_backend_given_twice_is_one(gateway: Run, started: list[GatewaySettings]) -> None:
    gateway("--backend", "http://a:1", "--backend", "http://a:1/v1/")
    assert started[0].backend == ("http://a:1",)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either --backend URL (repeatable) or --deployment NAME"),
        (["--backend", "http://a:1", "--deployment", "x"], "give either --backend URL"),
        (["--backend", "a:1"], "--backend: 'a:1' is not an http:// or https:// URL"),
        (["--backend", ""], "--backend: '' is not an http:// or https:// URL"),
        (["--backend", "http://"], "--backend: 'http://' is not an http:// or https:// URL"),
        (["--backend", "http://a:1?x=1"], "a base URL has neither query nor fragment"),
        (["--backend", "http://a:1", "--port", "65536"], "--port: "),
        (["--backend", "http://a:1", "--max-attempts", "0"], "--max-attempts: "),
        (["--backend", "http://a:1", "--hold-timeout", "-1"], "--hold-timeout: "),
        (["--backend", "http://a:1", "--drain-timeout", "nan"], "--drain-timeout: "),
        (["--backend", "http://a:1", "--max-body-bytes", "many"], "--max-body-bytes: "),
        (["--backend", "http://a:1", "--endpoint-picker-port", "1"], "give it as http://IP:PORT"),
        (["--backend", "https://10.0.0.1:1", "--endpoint-picker-port", "1"], "give it as http://IP:PORT"),
        (["--backend", "http://10.0.0.1", "--endpoint-picker-port", "1"], "give it as http://IP:PORT"),
        (["--backend", "http://a:1", "--no-endpoint-picker-tls"], "give --endpoint-picker-port, too"),
        (["--backend", "http://a:1", "--inference-pool", "x"], "give --endpoint-picker-port, too"),
        ([*PICKER, "--endpoint-picker-key", "k"], "belong together"),
        (
            [
                *PICKER,
                "--endpoint-picker-key",
                "k",
                "--endpoint-picker-certificate",
                "c",
                "--no-endpoint-picker-tls",
            ],
            "leave out one of the two",
        ),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_option(
    gateway: Run, started: list[GatewaySettings], arguments: list[str], said: str
) -> None:
    code, err = gateway(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert said in err
    assert started == []


def test_a_value_that_is_none_of_the_choices_is_wrong_usage(
    gateway: Run, started: list[GatewaySettings]
) -> None:
    code, err = gateway("--backend", "http://a:1", "--log-level", "loud")
    assert code == 2
    assert "--log-level" in err
    assert started == []


def test_where_the_endpoint_picker_listens_is_said_before_the_ready_line(
    gateway: Run, started: list[GatewaySettings]
) -> None:
    code, said = gateway(*PICKER)
    assert code == 0
    assert said.splitlines()[0] == "mambaserve endpoint picker ready at 127.0.0.1 port 9002"
    assert started[0].endpoint_picker_tls


def test_a_picker_without_its_extra_says_what_to_install(
    gateway: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(*_: Any, **__: Any) -> int:
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr("mamba_gateway.process.server.serve", serve)
    monkeypatch.setattr("mamba_telemetry.logs.set_up_logs", lambda **_: None)
    code, said = gateway(*PICKER)
    assert code == 2
    assert "[gateway,endpoint-picker]'" in said


def test_all_wrong_options_are_named_at_once(gateway: Run) -> None:
    _, err = gateway("--backend", "http://a:1", "--port", "-1", "--max-queue", "-1")
    assert "--port: " in err
    assert "--max-queue: " in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), 1, "cannot serve at 127.0.0.1:8000: "),
        (ValueError("keys: no key in it"), 2, "keys: no key in it"),
        (KeyFileError("--api-key-file: keys: No such file"), 2, "--api-key-file: keys: No such file"),
        (
            CannotListen("cannot listen on 127.0.0.1:8000: taken"),
            1,
            "--port: cannot listen on 127.0.0.1:8000: ",
        ),
        (
            CannotListen("cannot listen on 127.0.0.1:9002: taken", "--endpoint-picker-port"),
            1,
            "--endpoint-picker-port: cannot listen on 127.0.0.1:9002: ",
        ),
        (FileNotFoundError(errno.ENOENT, "No such file", "other"), 1, "cannot serve at "),
    ],
)
def test_each_failure_has_its_exit_code(
    gateway: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    async def serve(*_: Any, **__: Any) -> int:
        raise error

    monkeypatch.setattr("mamba_gateway.process.server.serve", serve)
    monkeypatch.setattr("mamba_telemetry.logs.set_up_logs", lambda **_: None)
    got, err = gateway("--backend", "http://a:1", "--api-key-file", "keys")
    assert got == code
    assert err.startswith(f"error: {said}")


def test_requests_that_were_cut_at_the_end_are_a_failure(
    gateway: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(*_: Any, **__: Any) -> int:
        return 1

    monkeypatch.setattr("mamba_gateway.process.server.serve", serve)
    monkeypatch.setattr("mamba_telemetry.logs.set_up_logs", lambda **_: None)
    assert gateway("--backend", "http://a:1") == (1, "")
