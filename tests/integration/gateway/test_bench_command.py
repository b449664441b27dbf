"""`mambaserve bench` against an engine: it measures what happened, and its exit codes say how it went."""

import asyncio
import json
import os
import signal
from typing import Any

import pytest
from aiohttp import web

from eventually import PATIENCE
from mamba_cli.bench.client import LoadClient
from mamba_cli.bench.prompts import LoadPrompt
from prefork import FORK_SERVER

REAL_TIME = True
PROMPT = LoadPrompt((9, 10, 11), 3)


async def bench(*arguments: str, cwd: Any = None) -> tuple[int, str, str]:
    words = ("-m", "mamba_cli", "bench", *arguments)
    # Where numbers are long, a narrow table breaks its words.
    wide = {**os.environ, "COLUMNS": "200"}
    done = await asyncio.to_thread(FORK_SERVER.run, *words, env=wide, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


async def test_a_closed_loop_reports_what_the_engine_did(engine, tmp_path) -> None:
    fake = await engine(delay=0.1)
    code, out, err = await bench(
        *("serve", fake.url, "--requests", "20", "--concurrency", "4", "--input-tokens", "30"),
        *("--output-tokens", "6", "--output", "json", "--result", str(tmp_path / "r.json"), "--warmup", "2"),
    )
    assert code == 0, err
    found = json.loads(out)
    assert found == json.loads((tmp_path / "r.json").read_text())
    assert found["requests"] == {"sent": 20, "ok": 20, "failed": 0, "errors": {}, "peak_concurrency": 4}
    assert found["tokens"]["prompt"] == 20 * 30
    assert found["tokens"]["output"] == 20 * 6
    assert found["model"] == "m"
    assert fake.most_active == 4
    assert len(fake.bodies) == 22
    sent = json.loads(fake.bodies[-1])
    assert (sent["ignore_eos"], sent["temperature"], sent["stream"]) == (True, 0, True)
    assert "written to" in err


async def test_an_open_loop_through_the_gateway_prints_tables_and_names_its_file(
    engine, gateway, tmp_path
) -> None:
    through = await gateway(await engine())
    code, out, err = await bench(
        *("serve", through.url, "--requests", "10", "--rate", "100", "--arrival", "constant"),
        *("--shared-prefix", "0.5", "--slo-ttft-ms", "60000"),
        cwd=tmp_path,
    )
    assert code == 0, err
    assert "time to first token" in out
    assert "goodput (ttft 60000 ms)" in out
    [file] = tmp_path.glob("mambaserve-bench-*.json")
    found = json.loads(file.read_text())
    assert found["goodput"]["attainment"] == 1
    assert found["load"]["rate"] == 100


async def test_a_trace_is_replayed_with_its_shared_blocks(engine, tmp_path) -> None:
    fake = await engine()
    lines = [
        {"timestamp": 100 * n, "input_length": 600, "output_length": 2, "hash_ids": [7, n]} for n in range(5)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    code, out, err = await bench(
        *("trace", str(file), "--url", fake.url, "--time-scale", "10", "--limit", "4", "--output", "json"),
        cwd=tmp_path,
    )
    assert code == 0, err
    assert json.loads(out)["requests"]["ok"] == 4
    prompts = [json.loads(body)["prompt"] for body in fake.bodies]
    assert len({tuple(prompt[:512]) for prompt in prompts}) == 1
    assert len({tuple(prompt[512:]) for prompt in prompts}) == 4


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("serve", "URL", "--rate", "1", "--concurrency", "2"), 2, "exclude each other"),
        (("serve", "URL", "--model", "other"), 2, "--model"),
        (("serve", "http://127.0.0.1:1"), 1, "nothing answers at http://127.0.0.1:1: start a server"),
        (("trace", "/nonexistent.csv", "--url", "URL"), 2, "No such file"),
        (("trace", __file__, "--url", "URL"), 2, "line 1"),
    ],
)
async def test_wrong_usage_is_refused_in_words(arguments, code, said, engine, tmp_path) -> None:
    fake = await engine()
    got, out, err = await bench(*(fake.url if a == "URL" else a for a in arguments), cwd=tmp_path)
    assert got == code
    assert said in " ".join(err.split())
    assert out == ""


async def test_ctrl_c_reports_what_there_is(engine, tmp_path, eventually) -> None:
    fake = await engine(handler=None)
    process = FORK_SERVER.start(
        *("-m", "mamba_cli", "bench", "serve", fake.url, "--requests", "2000"),
        *("--concurrency", "2", "--output", "json", "--output-tokens", "2"),
        env=os.environ,
        cwd=tmp_path,
    )
    await eventually(lambda: len(fake.bodies) > 20, 30)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    out = await asyncio.to_thread(process.stdout.read)
    assert await asyncio.to_thread(process.wait, PATIENCE) == 1
    process.close()
    found = json.loads(out)
    assert found["interrupted"] is True
    assert 10 < found["requests"]["ok"] < 2000


async def send(client, url: str, timeout: float = 10.0):
    return await LoadClient(client, url, "m", timeout=timeout).send(PROMPT, 0.0)


async def test_a_sample_has_the_times_and_tokens_of_its_stream(engine, client) -> None:
    async def measured(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"text": "", "token_ids": []}]}\n\n')
        await asyncio.sleep(0.2)
        await response.write(b'data: {"choices": [{"text": "", "token_ids": [1]}]}\n\n')
        await asyncio.sleep(0.1)
        await response.write(b'data: {"choices": [{"text": "ab", "finish_reason": "length"}]}\n\n')
        usage = b'{"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}'
        await response.write(b'data: {"choices": [], "usage": ' + usage + b"}\n\n")
        await asyncio.sleep(0.2)
        await response.write(b"data: [DONE]\n\n")
        return response

    sample = await send(client, (await engine(handler=measured)).url)
    assert sample.error is None
    assert sample.ttft == pytest.approx(0.2, abs=0.09)
    assert list(sample.itl) == pytest.approx([0.1], abs=0.09)
    assert sample.e2e == pytest.approx(0.3, abs=0.1)
    assert (sample.prompt_tokens, sample.output_tokens, sample.cached_tokens) == (3, 2, 1)


async def _respond(kind: str, request: web.Request) -> web.StreamResponse:
    if kind == "429":
        return web.json_response({"error": {"code": "overloaded"}}, status=429)
    if kind == "500":
        return web.Response(status=500, text="oops")
    if kind == "hang":
        await asyncio.Event().wait()
    response = web.StreamResponse()
    await response.prepare(request)
    chunks = {
        "error": b'data: {"error": {"code": "upstream_died"}}\n\n',
        "early": b'data: {"choices": [{"text": "a"}]}\n\n',
        "empty": b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
        "no-json": b"data: {{\n\n",
        "abort": b'data: {"choices": [{"text": "a"}]}\n\n',
    }
    await response.write(chunks[kind])
    if kind == "abort":
        assert request.transport is not None
        request.transport.abort()
    return response


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("429", "429 overloaded"),
        ("500", "500"),
        ("hang", "timeout"),
        ("error", "stream: upstream_died"),
        ("early", "stream: ended early"),
        ("empty", "stream: no token"),
        ("no-json", "an event without valid JSON"),
        ("abort", "connection: ClientPayloadError"),
    ],
)
async def test_every_failure_is_a_sample_with_its_kind(kind, error, engine, client) -> None:
    async def handler(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return await _respond(kind, request)

    sample = await send(client, (await engine(handler=handler)).url, timeout=0.3 if kind == "hang" else 10)
    assert sample.error == error


async def test_a_server_that_is_not_there_is_a_sample_too(client) -> None:
    assert (await send(client, "http://127.0.0.1:1")).error == "connect"
