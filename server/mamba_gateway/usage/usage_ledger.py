"""`UsageLedger`: what the engines of one gateway report, kept in a store, counted for metrics, and reported.

The readers of engines call `take`; the gateway's own routes call `usage`.
"""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import Query
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from mamba_edge.app.application import JsonResponse
from mamba_edge.errors import InvalidRequest
from mamba_edge.exchange.request_context import context_of
from mamba_edge.usage.prices import Prices
from mamba_edge.usage.usage_sum import OTHER, UsageEntry, UsageFeed, UsageSum
from mamba_gateway.usage.ledger_store import LedgerStore
from mamba_gateway.usage.usage_report import By, days_between, report

MOST_SERIES = 256
"""Most triples of model, key and adapter that are series; all others of a model are one more."""
KEPT_ENTRIES = 100_000
"""Most entries of engines that are remembered, to see by how much a later entry is larger."""
HELP = {
    "requests": "Requests that ended, by key and adapter, as engines report them.",
    "prompt_tokens": "Prompt tokens, resumed ones included, by key and adapter.",
    "resumed_tokens": "Prompt tokens that were resumed from a checkpoint, by key and adapter.",
    "output_tokens": "Tokens of answers, by key and adapter.",
    "device_seconds": "Time of the devices, by key and adapter.",
    "slot_seconds": "State slots times the seconds for which they were held, by key and adapter.",
    "page_seconds": "Attention pages times the seconds for which they were used, by key and adapter.",
    "saved_device_seconds": "Time of the devices that resumed tokens would have taken, by key and adapter.",
    "cost": "Price of the use, by key and adapter.",
    "saved_cost": "Price of the device time that resuming saved, by key and adapter.",
}
Day = Annotated[str | None, Query(pattern=r"^\d{4}-\d\d-\d\d$", max_length=10)]
Names = tuple[str, str, str]


class UsageLedger(Collector):
    """The use of all engines of one gateway by day, model, key and adapter, also as metrics.

    `store` keeps the entries of the last `days` days. `readers` are the names of the keys that may see the
    use of all keys, where keys are required.
    """

    def __init__(
        self,
        store: LedgerStore,
        *,
        prices: Prices,
        days: int,
        readers: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._prices, self._days = store, prices, days
        self._readers, self._clock = readers, clock
        self._seen: dict[tuple[str, str, str, str], UsageEntry] = {}
        """Newest entry by incarnation, day, key and adapter."""
        self._series: dict[Names, UsageSum] = {}

    async def take(self, feed: UsageFeed) -> None:
        """Keep the entries that an engine reports.

        Raises LedgerAway; the same report can be taken again then.
        """
        await self._store.put(feed)
        for entry in feed.entries:
            self._count(feed, entry)

    def _count(self, feed: UsageFeed, entry: UsageEntry) -> None:
        place = feed.incarnation, entry.day, entry.key, entry.adapter
        before = self._seen.pop(place, None)
        if before is not None and before.revision >= entry.revision:
            self._seen[place] = before
            return
        self._seen[place] = entry
        while len(self._seen) > KEPT_ENTRIES:
            self._seen.pop(next(iter(self._seen)))
        names = feed.model, entry.key, entry.adapter
        if names not in self._series and len(self._series) >= MOST_SERIES:
            names = feed.model, OTHER, OTHER
        added = entry.total if before is None else entry.total.minus(before.total)
        self._series[names] = self._series.get(names, UsageSum()).plus(added)

    def collect(self) -> Iterator[Metric]:
        """Yield a counter of each kind of use, and of its cost where there are prices."""
        series = [(names, total.named()) for names, total in self._series.items()]
        for kind in UsageSum().named():
            counter = CounterMetricFamily(
                f"mambaserve_gateway_usage_{kind}", HELP[kind], labels=["model", "key", "adapter"]
            )
            for names, numbers in series:
                counter.add_metric(names, numbers[kind])
            yield counter
        prices = self._prices
        for kind, price in (("cost", Prices.cost), ("saved_cost", Prices.saved)):
            costs = CounterMetricFamily(
                f"mambaserve_gateway_usage_{kind}", HELP[kind], labels=["model", "key", "adapter", "currency"]
            )
            for names, total in self._series.items() if prices.known else ():
                costs.add_metric((*names, prices.currency), price(prices.of(names[0]), total))
            yield costs

    async def usage(self, request: Request, by: By = "key", since: Day = None, until: Day = None) -> Response:
        """Return the use of engines from day `since` to day `until`; by default of today, in UTC.

        Where keys are required, a key sees its own use, and the keys of `--usage-reader` see all. `by` is the
        grouping of the lines.
        """
        today = datetime.fromtimestamp(self._clock(), UTC).date()
        last = _day("until", until) or today
        first = _day("since", since) or last
        if first > last:
            raise InvalidRequest(f"since: {first} comes after {last}", param="since")
        if (today - first).days >= self._days or last > today:
            raise InvalidRequest(
                f"since: the ledger keeps {self._days} days, up to {today} (UTC): see --usage-days",
                param="since",
            )
        key = context_of(request.scope).key_name
        entries = await self._store.entries(days_between(first, last))
        body = report(
            entries,
            by=by,
            since=first.isoformat(),
            until=last.isoformat(),
            prices=self._prices,
            only_key=None if key is None or key in self._readers else key,
        )
        return JsonResponse(body.model_dump_json().encode())


def _day(name: str, text: str | None) -> date | None:
    """Return the day that `text`, the query parameter `name`, gives; None if there is no text.

    Raises InvalidRequest.
    """
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {text!r} is no day: write it as 2026-11-29", param=name) from error
