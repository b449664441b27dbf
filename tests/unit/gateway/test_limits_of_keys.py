"""Limits of keys and their queue as clients of the gateway see them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Send

from eventually import until
from mamba_edge.exchange.asgi_responses import USAGE_HEADER
from mamba_gateway.endpoints.endpoint import ENGINE_QUEUE
from mamba_gateway.key_limits import KeyLimits, KeyLimitTable
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.upstream.connector import UpstreamRequest
from proxy_harness import ProxyHarness, hang, samples


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("sk-secret-of-a team-a\nsk-secret-of-b team-b\nsk-new-of-a team-a\nsk-unnamed\n")
    return file


def by(name: str) -> dict[str, Any]:
    return {"headers": [("Authorization", f"Bearer {name}")]}


A, A_TOO, B = by("sk-secret-of-a"), by("sk-new-of-a"), by("sk-secret-of-b")


def limited(default: KeyLimits | None = None, **entries: KeyLimits) -> KeyLimitTable:
    return KeyLimitTable(default or KeyLimits(), entries)


def answers(usage: int) -> Any:
    async def script(call: UpstreamRequest, send: Send) -> None:
        body = json.dumps({"usage": {"total_tokens": usage}}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if call.meter is not None:
            call.meter.feed(body)
        await send({"type": "http.response.body", "body": body})

    return script


async def test_a_key_at_its_limit_is_told_when_to_come_back_and_others_go_on(keys: Path) -> None:
    harness = ProxyHarness(keys=keys, limits=limited(KeyLimits(requests_per_minute=2)))
    for asked in (await harness.ask(**A).done(), await harness.ask(**A_TOO).done()):
        assert asked.status == 200
    assert asked.headers["x-ratelimit-limit-requests"] == "2"
    assert asked.headers["x-ratelimit-remaining-requests"] == "0"
    refused = await harness.ask(**A).done()
    assert (refused.status, refused.error["code"], refused.error["type"]) == (
        429, "rate_limit_exceeded", "rate_limit_error",
    )  # fmt: skip
    assert refused.headers["retry-after"] == "30"
    reasons = {
        labels["reason"]: value
        for name, labels, value in samples(harness.metrics.registry)
        if name == "mambaserve_gateway_requests_total" and labels["code"] == "429"
    }
    assert reasons == {"key_limit": 1}
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert (await harness.ask(**B).done()).status == 200
    assert len(harness.relay.calls) == 3
    await asyncio.sleep(30)
    assert (await harness.ask(**A).done()).status == 200
    assert harness.is_empty()


async def test_no_key_stands_in_metrics_logs_or_answers(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = ProxyHarness(keys=keys, limits=limited(KeyLimits(requests_per_minute=1)))
    shown = ""
    for who in (A, A, by("sk-unnamed"), by("sk-unnamed"), by("sk-wrong")):
        asked = await harness.ask(**who).done()
        shown += f"{asked.messages}"
    shown += harness.metrics.render().decode() + "".join(capsys.readouterr())
    assert "sk-" not in shown
    refused = {
        labels["key"]: value
        for name, labels, value in samples(harness.metrics.registry)
        if name == "mambaserve_gateway_refused_total" and labels["cause"] == "requests"
    }
    assert refused == {"team-a": 1, "key-4": 1}


async def test_tokens_are_counted_by_what_the_engine_says(keys: Path) -> None:
    harness = ProxyHarness(answers(90), keys=keys, limits=limited(KeyLimits(tokens_per_minute=60)))
    assert (await harness.ask(**A).done()).status == 200
    refused = await harness.ask(**A).done()
    # 30 of debt and the prompt's own, guessed from its bytes.
    guessed = len(json.dumps({"model": "m", "prompt": "x"})) // 4
    assert (refused.status, refused.headers["retry-after"]) == (429, str(30 + guessed))
    assert dict(harness.relay.calls[0].headers)[USAGE_HEADER] == b"1"


async def test_a_prompt_that_was_tokenized_counts_with_its_own_length(keys: Path) -> None:
    class Reader:
        async def read(self, _request: UpstreamRequest) -> PromptPrefix:
            return PromptPrefix.of(range(50))

    harness = ProxyHarness(
        answers(50), keys=keys, prompts=Reader(), limits=limited(KeyLimits(tokens_per_minute=60))
    )
    asked = await harness.ask(**A).done()
    assert asked.headers["x-ratelimit-remaining-tokens"] == "10"
    assert harness.relay.calls[0].prompt is not None


async def test_without_keys_all_clients_are_one() -> None:
    harness = ProxyHarness(limits=limited(KeyLimits(requests_per_minute=1)))
    assert [(await harness.ask().done()).status for _ in range(2)] == [200, 429]


async def test_a_client_that_leaves_while_it_waits_counts_no_more(keys: Path) -> None:
    table = limited(KeyLimits(concurrent_requests=1))
    harness = ProxyHarness(hang, keys=keys, limits=table, places=1)
    first, waiting = harness.ask(**A), harness.ask(**B)
    await until(lambda: harness.admission.waiting() == {"team-b": 1})
    assert (await harness.ask(**B).done()).status == 429
    await waiting.leave().done()
    assert harness.admission.waiting() == {}
    again = harness.ask(**B)
    await until(lambda: harness.admission.waiting() == {"team-b": 1})
    await again.leave().done()
    await first.leave().done()
    assert harness.is_empty()


async def test_a_key_with_a_queue_does_not_hold_up_another(keys: Path) -> None:
    order: list[str] = []

    async def one_by_one(call: UpstreamRequest, send: Send) -> None:
        order.append(json.loads(call.body)["user"])
        await asyncio.sleep(1)
        await answers(10)(call, send)

    harness = ProxyHarness(one_by_one, keys=keys, places=1, queue=100, queue_timeout=100.0)
    body = {"model": "m", "prompt": "x", "max_tokens": 1}
    crowd = [harness.ask({**body, "user": "a"}, **A) for _ in range(10)]
    await until(lambda: len(order) == 1)
    crowd += [harness.ask({**body, "user": "b"}, **B) for _ in range(2)]
    for asked in crowd:
        assert (await asked.done(100)).status == 200
    assert "".join(order).index("bb"[0]) <= 2
    assert "".join(order[:6]).count("b") == 2


async def test_a_key_that_fills_the_queue_makes_room_for_others(keys: Path) -> None:
    harness = ProxyHarness(
        hang, keys=keys, places=100, queue=3, queue_timeout=50.0, free=lambda _: 1 - len(harness.relay.calls)
    )
    held = [harness.ask(**A) for _ in range(4)]
    await until(lambda: harness.admission.waiting() == {"team-a": 3})
    other = harness.ask(**B)
    await until(lambda: harness.admission.waiting() == {"team-a": 2, "team-b": 1})
    await held[3].done()
    assert (held[3].status, held[3].headers["retry-after"]) == (429, "5")
    for asked in (*held[:3], other):
        await asked.leave().done()
    assert harness.is_empty()


async def test_lower_priorities_of_a_key_go_first(keys: Path) -> None:
    order: list[int] = []

    async def noting(call: UpstreamRequest, send: Send) -> None:
        order.append(json.loads(call.body)["priority"])
        await asyncio.sleep(1)
        await answers(1)(call, send)

    harness = ProxyHarness(noting, keys=keys, places=1, queue=10, queue_timeout=100.0)
    crowd = [harness.ask({"model": "m", "priority": rank}, **A) for rank in (0, 5, -2, 3)]
    for asked in crowd:
        await asked.done(100)
    assert order == [0, -2, 3, 5]


async def test_at_most_what_engines_run_and_one_step_more_is_sent_to_them() -> None:
    free = 3 + ENGINE_QUEUE
    sent = 0

    async def running(call: UpstreamRequest, send: Send) -> None:
        nonlocal sent
        sent += 1
        if call.permit is not None:
            call.permit.sent()
        await asyncio.sleep(10)
        sent -= 1
        await answers(1)(call, send)

    harness = ProxyHarness(running, places=100, queue=100, queue_timeout=100.0, free=lambda _: free - sent)
    crowd = [harness.ask() for _ in range(free + 5)]
    await until(lambda: sum(harness.admission.waiting().values()) == 5)
    assert sent == free
    for asked in crowd:
        assert (await asked.done(100)).status == 200


@pytest.mark.parametrize("raw", [b"null", b"[]", b'"x"', b"1e400", b"-", b"9" * 50, b"true", b"{"])
async def test_what_is_wrong_with_a_priority_is_left_to_the_engine(raw: bytes) -> None:
    harness = ProxyHarness()
    body = b'{"model": "m", "priority": ' + raw + b', "max_tokens": ' + raw + b"}"
    asked = await harness.ask(body).done()
    assert asked.status == (400 if raw in (b"{", b"-") else 200)
