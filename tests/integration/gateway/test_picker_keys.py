"""Keys at the endpoint picker: whose request it is, what it may use, and who learns the engines' own key."""

import json
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from eventually import until
from picker_harness import ENGINES, JSON, LONG, PickerHarness, Stream, addresses, put, refused

REAL_TIME = True
"""gRPC has threads and timers of its own."""


async def test_of_an_answer_that_breaks_off_each_event_counts_and_of_a_refusal_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "keys").write_text("one-key one\n")
    left = {}
    for status in (503, 200):
        picker = PickerHarness(keys=tmp_path / "keys", tokens_per_minute=6000)
        picker.engines(*ENGINES)
        async with picker.running():
            for _ in range(2):
                stream = picker.stream()
                await stream.picked(JSON, ("authorization", "Bearer one-key"))
                told = put((await stream.answer_headers(status=status)).response_headers)
                left[status] = int(told["x-ratelimit-remaining-tokens"])
                await stream.answer_body(b'data: {"a": 1}\n\n' * 1000)
                await stream.ends()
                await until(picker.is_empty)
    # Refusals are free, but for the prompt while it is under way; the answer has its prompt and its events.
    prompt = 6000 - left[503]
    assert 0 < prompt < 50
    # Meanwhile a hundred come back each second.
    assert 6000 - 1000 - 2 * prompt <= left[200] <= 6000 - 500


async def test_a_prompt_whose_client_leaves_before_the_answer_is_charged(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one-key one\n")
    key = ("authorization", "Bearer one-key")
    picker = PickerHarness(keys=tmp_path / "keys", tokens_per_minute=600)
    picker.engines(*ENGINES)
    async with picker.running():
        let_in = 0
        for _ in range(40):
            stream = picker.stream()
            await stream.headers(key)
            await stream.body(LONG)
            found = await stream.read()
            if found.HasField("immediate_response"):
                assert refused(found)[:2] == (429, "rate_limit_exceeded")
                break
            assert (await stream.read()).HasField("request_body")
            let_in += 1
            stream.call.cancel()
            await until(picker.is_empty)
        assert 1 <= let_in <= 5  # about 190 tokens each
    picker = PickerHarness(keys=tmp_path / "keys", tokens_per_minute=600)
    async with picker.running():
        for _ in range(10):
            stream = picker.stream()
            await stream.headers(key)
            await stream.body(LONG)
            assert refused(await stream.read())[0] == 503  # no engine had it: nothing is charged
            await until(picker.is_empty)


async def test_clients_are_known_by_their_key_and_engines_see_the_gateways_own(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("client-key\n")
    (tmp_path / "backend").write_text("engine-key\n")
    picker = PickerHarness(keys=tmp_path / "keys", backend_keys=tmp_path / "backend")
    picker.engines(*ENGINES)
    async with picker.running():
        stream = picker.stream()
        await stream.headers(("authorization", "Bearer wrong"))
        status, code, headers = refused(await stream.read())
        assert (status, code, headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
        stream = picker.stream()
        forged = ("x-mambaserve-hand-over", "export")
        await stream.headers(("authorization", "Bearer client-key"), ("cookie", "a=b"), forged)
        await stream.body(JSON)
        reply = (await stream.read()).request_headers
        assert put(reply)["authorization"] == "Bearer engine-key"
        assert list(reply.response.header_mutation.remove_headers) == ["cookie", forged[0]]
        await stream.read()
        await stream.ends()


async def test_a_key_in_the_header_of_messages_is_known_and_refused_in_their_form(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("client-key\n")
    picker = PickerHarness(keys=tmp_path / "keys")
    picker.engines(*ENGINES)
    body = b'{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}'
    async with picker.running():
        stream = picker.stream()
        await stream.headers(("x-api-key", "wrong"), path="/v1/messages")
        answer = (await stream.read()).immediate_response
        assert answer.status.code == 401
        assert json.loads(answer.body)["error"]["type"] == "authentication_error"
        stream = picker.stream()
        await stream.headers(("x-api-key", "client-key"), path="/v1/messages")
        await stream.body(body)
        reply = (await stream.read()).request_headers
        assert list(reply.response.header_mutation.remove_headers) == ["x-api-key"]
        await stream.read()
        await stream.ends()


async def test_a_client_that_is_no_proxy_does_not_learn_the_engines_key(tmp_path: Path) -> None:
    for name, text in (("keys", "client-key one"), ("engines", "engines-key"), ("proxies", "new\nold")):
        (tmp_path / name).write_text(f"{text}\n")
    client = ("authorization", "Bearer client-key")
    picker = PickerHarness(
        keys=tmp_path / "keys",
        backend_keys=tmp_path / "engines",
        endpoint_picker_token_file=str(tmp_path / "proxies"),
    )
    picker.engines(*ENGINES)
    async with picker.running():
        for shown in (None, client, ("authorization", "new"), ("authorization", "Bearer ne")):
            stream = Stream(picker.channel, *([shown] if shown else ()))
            # Refused before it has sent anything.
            assert await stream.call.code() == grpc.StatusCode.UNAUTHENTICATED
        for token in ("old", "new"):
            stream = Stream(picker.channel, ("authorization", f"Bearer {token}"))
            await stream.headers(client)
            await stream.body(JSON)
            assert put((await stream.read()).request_headers)["authorization"] == "Bearer engines-key"
            await stream.read()
            await stream.ends()
        stub = health_pb2_grpc.HealthStub(picker.channel)
        health = await stub.Check(health_pb2.HealthCheckRequest(service="liveness"))
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        await until(picker.is_empty)


async def test_limits_of_a_key_hold_for_what_the_proxy_sends_itself(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one-key one\nother-key other\n")
    limits = {"api_key_file": str(tmp_path / "keys"), "requests_per_minute": 1}
    picker = PickerHarness(keys=tmp_path / "keys", **limits)
    picker.engines(*ENGINES)

    async def ask(key: str) -> Stream:
        stream = picker.stream()
        await stream.headers(("authorization", f"Bearer {key}"))
        await stream.body(JSON)
        return stream

    async with picker.running():
        first = await ask("one-key")
        assert addresses(await first.read())
        second = await ask("one-key")
        status, code, headers = refused(await second.read())
        assert (status, code) == (429, "rate_limit_exceeded")
        assert 1 <= int(headers["retry-after"]) <= 60
        assert headers["x-ratelimit-remaining-requests"] == "0"
        other = await ask("other-key")
        assert addresses(await other.read())
        for stream in (first, other):
            await stream.read()
            await stream.ends()
