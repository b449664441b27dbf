"""A canary splits conversations by weight: each keeps its revision unless that fails."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from mamba_api import names
from mamba_api.dialects.paths import CHAT_COMPLETIONS, COMPLETIONS, MESSAGES, RESPONSES
from mamba_gateway.body_fields import UsageMeter
from mamba_gateway.conversation import conversation_of, is_chosen
from mamba_gateway.endpoints.discovery import targets
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.routing.decision import RoutingRecord
from mamba_gateway.routing.router import Router
from mamba_gateway.upstream.connector import UpstreamRequest
from raw_engine import SSE, RawEngine, says

RULES = {"role": "system", "content": "You are a careful assistant."}
PODS = names.Children("nano").candidate_pods


def turn(question: str, *later: dict[str, Any], **more: Any) -> bytes:
    messages = [RULES, {"role": "user", "content": question}, *later]
    return json.dumps({"messages": messages, **more}).encode()


def slices(weight: str | None, *pods: str) -> list[dict[str, Any]]:
    labels = {} if weight is None else {names.LABEL_CANDIDATE_WEIGHT: weight}
    endpoints = [
        {"addresses": [f"10.0.0.{number}"], "targetRef": {"name": pod}, "conditions": {"ready": True}}
        for number, pod in enumerate(pods)
    ]
    ports = [{"name": "http", "port": 8000}]
    return [{"metadata": {"labels": labels}, "addressType": "IPv4", "ports": ports, "endpoints": endpoints}]


OLD, NEW = "nano-engine-6d5f-abcde", "nano-candidate-77c9-fghij"


def gateway(weight: str | None) -> tuple[Pool, Router]:
    pool = Pool()
    pool.set_targets(targets(slices(weight, OLD, NEW), PODS))
    for endpoint in pool.snapshot():
        pool.report(endpoint.url, ProbeReport(ready=True))
    return pool, Router(pool, GatewayMetrics(pool.snapshot), Random(1))


def chosen(router: Router, question: str, **more: Any) -> str:
    record = router.decide("m", None, conversation=conversation_of(CHAT_COMPLETIONS, turn(question)), **more)
    assert isinstance(record, RoutingRecord)
    return record.decision.endpoint.name


def test_ten_thousand_conversations_are_split_within_a_hundredth_of_the_weight() -> None:
    keys = [conversation_of(CHAT_COMPLETIONS, turn(f"question {number}")) for number in range(10_000)]
    rng = Random(1)
    taken: set[int | None] = set()
    for percent in (5, 25, 50):
        chosen_now = {key for key in keys if is_chosen(key, percent / 100, rng)}
        assert abs(len(chosen_now) / len(keys) - percent / 100) < 0.01
        assert taken <= chosen_now, "a conversation is not taken back by a higher weight"
        taken = chosen_now


def test_every_turn_of_a_conversation_is_one_conversation_in_each_dialect() -> None:
    answer = {"role": "assistant", "content": "4"}
    marked = [{"type": "text", "text": "2+2?", "cache_control": {"type": "ephemeral"}}]
    plain = [{"type": "text", "text": "2+2?"}]
    again = {"role": "user", "content": "and 3+3?"}
    turns: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        CHAT_COMPLETIONS: (
            {"messages": [RULES, {"role": "user", "content": "2+2?"}], "temperature": 0},
            {"messages": [RULES, {"role": "user", "content": "2+2?"}, answer, again]},
        ),
        MESSAGES: (
            {"system": "Be brief.", "messages": [{"role": "user", "content": marked}]},
            {"system": "Be brief.", "messages": [{"role": "user", "content": plain}, answer, again]},
        ),
        RESPONSES: (
            {"instructions": "Be brief.", "input": [{"role": "user", "content": "2+2?"}]},
            {"instructions": "Be brief.", "input": [{"role": "user", "content": "2+2?"}, answer, again]},
        ),
        COMPLETIONS: ({"prompt": "x" * 5000}, {"prompt": "x" * 5000 + "and more"}),
    }
    for path, (first, second) in turns.items():
        key = conversation_of(path, json.dumps(first).encode())
        assert key is not None
        assert key == conversation_of(path, json.dumps(second).encode()), path
    other = conversation_of(CHAT_COMPLETIONS, turn("another question"))
    assert other != conversation_of(CHAT_COMPLETIONS, turn("2+2?"))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": [{"role": "user"}]}'])
def test_a_body_that_tells_of_no_conversation_goes_by_chance(body: bytes) -> None:
    assert conversation_of(CHAT_COMPLETIONS, body) is None
    assert {is_chosen(None, 0.5, Random(seed)) for seed in range(20)} == {True, False}


def test_a_conversation_stays_at_its_revision_and_goes_to_the_other_one_only_when_that_is_tried() -> None:
    pool, router = gateway("30")
    first = {f"q{number}": chosen(router, f"q{number}") for number in range(60)}
    assert set(first.values()) == {OLD, NEW}
    assert first == {question: chosen(router, question) for question in first}
    question = next(question for question, name in first.items() if name == NEW)
    [candidate] = [endpoint for endpoint in pool.snapshot() if endpoint.candidate]
    assert chosen(router, question, tried=(candidate.url,)) == OLD


@pytest.mark.parametrize("weight", [None, "0", "many", "-5"])
def test_candidates_without_a_weight_get_no_request(weight: str | None) -> None:
    _, router = gateway(weight)
    assert {chosen(router, f"q{number}") for number in range(60)} == {OLD}


async def test_a_stream_is_timed_by_its_revision_and_a_candidate_that_breaks_costs_the_client_nothing(
    harness: Callable[..., Any],
) -> None:
    data = b'data: {"n": 1}\n\ndata: {"n": 2}\n\ndata: [DONE]\n\n'
    whole = says(SSE + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)

    def requests(body: bytes) -> UpstreamRequest:
        return UpstreamRequest(CHAT_COMPLETIONS, "", [], body, "m", meter=UsageMeter())

    async with RawEngine(whole) as old, RawEngine(whole) as new:
        gateway = harness()
        gateway.pool.set_targets((Target(old.url, "old"), Target(new.url, "new", candidate_share=0.99)))
        for url in (old.url, new.url):
            gateway.pool.report(url, ProbeReport(ready=True))
        for speech in (whole, says()):
            new.speech = speech
            await gateway.run(requests(turn("hello")))
            assert gateway.status == 200
        assert (len(new.requests), len(old.requests)) == (2, 1), "the second one was answered by the other"
        name = "canary_time_to_first_token_seconds_count"
        assert [gateway.count(name, deployment="", track=track) for track in ("candidate", "stable")] == [
            1,
            1,
        ]
        assert (
            gateway.count("canary_time_per_output_token_seconds_count", deployment="", track="candidate") == 1
        )


def test_engines_are_chosen_as_ever_without_a_candidate() -> None:
    pool = Pool()
    pool.set_targets(targets(slices(None, OLD, "nano-engine-6d5f-zzzzz"), PODS))
    assert pool.candidate_share is None
    assert not any(endpoint.candidate for endpoint in pool.snapshot())


def test_a_long_name_tells_candidates_from_other_engines_too() -> None:
    owner = names.Children("n" * names.MAX_NAME_LENGTH)
    generated = [
        f"{one}-5b7d9c6f4d-"[: names.POD_NAME_BASE] + "abcde" for one in (owner.candidate, owner.engine)
    ]
    assert [pod.startswith(owner.candidate_pods) for pod in generated] == [True, False]


def test_the_times_of_both_revisions_are_counted_apart() -> None:
    metrics = GatewayMetrics(lambda: ())
    assert b"canary_time_to_first_token_seconds_count" not in metrics.render()
    metrics.time_answer("nano", candidate=True, first=0.2, rest=1.0, tokens=11)
    metrics.time_answer("nano", candidate=False, first=0.1, rest=0.0, tokens=1)
    text = metrics.render().decode()
    name = "mambaserve_gateway_canary_time"
    assert f'{name}_to_first_token_seconds_count{{deployment="nano",track="candidate"}} 1.0' in text
    assert f'{name}_to_first_token_seconds_count{{deployment="nano",track="stable"}} 1.0' in text
    assert f'{name}_per_output_token_seconds_sum{{deployment="nano",track="candidate"}} 0.1' in text
    assert f'{name}_per_output_token_seconds_count{{deployment="nano",track="stable"}}' not in text
