"""Copies of requests in the ledger: a line of their own, which no key pays, beside what clients have used."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from eventually import until
from mamba_api.dialects.paths import CHAT_COMPLETIONS
from mamba_edge.exchange.request_context import CLIENT_HEADER
from mamba_edge.usage.prices import Prices
from mamba_edge.usage.usage_sum import UsageSum
from mamba_gateway.body_fields import UsageMeter
from mamba_gateway.endpoints.pool import ProbeReport, Shadow, Target
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_gateway.usage.ledger_store import MemoryLedger
from mamba_gateway.usage.usage_report import report
from mamba_server import wire
from scripted_engine import Api, ids_of
from served_app import served

PRICES = Prices(output_tokens=1e6)


def answering(text: str) -> Api:
    """Return an engine that answers every prompt with `text`."""
    api = Api()

    def react(message: wire.ToEngine) -> None:
        if isinstance(message, wire.AddRequest):
            delta = wire.SequenceDelta(message.request_id, 0, ids_of(text), finish_reason="stop")
            asyncio.get_running_loop().call_soon(api.engine.send, wire.Outputs([delta]))

    api.engine.process.react = react
    return api


def request(key: str, number: int) -> UpstreamRequest:
    messages = [{"role": "user", "content": f"{key} asks {'again and ' * number}"}]
    body = json.dumps({"messages": messages, "max_tokens": 9}).encode()
    headers = [(b"content-type", b"application/json"), (CLIENT_HEADER, key.encode())]
    return UpstreamRequest(
        CHAT_COMPLETIONS, "", headers, body, None, meter=UsageMeter(), request_id=f"{key}-{number}"
    )


def totals(api: Api) -> dict[str, UsageSum]:
    return {key: total for key, _, total in api.serving.usage.sums()}


async def test_copies_are_a_line_of_their_own_and_all_lines_add_up_to_both_engines(
    harness: Callable[..., Any],
) -> None:
    old, new = answering("four"), answering("it is four")
    async with served(old.app) as old_url, served(new.app) as new_url:
        gateway = harness()
        shadow = Shadow(1.0, 8)
        gateway.pool.set_targets(
            (Target(old_url, "old"), Target(new_url, "new", candidate_share=0.0, shadow=shadow))
        )
        for url in (old_url, new_url):
            gateway.pool.report(url, ProbeReport(ready=True))
        asked = [request(key, number) for number in range(4) for key in ("alice", "bob")]
        for each in asked:
            await gateway.run(each)
        await until(
            lambda: gateway.count("shadow_copies_total", deployment="", outcome="compared") == len(asked)
        )
        await gateway.relay.close()
    ledger, days = MemoryLedger(30), set[str]()
    for api in (old, new):
        feed = api.serving.usage.feed("", 0)
        days |= {entry.day for entry in feed.entries}
        await ledger.put(feed)
    entries = await ledger.entries(sorted(days))
    lines = report(entries, by="key", since=min(days), until=max(days), prices=PRICES)

    shown = {line.name: line for line in lines.data}
    assert set(shown) == {"alice", "bob", "_shadow"}
    assert set(totals(old)) == {"alice", "bob"}
    assert set(totals(new)) == {"_shadow"}
    for name, total in (totals(old) | totals(new)).items():
        assert (shown[name].requests, shown[name].prompt_tokens) == (total.requests, total.prompt_tokens)
        assert shown[name].cost == shown[name].output_tokens == total.output_tokens
    clients = [shown["alice"], shown["bob"]]
    assert sum(line.prompt_tokens for line in clients) == shown["_shadow"].prompt_tokens
    assert [line.requests for line in clients] == [4, 4]
    assert shown["_shadow"].requests == len(asked)
    assert lines.total.output_tokens == sum(line.output_tokens for line in lines.data)
