"""The endpoint picker protocol, point by point, by a real gRPC client in the place of the proxy."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from eventually import until
from mamba_edge.listener import CannotListen
from mamba_gateway.endpoint_picker.certificate import CertificateError, self_signed
from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.endpoints.pool import ProbeReport
from mamba_gateway.errors import GatewayDraining
from mamba_gateway.process.server import serve
from mamba_gateway.prompts.text_processors import ModelText
from mamba_gateway.settings import GatewaySettings
from mamba_prefix.messages import Snapshot, pack_entries
from mamba_prefix.page_chain import PageChain
from mamba_prefix.prefix_index import PrefixIndex
from mamba_text.segment_cache import SegmentCache
from picker_harness import (
    BUFFERED,
    DUPLEX,
    ENGINES,
    JSON,
    LONG,
    PickerHarness,
    Stream,
    addresses,
    metadata,
    put,
    refused,
)
from scripted_engine import Api

REAL_TIME = True
"""gRPC has threads and timers of its own."""
SUBSET = "envoy.lb.subset_hint"


@pytest.fixture
async def picker() -> AsyncIterator[PickerHarness]:
    made = PickerHarness()
    made.engines(*ENGINES)
    async with made.running():
        yield made
        await until(made.is_empty, 20)


def measured(**more: Any) -> ProbeReport:
    """Return the report of an engine that measures its speed, so that a prompt costs seconds."""
    return ProbeReport(ready=True, speed=EngineSpeed(10_000, 0, 0.001), prompt_tokens_waiting=0, **more)


async def test_headers_are_answered_with_the_engine_and_the_body_comes_back_as_it_was(
    picker: PickerHarness,
) -> None:
    stream = picker.stream()
    await stream.headers(("x-request-id", "r-1"))
    await stream.body(JSON[:5], b"", JSON[5:])
    found = await stream.read()
    assert addresses(found) == list(ENGINES)  # the cheapest, and the next best to fall back on
    assert found.request_headers.response.clear_route_cache
    assert put(found.request_headers)["x-request-id"] == "r-1"
    body = (await stream.read()).request_body.response.body_mutation.streamed_response
    assert (body.body, body.end_of_stream) == (JSON, True)
    assert picker.in_flight == [1, 0, 0]
    assert (await stream.answer_headers()).HasField("response_headers")
    parts = await stream.answer_body(b'{"a":', b"1}")
    streamed = [part.response_body.response.body_mutation.streamed_response for part in parts]
    assert [(one.body, one.end_of_stream) for one in streamed] == [(b'{"a":', False), (b"1}", True)]
    await stream.ends()
    await until(lambda: picker.in_flight == [0, 0, 0])


async def test_trailers_end_a_body_and_are_answered_after_it(picker: PickerHarness) -> None:
    stream = picker.stream()
    await stream.headers()
    await stream.body(JSON, ends=False)
    await stream.trailers()
    kinds = [(await stream.read()).WhichOneof("response") for _ in range(3)]
    assert kinds == ["request_headers", "request_body", "request_trailers"]
    await stream.ends()


async def test_a_large_body_in_many_pieces_comes_back_in_pieces_a_proxy_takes(picker: PickerHarness) -> None:
    body = json.dumps({"model": "m", "prompt": "x" * 1_000_000}).encode()
    stream = picker.stream()
    await stream.headers()
    await stream.body(*(body[at : at + 16_384] for at in range(0, len(body), 16_384)))
    assert (await stream.read()).HasField("request_headers")
    got, ended = b"", False
    while not ended:
        part = (await stream.read()).request_body.response.body_mutation.streamed_response
        assert 0 < len(part.body) <= 64_000
        got, ended = got + part.body, part.end_of_stream
    assert got == body
    await stream.ends()


async def test_a_buffered_body_is_chosen_by_and_stays_where_it_is(picker: PickerHarness) -> None:
    stream = picker.stream()
    await stream.headers(mode=BUFFERED)
    first = await stream.read()
    assert first.HasField("request_headers")
    assert not first.request_headers.response.header_mutation.set_headers
    await stream.body(JSON)
    found = await stream.read()
    assert addresses(found) == list(ENGINES)
    assert not found.request_body.response.HasField("body_mutation")
    await stream.answer_headers()
    answer = await stream.answer_body(b"{}")
    assert not answer[0].response_body.response.HasField("body_mutation")
    await stream.ends()


async def test_a_request_without_a_body_is_routed_by_its_headers(picker: PickerHarness) -> None:
    stream = picker.stream()
    await stream.headers(path="/v1/models", ended=True)
    assert addresses(await stream.read()) == list(ENGINES)
    await stream.ends()


async def test_the_same_prompt_goes_to_the_engine_that_got_it_before_though_another_is_idle(
    picker: PickerHarness,
) -> None:
    for address in ENGINES:
        picker.pool.report(f"http://{address}", measured())
    first = picker.stream()
    chosen = (await first.picked(LONG, ("x-mambaserve-explain", "1")))[0]
    told = json.loads(put((await first.answer_headers()).response_headers)["x-mambaserve-explain"])
    assert f"pod-{chosen}" == told["engine"]
    await first.ends()
    await until(picker.is_empty)
    url = f"http://{chosen}"
    picker.pool.report(url, measured(running=2))  # a little busier than the others now
    again = picker.stream()
    assert (await again.picked(LONG, ("x-mambaserve-explain", "1")))[0] == chosen
    told = json.loads(put((await again.answer_headers()).response_headers)["x-mambaserve-explain"])
    assert told["reason"] == "prefix"
    await again.ends()
    other = picker.stream()
    assert (await other.picked(JSON))[0] != chosen
    await other.ends()


class OneText:
    """The text side of every model."""

    def __init__(self) -> None:
        side = Api().serving.text
        self._text = ModelText(side, SegmentCache(side.tokenizer))

    def for_model(self, _model: str | None) -> ModelText:
        return self._text


@pytest.mark.parametrize(("resumed", "believed"), [(0, False), (32, True)])
async def test_what_the_engine_that_answered_did_not_resume_is_not_believed_of_it(
    resumed: int, believed: bool
) -> None:
    ids, index = list(range(5, 45)), PrefixIndex()
    hashes, name = PageChain(16, "f").hashes(np.array(ids, np.int32), ""), f"pod-{ENGINES[1]}"
    entries = pack_entries({int(hashes[-1]): 32})
    assert index.take_snapshot(Snapshot(name, "i", 1, 1, "f", 16, entries))
    index.state = "following"
    picker = PickerHarness(index=index, texts=OneText())
    picker.engines(*ENGINES)
    for address in ENGINES:
        picker.pool.report(f"http://{address}", measured())
    usage = {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": resumed}}
    async with picker.running():
        stream = picker.stream()
        assert (await stream.picked(json.dumps({"model": "m", "prompt": ids}).encode()))[0] == ENGINES[1]
        await stream.answer_headers()
        await stream.answer_body(json.dumps({"usage": usage}).encode())
        await stream.ends()
        await until(picker.is_empty)
    assert (name in index.depths(np.array(ids, np.int32), "").resumable) == believed


@pytest.mark.parametrize("listed", [[ENGINES[2]], f" {ENGINES[2]} ,10.9.9.9:1", ["10.0.0.3"]])
async def test_only_engines_of_the_subset_are_picked(picker: PickerHarness, listed: Any) -> None:
    stream = picker.stream()
    hint = metadata(SUBSET, x_gateway_destination_endpoint_subset=listed)
    assert await stream.picked(metadata_context=hint) == [ENGINES[2]]
    await stream.ends()


@pytest.mark.parametrize("listed", [[], ["10.9.9.9:8000"]])
async def test_a_subset_without_a_ready_engine_is_refused_at_once(listed: list[str]) -> None:
    picker = PickerHarness(hold_timeout=600.0)
    picker.engines(*ENGINES)
    async with picker.running():
        stream = picker.stream()
        await stream.headers(metadata_context=metadata(SUBSET, x_gateway_destination_endpoint_subset=listed))
        await stream.body(JSON)
        assert refused(await stream.read())[:2] == (503, "no_ready_endpoint")


async def test_without_a_ready_engine_the_client_is_told_to_come_back() -> None:
    picker = PickerHarness()
    async with picker.running():
        stream = picker.stream()
        await stream.headers(("x-request-id", "r-1"))
        await stream.body(JSON)
        status, code, headers = refused(await stream.read())
        assert (status, code) == (503, "no_ready_endpoint")
        assert (headers["retry-after"], headers["x-request-id"]) == ("2", "r-1")
        assert picker.wakes == 1
        await until(picker.is_empty)


async def test_a_request_waits_for_an_engine_that_comes() -> None:
    picker = PickerHarness(hold_timeout=600.0)
    async with picker.running():
        stream = picker.stream()
        await stream.headers()
        await stream.body(JSON)
        await until(lambda: picker.wakes)
        picker.engines(ENGINES[0])
        assert addresses(await stream.read()) == [ENGINES[0]]


async def test_what_is_more_than_may_wait_is_shed() -> None:
    picker = PickerHarness(places=1, queue=0)
    picker.engines(*ENGINES)
    async with picker.running():
        first, second = picker.stream(), picker.stream()
        await first.picked()
        await second.headers()
        status, code, headers = refused(await second.read())
        assert (status, code) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) >= 1
        await first.ends()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b'{"model": 3}', 400, "invalid_type"),
        (b'{"model": "other", "prompt": "x"}', 404, "model_not_found"),
        (b"x" * 2001, 413, "request_too_large"),
    ],
)
async def test_what_no_engine_would_take_is_refused_in_the_envelope(
    body: bytes, status: int, code: str
) -> None:
    picker = PickerHarness(max_body_bytes=2000)
    picker.engines(*ENGINES)
    async with picker.running():
        stream = picker.stream()
        await stream.headers()
        await stream.body(body[:1000], body[1000:])
        assert refused(await stream.read())[:2] == (status, code)
        await until(picker.is_empty)
        errors = picker.sample(
            "inference_objective_request_error_total",
            model_name="unknown", target_model_name="unknown", error_code=code,
        )  # fmt: skip
        assert errors == 1


async def test_a_coded_body_is_refused_before_it_is_read(picker: PickerHarness) -> None:
    stream = picker.stream()
    await stream.headers(("content-encoding", "gzip"))
    assert refused(await stream.read())[:2] == (415, "unsupported_media_type")


async def test_a_body_that_is_announced_as_too_large_is_not_waited_for(picker: PickerHarness) -> None:
    stream = picker.stream()
    await stream.headers(("content-length", str(1 << 40)))
    assert refused(await stream.read())[:2] == (413, "request_too_large")


async def test_requests_go_to_engines_that_serve_their_model(picker: PickerHarness) -> None:
    picker.pool.report(f"http://{ENGINES[0]}", ProbeReport(ready=True, models=({"id": "small"},)))
    stream = picker.stream()
    assert await stream.picked() == list(ENGINES[1:])
    await stream.ends()
    stream = picker.stream()
    assert await stream.picked(b'{"model": "small", "prompt": "x"}') == [ENGINES[0]]
    await stream.ends()


async def test_a_client_that_goes_away_frees_its_engine(picker: PickerHarness) -> None:
    for answered in (False, True):
        stream = picker.stream()
        await stream.picked()
        if answered:
            await stream.answer_headers()
        assert sum(picker.in_flight) == 1
        stream.call.cancel()
        await until(picker.is_empty)
    unfinished = picker.stream()
    await unfinished.headers()
    await unfinished.body(JSON, ends=False)
    await until(lambda: picker.bodies.held)
    unfinished.call.cancel()
    await until(picker.is_empty)


async def test_the_engine_that_served_is_the_one_that_has_it(picker: PickerHarness) -> None:
    stream = picker.stream()
    chosen = await stream.picked(LONG)
    served = metadata("envoy.lb", x_gateway_destination_endpoint_served=chosen[1])
    await stream.answer_headers(metadata_context=served)
    by_address = {endpoint.address: endpoint for endpoint in picker.pool.snapshot()}
    assert [by_address[address].in_flight for address in chosen] == [0, 1, 0]
    assert [by_address[address].failed for address in chosen] == [1, 0, 0]
    assert not by_address[chosen[0]].ready  # it could not be reached, and is not chosen before a look at it
    await stream.ends()
    again = picker.stream()
    assert (await again.picked(LONG))[0] == chosen[1]
    await again.ends()


async def test_an_engine_that_says_503_is_not_picked_before_somebody_looked(picker: PickerHarness) -> None:
    stream = picker.stream()
    chosen = await stream.picked()
    await stream.answer_headers(status=503)
    await stream.ends()
    other = picker.stream()
    assert chosen[0] not in await other.picked()
    await other.ends()


async def test_what_engines_answer_counts_for_or_against_them_and_mistakes_of_clients_do_not(
    picker: PickerHarness,
) -> None:
    for status in (200, 500, 400, 429):
        stream = picker.stream()
        await stream.picked()
        await stream.answer_headers(status=status)
        await stream.ends()
    given_up = picker.stream()
    await given_up.picked()
    await given_up.ends()
    await until(picker.is_empty)
    found = picker.pool.snapshot()
    assert (sum(one.answered for one in found), sum(one.failed for one in found)) == (1, 1)


async def test_an_engine_where_one_client_has_too_many_forms_is_not_full_for_others(
    picker: PickerHarness,
) -> None:
    for more in ([("x-mambaserve-limit", "forms")], []):
        stream = picker.stream()
        await stream.picked()
        await stream.answer_headers(*more, status=429)
        await stream.ends()
        assert [one.full for one in picker.pool.snapshot()].count(True) == (0 if more else 1)


async def test_usage_of_answers_is_counted_streamed_or_not(picker: PickerHarness) -> None:
    usage = b'"usage":{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}'
    events = [
        b'data: {"choices":[{"text":"\\"usage\\":{"}],"usage":null}\n\n',
        b"data: {" + usage[:30], usage[30:] + b"}\n\n", b"data: [DONE]\n\n",
    ]  # fmt: skip
    for parts in ([b'{"choices":[],' + usage + b"}"], events):
        stream = picker.stream()
        await stream.picked()
        await stream.answer_headers()
        await stream.answer_body(*parts)
        await stream.ends()
    await until(picker.is_empty)
    labels = {"model_name": "m", "target_model_name": "m"}
    for name, total in (("input_tokens", 14), ("output_tokens", 10), ("prompt_cached_tokens", 8)):
        assert picker.sample(f"inference_objective_{name}_sum", **labels) == total
        assert picker.sample(f"inference_objective_{name}_count", **labels) == 2
    assert picker.sample("inference_objective_request_total", **labels, priority="0") == 2
    assert picker.sample("inference_objective_running_requests", model_name="m") == 0


async def test_the_pool_is_told_under_its_name() -> None:
    picker = PickerHarness(inference_pool="chat")
    picker.engines(*ENGINES, waiting=3, kv_usage=0.5)
    picker.pool.suspect(f"http://{ENGINES[2]}", "away")
    async with picker.running():
        assert picker.sample("inference_pool_ready_pods", name="chat") == 2
        assert picker.sample("inference_pool_average_queue_size", name="chat") == 3
        assert picker.sample("inference_pool_average_running_requests", name="chat") == 5
        assert picker.sample("inference_pool_average_kv_cache_utilization", name="chat") == 0.5
        pod = f"pod-{ENGINES[2]}"
        assert picker.sample("inference_pool_per_pod_queue_size", name="chat", model_server_pod=pod) == 3


async def test_a_hundred_requests_at_once_are_spread_and_let_go(picker: PickerHarness) -> None:
    picker.engines(*ENGINES, running=0)

    async def request() -> Stream:
        stream = picker.stream()
        await stream.picked()
        return stream

    streams = await asyncio.gather(*(request() for _ in range(100)))
    assert sum(picker.in_flight) == 100
    assert min(picker.in_flight) > 20
    await asyncio.gather(*(stream.ends() for stream in streams))
    await until(picker.is_empty)


async def asked(picker: PickerHarness, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(picker.channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=name))).status)


async def test_health_follows_what_is_known_and_a_drain(picker: PickerHarness) -> None:
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    names = ("readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "")
    assert [await asked(picker, name) for name in names] == [serving] * 3
    await picker.server.drain()
    picker.admission.draining = True
    assert [await asked(picker, name) for name in names] == [not_serving] * 3
    assert await asked(picker, "liveness") == serving
    stream = picker.stream()
    await stream.headers()
    assert refused(await stream.read())[:2] == (503, GatewayDraining.code)
    with pytest.raises(grpc.aio.AioRpcError):
        await asked(picker, "something else")


async def test_a_picker_that_has_not_seen_its_engines_is_not_ready() -> None:
    picker = PickerHarness()
    async with picker.running():
        assert await asked(picker, "readiness") == health_pb2.HealthCheckResponse.NOT_SERVING
        picker.engines(*ENGINES)
        request = health_pb2.HealthCheckRequest(service="readiness")
        told = health_pb2_grpc.HealthStub(picker.channel).Watch(request)
        while (await told.read()).status != health_pb2.HealthCheckResponse.SERVING:
            pass


def write_pair(folder: Path, name: str) -> bytes:
    key, certificate = self_signed(name)
    (folder / "tls.key").write_bytes(key)
    (folder / "tls.crt").write_bytes(certificate)
    return certificate


async def test_a_certificate_that_is_rotated_is_shown_from_then_on(tmp_path: Path) -> None:
    first = write_pair(tmp_path, "one.example")
    picker = PickerHarness(
        endpoint_picker_tls=True,
        endpoint_picker_certificate=str(tmp_path / "tls.crt"), endpoint_picker_key=str(tmp_path / "tls.key"),
    )  # fmt: skip
    picker.engines(*ENGINES)
    async with picker.running(first, "one.example"):
        stream = picker.stream()
        assert await stream.picked() == list(ENGINES)
        await stream.ends()
        second = write_pair(tmp_path, "two.example")
        trusted = grpc.ssl_channel_credentials(second)
        override = (("grpc.ssl_target_name_override", "two.example"),)
        target = f"127.0.0.1:{picker.server.port}"
        async with grpc.aio.secure_channel(target, trusted, options=override) as picker.channel:
            assert await asked(picker, "liveness") == health_pb2.HealthCheckResponse.SERVING


async def test_without_files_it_signs_a_certificate_itself() -> None:
    import ssl

    picker = PickerHarness(endpoint_picker_tls=True)
    picker.engines(*ENGINES)
    async with picker.running():
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", picker.server.port))
        name = "mambaserve-endpoint-picker"
        override = (("grpc.ssl_target_name_override", name),)
        trusted = grpc.ssl_channel_credentials(shown.encode())
        target = f"127.0.0.1:{picker.server.port}"
        async with grpc.aio.secure_channel(target, trusted, options=override) as picker.channel:
            stream = picker.stream()
            assert await stream.picked(mode=DUPLEX) == list(ENGINES)
            await stream.ends()


async def test_a_port_that_is_taken_and_a_certificate_of_another_key_are_refused_by_name(
    picker: PickerHarness, tmp_path: Path
) -> None:
    taken = PickerHarness(endpoint_picker_port=picker.server.port)
    with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{picker.server.port}") as caught:
        async with taken.running():
            pass
    assert caught.value.option == "--endpoint-picker-port"
    write_pair(tmp_path, "one.example")
    (tmp_path / "tls.key").write_bytes(self_signed("one.example")[0])
    other = PickerHarness(
        endpoint_picker_tls=True,
        endpoint_picker_certificate=str(tmp_path / "tls.crt"), endpoint_picker_key=str(tmp_path / "tls.key"),
    )  # fmt: skip
    with pytest.raises(CertificateError, match="the key is not the certificate's"):
        async with other.running():
            pass


async def test_a_drain_waits_for_what_was_picked_and_says_when_it_cut_it() -> None:
    for cut in (False, True):
        stop, where, listening = asyncio.Event(), *(asyncio.get_running_loop().create_future() for _ in "ab")
        settings = GatewaySettings(
            backend=("http://127.0.0.1:9",), port=0, endpoint_picker_port=0, endpoint_picker_tls=False,
            hold_timeout=60, drain_timeout=0.05 if cut else 60, probe_interval=60,
        )  # fmt: skip
        running = serve(
            settings, where.set_result, picker_ready=listening.set_result, stop=stop, rng=Random(7)
        )
        gateway = asyncio.create_task(running)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{await listening}") as channel:
            stream = Stream(channel)
            await where
            await stream.headers(mode=BUFFERED)
            assert (await stream.read()).HasField("request_headers")  # so it is admitted
            stop.set()
            if not cut:
                await stream.body(b"no JSON")
                assert refused(await stream.read())[:2] == (400, "invalid_json")
            assert await gateway == int(cut)
