"""The names of uvicorn's insides that our connections use: a release that changes one is seen here."""

import asyncio
import inspect
import logging
import re
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

ROOT = Path(__file__).parents[3]
log = logging.getLogger()
ADVICE = "adapt mamba_edge.connection, and the bound of uvicorn in pyproject.toml"
CYCLE_ARGUMENTS = [
    "scope", "transport", "flow", "logger", "access_logger", "access_log", "default_headers", "message_event",
    "expect_100_continue", "keep_alive", "on_response",
]  # fmt: skip
CYCLE_STATE = {
    "body", "chunked_encoding", "default_headers", "disconnected", "expected_content_length", "flow",
    "keep_alive", "message_event", "more_body", "on_response", "response_complete", "response_started",
    "scope", "transport", "waiting_for_100_continue",
}  # fmt: skip
PROTOCOL_STATE = {
    "access_log", "access_logger", "app", "app_state", "asgi_version", "client", "cycle",
    "expect_100_continue", "flow", "headers", "logger", "loop", "parser", "root_path", "scheme", "scope",
    "server", "server_state", "timeout_keep_alive", "timeout_keep_alive_task", "transport",
}  # fmt: skip
OVERRIDDEN = {
    "_start_asgi_task", "_unset_keepalive_if_required", "connection_lost", "connection_made", "data_received",
    "on_body", "on_header", "on_headers_complete", "on_message_begin", "on_message_complete",
    "on_response_complete", "on_url", "pause_writing", "resume_writing", "send_400_response",
    "timeout_keep_alive_handler",
}  # fmt: skip


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request was sent")


@pytest.fixture
async def protocol() -> HttpToolsProtocol:
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    return HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})


async def test_a_cycle_takes_the_arguments_that_our_protocol_passes_and_has_the_state_that_it_reads(
    protocol: HttpToolsProtocol,
) -> None:
    assert [*inspect.signature(RequestResponseCycle).parameters] == CYCLE_ARGUMENTS, ADVICE
    flow = flow_control.FlowControl(cast("asyncio.Transport", None))
    cycle = RequestResponseCycle(
        cast("Any", {"method": "GET"}), cast("Any", None), flow, log, log, False,
        [], asyncio.Event(), False, True, lambda: None,
    )  # fmt: skip
    assert {name for name in CYCLE_STATE if not hasattr(cycle, name)} == set(), ADVICE
    assert isinstance(cycle.body, bytes | bytearray), ADVICE


async def test_a_protocol_has_the_state_and_calls_the_methods_that_ours_replaces(
    protocol: HttpToolsProtocol,
) -> None:
    assert {name for name in PROTOCOL_STATE if not hasattr(protocol, name)} == set(), ADVICE
    assert OVERRIDDEN - set(vars(HttpToolsProtocol)) == set(), ADVICE
    assert [*inspect.signature(HttpToolsProtocol._start_asgi_task).parameters] == ["self", "cycle", "app"], (
        ADVICE
    )


def test_the_module_has_the_constants_that_direct_writes_use() -> None:
    assert httptools_impl.STATUS_LINE[200].startswith(b"HTTP/1.1 200 "), ADVICE
    assert isinstance(httptools_impl.HEADER_RE, re.Pattern), ADVICE
    assert isinstance(httptools_impl.HEADER_VALUE_RE, re.Pattern), ADVICE
    assert flow_control.HIGH_WATER_LIMIT > 0, ADVICE
    assert {"pause_reading", "resume_reading"} <= set(vars(flow_control.FlowControl)), ADVICE
    assert {"connections", "default_headers", "total_requests"} <= set(vars(ServerState())), ADVICE


def test_every_extra_that_has_uvicorn_bounds_it_from_above_and_the_installed_one_is_within() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds = [
        requirement.specifier
        for names in extras.values()
        for requirement in map(Requirement, names)
        if requirement.name == "uvicorn"
    ]
    assert bounds
    for bound in bounds:
        assert any(part.operator == "<" for part in bound)
        assert bound.contains(uvicorn.__version__)
