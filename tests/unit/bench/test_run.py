"""One whole run against a server: which model is measured, what is counted, what is refused."""

import asyncio
import io
import json
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.run import LoadPlan, execute, write
from mamba_cli.bench.samples import LatencyLimits
from mamba_cli.errors import InvalidInput, RunFailed


@dataclass
class Api:
    """An OpenAI-compatible server that answers every prompt with one token, or as `statuses` say."""

    models: web.Response | None = None
    statuses: list[int] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    third: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the third prompt has come."""
    url: str = ""

    async def list(self, _: web.Request) -> web.Response:
        return self.models or web.json_response({"data": [{"id": "first"}, {"id": "second"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.prompts.append(body["prompt"])
        if len(self.prompts) == 3:
            self.third.set()
        status = self.statuses.pop(0) if self.statuses else 200
        if status != 200:
            return web.json_response({"error": {"code": "no"}}, status=status)
        response = web.StreamResponse()
        await response.prepare(request)
        done = {"choices": [{"text": body["model"], "finish_reason": "length"}]}
        await response.write(b"data: " + json.dumps(done).encode() + b"\n\ndata: [DONE]\n\n")
        return response


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    found = Api()
    app = web.Application()
    app.router.add_get("/v1/models", found.list)
    app.router.add_post("/v1/completions", found.complete)
    async with TestServer(app) as server:
        found.url = str(server.make_url("")).rstrip("/")
        yield found


def prompts() -> Iterator[LoadPrompt]:
    return (LoadPrompt((9, 10 + number), 1) for number in range(4))


def plan(url: str, **changes: Any) -> LoadPlan:
    given: dict[str, Any] = {
        "url": url, "prompts": prompts, "total": 4, "concurrency": 2, "limit": None, "warmup": 0,
        "model": None, "api_key": None, "timeout": 5.0, "slo": LatencyLimits(), "load": {"requests": 4},
    }  # fmt: skip
    return LoadPlan(**{**given, **changes})


def quiet() -> Console:
    return Console(file=io.StringIO())


async def test_the_first_model_is_measured_unless_another_is_named(api: Api) -> None:
    assert (await execute(plan(api.url), quiet()))["model"] == "first"
    assert (await execute(plan(f"{api.url}/v1/", model="second"), quiet()))["model"] == "second"


async def test_an_open_loop_sends_every_prompt_too(api: Api) -> None:
    found = await execute(plan(api.url, concurrency=None, limit=1), quiet())
    assert found["requests"]["ok"] == 4
    assert found["requests"]["peak_concurrency"] == 1


async def test_the_report_says_what_was_run_and_keeps_the_key_to_itself(api: Api) -> None:
    found = await execute(plan(api.url, api_key="secret"), quiet())
    assert (found["url"], found["load"], found["interrupted"]) == (api.url, {"requests": 4}, False)
    assert "secret" not in json.dumps(found)


async def test_warm_up_requests_have_other_prompts_and_are_not_counted(api: Api) -> None:
    found = await execute(plan(api.url, warmup=3), quiet())
    assert found["requests"]["sent"] == 4
    assert len(api.prompts) == 7
    warm, run = api.prompts[:3], api.prompts[3:]
    assert [each for each in warm if each in run] == []


async def test_failures_beside_successes_are_part_of_the_report(api: Api) -> None:
    api.statuses = [429, 200, 500]
    found = await execute(plan(api.url, concurrency=1), quiet())
    assert found["requests"]["errors"] == {"429 no": 1, "500 no": 1}
    assert found["requests"]["ok"] == 2


async def test_a_run_without_one_success_failed_and_says_why(api: Api) -> None:
    api.statuses = [429] * 4
    with pytest.raises(RunFailed, match=r"no request succeeded: \{'429 no': 4\}"):
        await execute(plan(api.url), quiet())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"text": '{"data": []}', "content_type": "application/json"}, "lists no model yet; wait until"),
        ({"status": 401, "text": "who are you"}, "answered 401: who are you"),
        ({"status": 404, "text": "x" * 9999}, "answered 404: x{200}$"),
        ({"text": "<html>", "content_type": "text/html"}, "does not answer"),
        ({"text": "<html>", "content_type": "application/json"}, "does not answer like an OpenAI server"),
        ({"text": '{"models": []}', "content_type": "application/json"}, "like an OpenAI server: KeyError"),
        ({"text": '{"data": [{}]}', "content_type": "application/json"}, "like an OpenAI server: KeyError"),
        ({"text": "[]", "content_type": "application/json"}, "like an OpenAI server: TypeError"),
    ],
)
async def test_a_server_that_lists_no_models_is_not_measured(
    api: Api, answer: dict[str, Any], words: str
) -> None:
    api.models = web.Response(**answer)
    with pytest.raises(RunFailed, match=f"^{api.url}/v1/models .*{words}"):
        await execute(plan(api.url), quiet())
    assert api.prompts == []


async def test_a_model_that_is_not_served_is_wrong_usage_with_those_that_are(api: Api) -> None:
    with pytest.raises(InvalidInput, match=r"'third'.*first, second"):
        await execute(plan(api.url, model="third"), quiet())


async def test_a_named_model_is_believed_where_the_server_lists_none(api: Api) -> None:
    api.models = web.json_response({"data": []})
    assert (await execute(plan(api.url, model="mine"), quiet()))["model"] == "mine"


@pytest.mark.parametrize("url", ["localhost:8000", "127.0.0.1", "http://[::1", "ftp://h/x", "", "http://"])
async def test_what_is_no_url_is_wrong_usage(url: str) -> None:
    with pytest.raises(InvalidInput, match="is not an http:// or https:// URL"):
        await execute(plan(url), quiet())


async def test_ctrl_c_ends_an_open_loop_and_gives_the_signal_back(api: Api) -> None:
    def slow() -> Iterator[LoadPrompt]:
        return (LoadPrompt((9, 9), 1, at=number * 0.05) for number in range(1000))

    async def press() -> None:
        await api.third.wait()
        signal.raise_signal(signal.SIGINT)

    pressed = asyncio.create_task(press())
    found = await execute(plan(api.url, prompts=slow, concurrency=None, total=1000), quiet())
    await pressed
    assert found["interrupted"]
    assert 1 <= found["requests"]["ok"] < 100
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_progress_is_drawn_on_a_terminal_and_nowhere_else(api: Api) -> None:
    api.statuses = [500]
    for terminal in (True, False):
        out = io.StringIO()
        await execute(plan(api.url), Console(file=out, force_terminal=terminal, width=80))
        assert ("4/4" in out.getvalue()) is terminal


def test_a_report_is_written_as_json_for_people_and_programs(tmp_path: Path) -> None:
    write({"a": 1, "b": {"c": None}}, tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    assert json.loads(text) == {"a": 1, "b": {"c": None}}
    assert text.endswith("}\n")


@pytest.mark.parametrize("path", ["gone/r.json", "."])
def test_a_report_that_cannot_be_written_is_a_failure(tmp_path: Path, path: str) -> None:
    with pytest.raises(RunFailed, match="cannot write the file: "):
        write({}, tmp_path / path)
