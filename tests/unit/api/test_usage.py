"""The use of an engine as clients and gateways see it."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from asgi import Asked, ask
from eventually import until
from mamba_edge.api_keys import KeyFile
from mamba_edge.usage.prices import Prices
from mamba_edge.usage.usage_sum import UsageFeed, UsageSum
from mamba_server.api.metrics.usage_metrics import UsageMetrics
from mamba_server.api.usage.usage_totals import MOST_ACCOUNTS, UsageTotals
from mamba_server.wire import Cost
from scripted_engine import Api
from virtual_time import in_virtual_time

COST = Cost(device=1_500_000_000, slots=2_000_000_000, pages=8_000_000_000, saved=250_000_000)
IN_SECONDS = {
    "device_seconds": 1.5,
    "slot_seconds": 2.0,
    "page_seconds": 8.0,
    "saved_device_seconds": 0.25,
}
DAY = 86_400.0
BODIES = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
}


async def answered(api: Api, path: str, headers: dict[str, str], **body: object) -> Asked:
    asked = Asked(api.app, "POST", path, headers=headers.items()).whole(
        {"model": "tiny", **BODIES[path], **body}
    )
    cost = COST if headers.get("x-mambaserve-cost") == "1" else None
    await api.write("abcd", cost=cost)
    return await asked.done()


@pytest.mark.parametrize("path", BODIES)
async def test_the_header_adds_the_cost_to_the_usage_and_nothing_without_it(
    path: str,
) -> None:
    plain = (await answered(Api(), path, {})).json
    priced = (await answered(Api(), path, {"x-mambaserve-cost": "1"})).json
    assert priced["usage"].pop("engine_cost") == IN_SECONDS
    assert priced["usage"] == plain["usage"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_has_the_cost_once_in_its_last_usage(path: str) -> None:
    text = (await answered(Api(), path, {"x-mambaserve-cost": "1"}, stream=True)).body.decode()
    assert text.count("engine_cost") == 1
    assert '"device_seconds":1.5' in text
    plain = (await answered(Api(), path, {}, stream=True)).body.decode()
    assert "engine_cost" not in plain


@pytest.mark.parametrize("path", BODIES)
async def test_the_cost_has_the_price_that_the_gateway_names(path: str) -> None:
    prices = Prices("EUR", device_hour=3600.0, output_tokens=1e6)
    [name, value] = [part.decode() for part in prices.header()]
    headers = {"x-mambaserve-cost": "1", name: value}
    whole = (await answered(Api(), path, headers)).json["usage"]["engine_cost"]
    assert whole == {**IN_SECONDS, "cost": 1.5 + 4, "saved_cost": 0.25, "currency": "EUR"}
    text = (await answered(Api(), path, headers, stream=True)).body.decode()
    assert '"cost":5.5,"saved_cost":0.25,"currency":"EUR"' in text


@pytest.mark.parametrize("value", [b"", b"EUR", b"euro device-hour=1", b"EUR device-hour=x", b"EUR hour=1"])
def test_a_header_of_another_form_names_no_price(value: bytes) -> None:
    prices = Prices.from_header(value)
    assert prices is None or not prices.known


def test_the_header_names_each_price() -> None:
    prices = Prices("CHF", 2.5, 0.0, 1e-7, 1e9)
    assert Prices.from_header(prices.header()[1]) == prices


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("0", False)])
async def test_the_engine_reports_costs_only_to_who_asks(value: str, wanted: bool) -> None:
    api = Api()
    await answered(api, "/v1/completions", {"x-mambaserve-cost": value})
    assert [request.reports_cost for request in api.engine.requests] == [wanted]


async def test_another_value_of_the_header_is_refused() -> None:
    body, headers = {"model": "tiny", "prompt": "hi"}, [("x-mambaserve-cost", "yes")]
    refused = await ask(Api().app, "POST", "/v1/completions", body, headers=headers).done()
    assert refused.status == 400
    assert "X-Mambaserve-Cost: 'yes'" in refused.json["error"]["message"]


async def test_tokens_count_for_the_key_that_the_gateway_names_also_of_a_client_that_left() -> None:
    api = Api()
    await answered(api, "/v1/chat/completions", {"x-mambaserve-client": "alice"})
    leaving = Asked(api.app, "POST", "/v1/completions", headers=[("x-mambaserve-client", "bob")])
    leaving.whole({"model": "tiny", "prompt": "hello", "stream": True})
    await until(lambda: api.engine.has_requests(2))
    api.engine.delta("abc", of=1)
    await until(lambda: leaving.messages)
    leaving.leave()
    await leaving.done()
    sums = {key: total for key, _, total in api.serving.usage.sums()}
    assert (sums["alice"].requests, sums["alice"].output_tokens) == (1, 4)
    assert (sums["bob"].requests, sums["bob"].output_tokens) == (1, 3)
    counted = sum(total.prompt_tokens for total in sums.values())
    assert counted == api.count("mambaserve_prompt_tokens_total", model="tiny")


def test_totals_of_a_day_stay_when_the_next_one_begins_and_old_days_go() -> None:
    now = [1_000 * DAY - 1]
    totals = UsageTotals("tiny", lambda: now[0])
    account = totals.account("alice", "")
    totals.ended(account, 10, 4, 2)
    now[0] += 2
    totals.ended(account, 1, 0, 1)
    totals.on_costs([(account, COST)])
    days = {entry.day: entry.total for entry in totals.feed("", 0).entries}
    assert days == {
        "1972-09-26": UsageSum(1, 10, 4, 2),
        "1972-09-27": UsageSum(1, 1, 0, 1, *msgspec.structs.astuple(COST)),
    }
    now[0] += 2 * DAY
    totals.ended(account, 1, 0, 1)
    kept = sorted(entry.day for entry in totals.feed("", 0).entries)
    assert kept == ["1972-09-26", "1972-09-27", "1972-09-29"]
    now[0] += DAY
    totals.ended(account, 1, 0, 1)
    assert "1972-09-26" not in {entry.day for entry in totals.feed("", 0).entries}


def test_keys_beyond_the_limit_share_one_series_and_nothing_of_them_is_lost() -> None:
    api = Api()
    totals = api.serving.usage
    UsageMetrics(api.registry, totals)
    for number in range(MOST_ACCOUNTS + 50):
        totals.ended(totals.account(f"key-{number}", ""), 2, 0, 1)
    sums = [(key, total) for key, _, total in totals.sums()]
    assert len(sums) == MOST_ACCOUNTS + 1
    assert dict(sums)["other"].prompt_tokens == 100
    assert sum(total.requests for _, total in sums) == MOST_ACCOUNTS + 50
    assert (
        api.count("mambaserve_usage_prompt_tokens_total", model="tiny", key="other", adapter="other") == 100
    )


async def test_only_gateways_read_the_feed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one alice\ntwo gateway\n")
    api = Api(keys=KeyFile(keys, "--api-key-file"))
    statuses = [
        (await ask(api.app, "GET", "/v1/usage_changes", headers=headers.items()).done()).status
        for headers in ({}, {"authorization": "Bearer one"}, {"authorization": "Bearer two"})
    ]
    assert statuses == [401, 403, 200]


@in_virtual_time
async def test_a_gateway_waits_for_changes_and_gets_those_that_it_has_not() -> None:
    api = Api()
    totals = api.serving.usage
    totals.ended(totals.account("alice", ""), 1, 0, 1)
    totals.ended(totals.account("bob", "style"), 2, 0, 2)
    first = await feed(api)
    assert [(entry.key, entry.adapter) for entry in first.entries] == [("alice", ""), ("bob", "style")]
    query = f"incarnation={first.incarnation}&since={first.revision}&wait=20"
    waiting = asyncio.create_task(feed(api, query))
    await asyncio.sleep(1)
    assert not waiting.done()
    totals.ended(totals.account("alice", ""), 5, 0, 1)
    second = await waiting
    assert [(entry.key, entry.total.prompt_tokens) for entry in second.entries] == [("alice", 6)]
    assert len((await feed(api, f"incarnation=another&since={second.revision}&wait=20")).entries) == 2
    waiting = asyncio.create_task(
        feed(api, f"incarnation={first.incarnation}&since={second.revision}&wait=20")
    )
    await asyncio.sleep(1)
    totals.close()
    assert (await waiting).entries == []


async def feed(api: Api, query: str = "") -> UsageFeed:
    answer = await ask(api.app, "GET", "/v1/usage_changes", query=query).done()
    assert answer.status == 200
    return msgspec.json.decode(answer.body, type=UsageFeed)
