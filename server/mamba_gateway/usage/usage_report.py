"""`UsageReport`: the ledger of some days as one table, grouped by key, model, adapter or day. Pure."""

import math
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from mamba_edge.usage.prices import Prices
from mamba_edge.usage.usage_sum import UsageSum
from mamba_gateway.usage.ledger_store import LedgerEntry

By = Literal["key", "model", "adapter", "day"]
SumsByModel = dict[str, UsageSum]


class UsageLine(BaseModel):
    """One line of the report."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    """Name of the key, model or adapter, or the day; the empty adapter is the base model."""
    requests: int
    """Requests that ended."""
    prompt_tokens: int
    """Prompt tokens, resumed ones included."""
    resumed_tokens: int
    """Prompt tokens that were resumed."""
    output_tokens: int
    """Tokens of answers."""
    device_seconds: float
    """Time of the device."""
    slot_seconds: float
    """State slots times the seconds for which they were held."""
    page_seconds: float
    """Attention pages times the seconds for which they were used."""
    saved_device_seconds: float
    """Time of the device that the resumed tokens would have taken."""
    cost: float | None = None
    """Price of the line, where the gateway has prices."""
    saved_cost: float | None = None
    """Price of the device time that resuming saved, where the gateway has prices."""


class UsageReport(BaseModel):
    """Body of `GET /v1/usage` of a gateway."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    object: Literal["list"] = "list"
    by: By
    """Grouping of the lines."""
    since: str
    """First day, in UTC."""
    until: str
    """Last day."""
    currency: str | None
    """Currency of the costs; null = the gateway has no prices."""
    data: list[UsageLine]
    """The lines, the largest device time first; days in their order."""
    total: UsageLine
    """Sum of all lines."""


def days_between(first: date, last: date) -> list[str]:
    """Return the names of the days from `first` to `last`, both included."""
    return [(first + timedelta(days=number)).isoformat() for number in range((last - first).days + 1)]


def report(
    entries: Iterable[tuple[str, LedgerEntry]],
    *,
    by: By,
    since: str,
    until: str,
    prices: Prices,
    only_key: str | None = None,
) -> UsageReport:
    """Return the report of `entries`, which are pairs of a day and an entry of that day.

    `only_key` is the only key whose use is shown; None = all keys.
    """
    sums: dict[str, SumsByModel] = {}
    whole: SumsByModel = {}
    for day, entry in entries:
        if only_key is not None and entry.key != only_key:
            continue
        name = day if by == "day" else str(getattr(entry, by))
        for models in (sums.setdefault(name, {}), whole):
            models[entry.model] = models.get(entry.model, UsageSum()).plus(entry.total)
    lines = [_line(name, models, prices) for name, models in sums.items()]
    lines.sort(key=lambda line: line.name if by == "day" else (-line.device_seconds, line.name))
    return UsageReport(
        by=by,
        since=since,
        until=until,
        currency=prices.currency if prices.known else None,
        data=lines,
        total=_line("", whole, prices),
    )


def _line(name: str, models: SumsByModel, prices: Prices) -> UsageLine:
    """Return the line of some use, which each model adds to at its own prices."""
    total = UsageSum()
    for part in models.values():
        total = total.plus(part)
    numbers: dict[str, Any] = dict(total.named())
    costs = {}
    if prices.known:
        costs = {
            "cost": math.fsum(prices.of(model).cost(part) for model, part in models.items()),
            "saved_cost": math.fsum(prices.of(model).saved(part) for model, part in models.items()),
        }
    return UsageLine(name=name, **numbers, **costs)
