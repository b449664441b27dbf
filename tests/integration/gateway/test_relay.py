"""The relay passes requests and answers on as they are."""

import asyncio
import gzip
import io
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

BODY = {"model": "m", "prompt": "x"}


async def test_the_bytes_of_a_stream_are_the_same_through_the_relay(engine, gateway, client) -> None:
    fake = await engine()
    through = await gateway(fake)
    body = {**BODY, "stream": True, "max_tokens": 200}
    async with client.post(f"{fake.url}/v1/completions", json=body) as direct:
        wanted = await direct.read()
    async with client.post(f"{through.url}/v1/completions", json=body) as relayed:
        got = await relayed.read()
        assert relayed.headers["Content-Type"] == "text/event-stream"
        assert relayed.headers["Cache-Control"] == "no-cache"
    assert got == wanted
    assert wanted.endswith(b"data: [DONE]\n\n")


async def test_the_bytes_of_a_json_answer_and_of_the_request_are_the_same(engine, gateway, client) -> None:
    fake = await engine()
    through = await gateway(fake)
    raw = b'{ "model":"m",\n "prompt": [1, 2,3], "unknown": {"deep": [1e3]}, "model2": null}'
    async with client.post(f"{fake.url}/v1/completions", data=raw) as direct:
        wanted = await direct.read()
    async with client.post(f"{through.url}/v1/completions", data=raw) as relayed:
        assert await relayed.read() == wanted
        assert relayed.headers["Content-Length"] == str(len(wanted))
    assert fake.bodies == [raw, raw]


@pytest.mark.parametrize("mark", ["\n\n", "\r\n\r\n"])
async def test_events_that_arrive_in_pieces_come_out_whole_and_unchanged(
    mark, engine, gateway, client
) -> None:
    text = "".join(f'data: {{"n": {n}, "t": "é"}}{mark}' for n in range(20)).encode()

    async def pieces(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for start in range(0, len(text), 7):
            await response.write(text[start : start + 7])
            await asyncio.sleep(0)
        return response

    through = await gateway(await engine(handler=pieces))
    async with client.post(f"{through.url}/v1/completions", json=BODY) as relayed:
        chunks = [chunk async for chunk, end in relayed.content.iter_chunks() if chunk]
    assert b"".join(chunks) == text
    assert all(chunk.endswith(mark.encode()) for chunk in chunks)


async def test_an_event_reaches_the_client_before_the_next_one_is_made(engine, gateway, client) -> None:
    gate = asyncio.Event()

    async def gated(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await gate.wait()
        await response.write(b"data: 2\n\n")
        return response

    through = await gateway(await engine(handler=gated))
    async with asyncio.timeout(5), client.post(f"{through.url}/v1/completions", json=BODY) as relayed:
        assert await relayed.content.readline() == b"data: 1\n"
        gate.set()
        assert await relayed.content.read() == b"\ndata: 2\n\n"


async def test_statuses_and_bodies_of_an_engine_s_refusal_pass_through(engine, gateway, client) -> None:
    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        error = {"message": "too long", "type": "invalid_request_error", "param": "prompt", "code": "x"}
        return web.json_response({"error": error}, status=429, headers={"Retry-After": "7"})

    fake = await engine(handler=refuse)
    through = await gateway(fake)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as relayed:
        assert relayed.status == 429
        assert relayed.headers["Retry-After"] == "7"
        assert (await relayed.json())["error"]["param"] == "prompt"
    assert len(fake.seen) == 1


async def test_the_request_id_of_the_client_goes_to_the_engine_and_back(engine, gateway, client) -> None:
    fake = await engine()
    through = await gateway(fake)
    headers = {"X-Request-Id": "mine-1", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    async with client.post(f"{through.url}/v1/completions", json=BODY, headers=headers) as relayed:
        assert relayed.headers.getall("X-Request-Id") == ["mine-1"]
    assert fake.seen[0].headers["X-Request-Id"] == "mine-1"
    assert fake.seen[0].headers["traceparent"] == headers["traceparent"]


async def test_a_wish_for_an_explanation_reaches_the_engine_and_claims_of_clients_do_not(
    engine, gateway, client
) -> None:
    fake = await engine()
    through = await gateway(fake)
    claimed = {"X-Mambaserve-Explain": "1", "X-Mambaserve-Elsewhere": "4096 nowhere"}
    async with client.post(f"{through.url}/v1/completions", json=BODY, headers=claimed) as relayed:
        assert json.loads(relayed.headers["X-Mambaserve-Explain"])["engine"]
    assert fake.seen[0].headers.getall("X-Mambaserve-Explain") == ["1"]
    assert "X-Mambaserve-Elsewhere" not in fake.seen[0].headers
    for value, status in (("0", 200), ("yes", 400)):
        headers = {"X-Mambaserve-Explain": value}
        async with client.post(f"{through.url}/v1/completions", json=BODY, headers=headers) as relayed:
            assert relayed.status == status
            assert "X-Mambaserve-Explain" not in relayed.headers
    assert len(fake.seen) == 2
    assert "X-Mambaserve-Explain" not in fake.seen[1].headers


async def test_request_ids_are_made_where_the_client_brings_none_or_nonsense_and_traces_are_not(
    engine, gateway, client
) -> None:
    fake = await engine()
    through = await gateway(fake)
    for headers in ({}, {"X-Request-Id": '" "', "traceparent": "00-zz-1-1"}):
        async with client.post(f"{through.url}/v1/completions", json=BODY, headers=headers) as relayed:
            assert relayed.headers["X-Request-Id"] == fake.seen[-1].headers["X-Request-Id"]
    made = [seen.headers["X-Request-Id"] for seen in fake.seen]
    assert len(set(made)) == 2
    assert all(len(identifier) == 32 for identifier in made)
    assert not any("traceparent" in seen.headers for seen in fake.seen)


async def test_hop_by_hop_headers_stay_on_their_hop(engine, gateway, client) -> None:
    async def talkative(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(
            text="{}", headers={"Keep-Alive": "timeout=3", "X-Mine": "1", "Proxy-Authenticate": "x"}
        )

    fake = await engine(handler=talkative)
    through = await gateway(fake)
    headers = {"Connection": "keep-alive, X-Hop", "X-Hop": "1", "TE": "trailers", "X-Kept": "2"}
    async with client.post(f"{through.url}/v1/completions", json=BODY, headers=headers) as relayed:
        assert relayed.headers["X-Mine"] == "1"
        assert "Keep-Alive" not in relayed.headers
        assert "Proxy-Authenticate" not in relayed.headers
    got = fake.seen[0].headers
    assert got["X-Kept"] == "2"
    assert "X-Hop" not in got
    assert "TE" not in got
    assert got["Host"] == fake.url.removeprefix("http://")


async def test_a_compressed_stream_is_passed_on_as_it_is(engine, gateway, client) -> None:
    packed = gzip.compress(b"data: 1\n\n" * 100)

    async def squeeze(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
        return web.Response(body=packed, headers=headers)

    through = await gateway(await engine(handler=squeeze))
    async with client.post(f"{through.url}/v1/completions", json=BODY) as relayed:
        assert await relayed.read() == b"data: 1\n\n" * 100


async def test_a_huge_body_passes_and_a_larger_one_gets_413(engine, gateway, client) -> None:
    fake = await engine()
    through = await gateway(fake, max_body_bytes="24MiB")
    huge = json.dumps({"model": "m", "prompt": "x" * (20 * 1024 * 1024)}).encode()
    async with client.post(f"{through.url}/v1/completions", data=io.BytesIO(huge)) as relayed:
        assert relayed.status == 200
    assert fake.bodies[0] == huge
    async with client.post(
        f"{through.url}/v1/completions", data=io.BytesIO(huge + b" " * (8 << 20))
    ) as refused:
        assert refused.status == 413
        assert (await refused.json())["error"]["code"] == "request_too_large"
    assert len(fake.bodies) == 1


async def test_a_chunked_body_over_the_limit_gets_413_without_its_length(engine, gateway, client) -> None:
    through = await gateway(await engine(), max_body_bytes=1000)

    async def parts() -> Any:
        for _ in range(20):
            yield b"x" * 100
            await asyncio.sleep(0)

    async with client.post(f"{through.url}/v1/completions", data=parts()) as refused:
        assert refused.status == 413


async def test_a_body_that_does_not_come_gets_408(engine, gateway) -> None:
    through = await gateway(await engine(), body_timeout=0.1)
    port = int(through.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    async with asyncio.timeout(5):
        got = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert got.startswith(b"HTTP/1.1 408")
    assert b'"code":"request_timeout"' in got


@pytest.mark.parametrize(
    ("raw", "param"),
    [(b"{", None), (b"", None), (b"[]", None), (b'{"model": 3}', "model"), (b'{"stream": "yes"}', "stream")],
)
async def test_a_body_that_is_no_request_gets_400(raw, param, engine, gateway, client) -> None:
    fake = await engine()
    through = await gateway(fake)
    async with client.post(f"{through.url}/v1/chat/completions", data=raw) as refused:
        assert refused.status == 400
        error = (await refused.json())["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert fake.seen == []


async def test_a_coded_body_is_refused_as_an_engine_refuses_it(engine, gateway, client) -> None:
    fake = await engine()
    through = await gateway(fake)
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    packed = gzip.compress(b'{"model": "m", "prompt": "x"}')
    async with client.post(f"{through.url}/v1/completions", data=packed, headers=headers) as refused:
        assert refused.status == 415
        assert (await refused.json())["error"]["code"] == "unsupported_media_type"
    plain = {**headers, "Content-Encoding": "identity"}
    body = b'{"model": "m", "prompt": "x"}'
    async with client.post(f"{through.url}/v1/completions", data=body, headers=plain) as taken:
        assert taken.status == 200
    assert len(fake.seen) == 1


async def test_other_routes_get_the_404_envelope_and_admin_is_never_relayed(engine, gateway, client) -> None:
    fake = await engine()
    through = await gateway(fake)
    for method, path in (
        ("POST", "/admin/drain"),
        ("GET", "/v1"),
        ("POST", "/v1/audio/speech"),
        ("GET", "/docs/nothing"),
    ):
        async with client.request(method, through.url + path, json={}) as refused:
            assert refused.status == 404
            assert (await refused.json())["error"]["code"] == "not_found"
    async with client.get(f"{through.url}/v1/completions") as wrong:
        assert wrong.status == 405
        assert (await wrong.json())["error"]["code"] == "method_not_allowed"


async def test_models_are_merged_from_all_engines(engine, gateway, client) -> None:
    one, two = await engine("a", models=("m", "org/x")), await engine("b", models=("m", "z"))
    through = await gateway(one, two)
    async with client.get(f"{through.url}/v1/models") as response:
        assert [entry["id"] for entry in (await response.json())["data"]] == ["m", "org/x", "z"]
    async with client.get(f"{through.url}/v1/models/org/x") as response:
        assert (await response.json())["owned_by"] == "a"
    async with client.get(f"{through.url}/v1/models/none") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


async def test_a_request_goes_to_an_engine_that_serves_its_model(engine, gateway, client) -> None:
    one, two = await engine("a", models=("m",)), await engine("b", models=("z",))
    through = await gateway(one, two)
    for _ in range(5):
        async with client.post(f"{through.url}/v1/completions", json={"model": "z"}) as response:
            assert response.status == 200
    assert (len(one.seen), len(two.seen)) == (0, 5)
    async with client.post(f"{through.url}/v1/completions", json={"model": "nope"}) as response:
        assert response.status == 404
        error = (await response.json())["error"]
        assert "'nope'" in error.pop("message")
        assert error == {"type": "invalid_request_error", "param": "model", "code": "model_not_found"}


async def test_the_document_is_the_gateway_s_own_and_needs_no_engine(engine, gateway, client) -> None:
    through = await gateway(await engine("doc", ready=False))
    async with client.get(f"{through.url}/openapi.json") as response:
        document = await response.json()
    assert "gateway" in document["info"]["title"]
    assert "/v1/chat/completions" in document["paths"]
    async with client.get(f"{through.url}/docs") as response:
        assert response.status == 200
        assert response.content_type == "text/html"


async def test_health_and_version_answer(engine, gateway, client) -> None:
    through = await gateway(await engine())
    for path in ("/health", "/livez", "/readyz"):
        async with client.get(through.url + path) as response:
            assert response.status == 200
    async with client.get(f"{through.url}/version") as response:
        assert (await response.json())["component"] == "gateway"


async def test_requests_are_counted_by_route_model_and_status(engine, gateway, client) -> None:
    through = await gateway(await engine())
    for body in (BODY, {**BODY, "stream": True}, {"model": "made-up-label"}):
        async with client.post(f"{through.url}/v1/completions", json=body) as response:
            await response.read()
    seen = await through.metrics(client)
    name = 'mambaserve_gateway_requests_total{code="%s",model="%s",reason="",route="/v1/completions"}'
    assert seen[name % (200, "m")] == 2
    assert seen[name % (404, "unknown")] == 1
    assert seen['mambaserve_gateway_time_to_first_byte_seconds_count{model="m"}'] == 2
    assert not any("made-up-label" in series for series in seen)


async def test_keys_are_checked_at_the_gateway_and_read_again_when_they_change(
    engine, gateway, client, tmp_path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# rotated monthly\nfirst-key\n")
    fake = await engine()
    through = await gateway(fake, api_key_file=str(keys))

    async def status(key: str | None, path: str = "/v1/models") -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with client.get(through.url + path, headers=headers) as response:
            return response.status

    assert await status(None) == 401
    assert await status("wrong") == 401
    assert await status("first-key") == 200
    assert await status(None, "/readyz") == 200
    async with client.post(f"{through.url}/v1/completions", json=BODY) as refused:
        assert refused.status == 401
        assert (await refused.json())["error"]["code"] == "invalid_api_key"
        assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert fake.seen == []
    keys.write_text("second-key\n")
    assert await status("first-key") == 401
    assert await status("second-key") == 200
    headers = {"Authorization": "Bearer second-key"}
    async with client.post(f"{through.url}/v1/completions", json=BODY, headers=headers) as passed:
        assert passed.status == 200
    assert "Authorization" not in fake.seen[-1].headers


async def test_a_client_that_speaks_http_1_0_gets_its_answer(engine, gateway) -> None:
    through = await gateway(await engine())
    port = int(through.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(BODY).encode()
    writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    async with asyncio.timeout(5):
        got = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert got.startswith(b"HTTP/1.1 200")


async def test_the_gateway_keeps_connections_to_engines(
    engine, gateway, client: aiohttp.ClientSession
) -> None:
    fake = await engine()
    through = await gateway(fake)
    for _ in range(10):
        async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
            await response.read()
    peers = {seen.transport.get_extra_info("peername") for seen in fake.seen if seen.transport}
    assert len(peers) <= 2
