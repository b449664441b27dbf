"""The ledger of a gateway: nothing is counted twice, nothing is lost, and every key sees its own lines."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from mamba_edge.errors import InvalidRequest
from mamba_edge.exchange.request_context import CONTEXT
from mamba_edge.usage.prices import Prices
from mamba_edge.usage.usage_sum import UsageEntry, UsageFeed, UsageSum
from mamba_gateway.errors import LedgerAway
from mamba_gateway.settings import GatewaySettings
from mamba_gateway.usage.ledger_store import LedgerStore, MemoryLedger, UsageFileError
from mamba_gateway.usage.redis_ledger import RedisLedger
from mamba_gateway.usage.usage_ledger import MOST_SERIES, UsageLedger
from mamba_prefix.redis_client import make_client
from redis_server import RedisServer
from testcluster.free_ports import free_port

NOON = 20_786 * 86_400 + 43_200.0
TODAY, YESTERDAY = "2026-11-29", "2026-11-28"
HOUR = 3600 * 10**9


def entry(key: str, revision: int, *numbers: int, day: str = TODAY, adapter: str = "") -> UsageEntry:
    return UsageEntry(day, key, adapter, revision, UsageSum(*numbers))


def feed(*entries: UsageEntry, engine: str = "one", model: str = "m") -> UsageFeed:
    return UsageFeed(engine, model, max(each.revision for each in entries), list(entries))


def ledger(store: LedgerStore, **changes: Any) -> UsageLedger:
    return UsageLedger(store, **{"prices": Prices(), "days": 30, "clock": lambda: NOON, **changes})


async def lines(of: UsageLedger, key: str | None = None, **query: Any) -> dict[str, dict[str, Any]]:
    request = Request({"type": "http", CONTEXT: SimpleNamespace(key_name=key)})
    body = json.loads((await of.usage(request, **query)).body)
    return {line["name"]: line for line in body["data"]} | {"total": body["total"]}


async def test_a_repeated_or_late_report_changes_nothing_and_engines_add_up(tmp_path: Path) -> None:
    one = ledger(MemoryLedger(30))
    await one.take(feed(entry("alice", 1, 1, 10, 0, 5)))
    newer = feed(entry("alice", 5, 3, 30, 10, 15), entry("bob", 4, 1, 7, 0, 1))
    for report in (newer, newer, feed(entry("alice", 1, 1, 10, 0, 5))):
        await one.take(report)
    await one.take(feed(entry("alice", 2, 1, 100, 0, 2), engine="restarted"))
    shown = await lines(one)
    assert (shown["alice"]["requests"], shown["alice"]["prompt_tokens"]) == (4, 130)
    assert shown["bob"]["prompt_tokens"] == 7
    assert shown["total"]["prompt_tokens"] == 137
    counters = {sample.labels["key"]: sample.value for sample in list(one.collect())[1].samples}
    assert counters == {"alice": 130, "bob": 7}


async def test_days_models_and_adapters_are_lines_of_their_own_and_the_oldest_days_go() -> None:
    one = ledger(MemoryLedger(2), days=2)
    await one.take(feed(entry("alice", 1, 1, 10, day=YESTERDAY), entry("alice", 2, 1, 5, adapter="style")))
    await one.take(feed(entry("alice", 1, 1, 3), engine="two", model="other-model"))
    days = await lines(one, by="day", since=YESTERDAY)
    assert {name: line["prompt_tokens"] for name, line in days.items()} == {
        YESTERDAY: 10, TODAY: 8, "total": 18
    }  # fmt: skip
    assert (await lines(one, by="adapter"))["style"]["prompt_tokens"] == 5
    assert (await lines(one, by="model"))["other-model"]["prompt_tokens"] == 3
    assert (await lines(one, by="key", since=YESTERDAY, until=YESTERDAY))["alice"]["prompt_tokens"] == 10
    await one.take(feed(entry("alice", 9, 1, 1, day="2026-11-30")))
    assert YESTERDAY not in await lines(one, by="day", since=YESTERDAY)


async def test_a_model_with_prices_of_its_own_costs_those_alone_in_every_grouping() -> None:
    prices = Prices(currency="EUR", device_hour=3.0).with_models(["org/a:b:output-tokens=10,prompt-tokens=0"])
    one = ledger(MemoryLedger(30), prices=prices)
    million = 10**6
    await one.take(feed(entry("alice", 1, 1, million, 0, million, HOUR), model="org/a:b"))
    await one.take(feed(entry("alice", 1, 1, million, 0, million, HOUR), engine="two", model="other"))
    models = await lines(one, by="model")
    assert {name: line["cost"] for name, line in models.items()} == {"org/a:b": 10, "other": 3, "total": 13}
    assert (await lines(one, by="key"))["alice"]["cost"] == 13
    assert (await lines(one, by="day"))[TODAY]["cost"] == 13
    costs = {
        sample.labels["model"]: sample.value
        for family in one.collect()
        for sample in family.samples
        if sample.name == "mambaserve_gateway_usage_cost_total"
    }
    assert costs == {"org/a:b": 10, "other": 3}
    only = ledger(MemoryLedger(30), prices=Prices().with_models(["m:device-hour=1"]))
    await only.take(feed(entry("bob", 1, 1, 0, 0, 0, HOUR), entry("carol", 2, 1)))
    assert (await lines(only))["bob"]["cost"] == 1


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        (["device-hour=1"], "begins with no name"),
        (["m:hour=1"], "these have: device-hour"),
        (["m:device-hour=-1"], "no price from 0"),
        (["m:device-hour=nan"], "no price from 0"),
        (["m:device-hour="], "no price from 0"),
        (["m:device-hour=1", "m:output-tokens=1"], "has prices already"),
    ],
)
def test_prices_of_a_model_that_cannot_be_are_refused(prices: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GatewaySettings(backend=("http://e:1",), model_price=prices)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"since": "2026-13-01"}, "is no day"),
        ({"since": "2026-10-01"}, "--usage-days"),
        ({"until": "2026-12-01"}, "--usage-days"),
        ({"since": TODAY, "until": YESTERDAY}, "comes after"),
    ],
)
async def test_days_that_the_ledger_has_not_are_refused(query: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await lines(ledger(MemoryLedger(30)), **query)


async def test_a_key_sees_its_own_use_and_a_reader_that_of_all() -> None:
    one = ledger(MemoryLedger(30), readers=frozenset({"finance"}))
    await one.take(feed(entry("alice", 1, 1, 10), entry("bob", 2, 1, 20)))
    assert set(await lines(one, "alice")) == {"alice", "total"}
    assert (await lines(one, "alice"))["total"]["prompt_tokens"] == 10
    assert set(await lines(one, "finance")) == {"alice", "bob", "total"}
    assert set(await lines(one)) == {"alice", "bob", "total"}


async def test_costs_follow_the_prices_and_the_lines_add_up_to_the_devices_hours() -> None:
    prices = Prices("EUR", device_hour=3.0, prompt_tokens=2.0, resumed_tokens=0.5, output_tokens=10.0)
    one = ledger(MemoryLedger(30), prices=prices)
    million = 10**6
    await one.take(feed(entry("alice", 1, 9, 3 * million, million, million, HOUR, 0, 0, HOUR // 2)))
    await one.take(feed(entry("bob", 1, 9, 0, 0, 0, HOUR), engine="two"))
    shown = await lines(one)
    assert shown["alice"]["cost"] == pytest.approx(3.0 + 2 * 2.0 + 0.5 + 10.0)
    assert shown["alice"]["saved_cost"] == pytest.approx(1.5)
    assert shown["bob"]["cost"] == pytest.approx(3.0)
    assert shown["total"]["cost"] == pytest.approx(shown["alice"]["cost"] + shown["bob"]["cost"])
    counters = {
        (sample.name, sample.labels["key"]): sample.value
        for family in one.collect()
        for sample in family.samples
        if sample.labels.get("currency") == "EUR"
    }
    assert counters == {
        (f"mambaserve_gateway_usage_{kind}_total", key): pytest.approx(shown[key][kind])
        for kind in ("cost", "saved_cost")
        for key in ("alice", "bob")
    }
    free = ledger(MemoryLedger(30))
    await free.take(feed(entry("alice", 1, 9, million)))
    assert (await lines(free))["total"]["cost"] is None
    assert not [family for family in free.collect() if "cost" in family.name and family.samples]


async def test_a_gateway_goes_on_from_its_file_and_two_of_one_file_keep_both(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.json"
    first, second = MemoryLedger(30, path), MemoryLedger(30, path)
    await first.put(feed(entry("alice", 3, 1, 10)))
    await first.close()
    await second.put(feed(entry("bob", 3, 1, 20), engine="two"))
    await second.close()
    again = ledger(MemoryLedger(30, path))
    await again.take(feed(entry("alice", 3, 1, 10)))
    shown = await lines(again)
    assert {name: line["prompt_tokens"] for name, line in shown.items()} == {
        "bob": 20, "alice": 10, "total": 30
    }  # fmt: skip
    path.write_text("{")
    with pytest.raises(UsageFileError, match=r"ledger\.json is no ledger .* move it away"):
        MemoryLedger(30, path)


async def test_series_are_bounded_and_add_up() -> None:
    one = ledger(MemoryLedger(30))
    for number in range(MOST_SERIES + 20):
        await one.take(feed(entry(f"key-{number}", 1, 1, 2)))
    samples = list(one.collect())[1].samples
    assert len(samples) == MOST_SERIES + 1
    assert sum(sample.value for sample in samples) == 2 * (MOST_SERIES + 20)


@pytest.mark.redis
async def test_gateways_that_share_a_redis_count_each_engine_once_and_skip_foreign_fields(
    redis_server: RedisServer,
) -> None:
    stores = [RedisLedger(make_client(redis_server.url), "ns/model", 30) for _ in range(2)]
    one, two = (ledger(store) for store in stores)
    old, new = feed(entry("alice", 1, 1, 10)), feed(entry("alice", 12, 2, 25, 5, 1, 7, 8, 9, 10))
    for taker, report in ((one, old), (two, new), (one, new), (two, old)):
        await taker.take(report)
    await one.take(feed(entry("bob", 1, 1, 3, adapter="style"), engine="two"))
    place = "mambaserve:usage:1:{ns/model}:" + TODAY
    redis_server.command("HSET", place, "nonsense", "1 2")
    for taker in (one, two):
        shown = await lines(taker)
        assert shown["alice"]["prompt_tokens"] == 25
        assert shown["alice"]["saved_device_seconds"] == 10 / 1e9
        assert shown["total"]["requests"] == 3
    assert 30 * 86_400 < int(redis_server.command("TTL", place)[1:]) <= 31 * 86_400
    for store in stores:
        await store.close()


async def test_a_redis_that_is_away_is_an_error_that_says_so_and_the_report_can_be_taken_later() -> None:
    store = RedisLedger(make_client(f"redis://127.0.0.1:{free_port()}"), "ns/model", 30)
    with pytest.raises(LedgerAway, match="does not answer"):
        await ledger(store).take(feed(entry("alice", 1, 1, 10)))
    with pytest.raises(LedgerAway):
        await lines(ledger(store))
    await store.close()
