"""Progress lines of `mambaserve serve` between its start and the moment it is ready."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog
from rich.console import Console

from mamba_cli.local.loading.loading_progress import LoadingProgress
from mamba_server.api.engine_link.engine_state import EngineState
from mamba_telemetry.logs import get_logger, set_up_logs

STATES = [
    EngineState("loading", "", "tokenizer", 0, 1),
    *(EngineState("loading", "", "weights", done << 28, 4 << 30) for done in range(17)),
    EngineState("ready", "ready"),
]


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    stream = io.StringIO()
    set_up_logs(process="api", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)


def test_without_a_terminal_quarters_of_each_stage_are_log_lines(logs: io.StringIO) -> None:
    progress = LoadingProgress("m", Console(file=logs))
    for state in STATES:
        progress(state)
    lines = [json.loads(line) for line in logs.getvalue().splitlines()]
    assert {line["event"] for line in lines} == {"loading"}
    assert [line["done"] >> 30 for line in lines if line["stage"] == "weights"] == [0, 1, 2, 3, 4]


def test_on_a_terminal_there_is_a_bar_and_log_lines_go_through_it(
    logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", logs)
    progress = LoadingProgress("m", Console(file=logs, force_terminal=True, width=80))
    for state in STATES[:-1]:
        progress(state)
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is not logs
    progress(STATES[-1])
    assert handler.stream is logs
    get_logger("x").info("after")
    assert "m: tokenizer" in logs.getvalue()
    assert "0 of 1" not in logs.getvalue()


def test_a_start_that_failed_gives_the_terminal_back(
    logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", logs)
    progress = LoadingProgress("m", Console(file=logs, force_terminal=True))
    progress(STATES[0])
    progress.close()
    progress.close()
    assert sys.stderr is logs
