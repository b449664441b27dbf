"""`Prices`: what the use of engines costs, by the settings of the gateway. Pure.

The gateway prices its ledger, and names the prices of a model to its engine in a header where a client asks
for the cost of its request.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from mamba_edge.usage.usage_sum import NANOSECONDS, UsageSum

HOUR = 3600 * NANOSECONDS
MILLION = 1_000_000
MOST_PRICE = 1e9
COST_HEADER = b"x-mambaserve-cost"
"""Header by which a client asks for the cost of its request with the value `1`. Then the `usage` of the
answer has the costs, and a stream ends with a usage chunk."""
PRICES_HEADER = b"x-mambaserve-prices"
"""Header from a gateway to an engine with the prices of a request's model, such as `EUR
device-hour=2.5,output-tokens=0.6`."""
_CURRENCY = re.compile("[A-Z]{3}")
PRICED = ("device-hour", "prompt-tokens", "resumed-tokens", "output-tokens")
"""Names of the prices in the option `--model-price` and in `PRICES_HEADER`; the fields of `Prices` have
underscores instead."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Computes what the use of engines costs, in one currency.

    A price that is None does not exist, so that such use costs nothing.
    """

    currency: str = "USD"
    device_hour: float | None = None
    """Price of an hour of the device."""
    prompt_tokens: float | None = None
    """Price of a million prompt tokens that were computed."""
    resumed_tokens: float | None = None
    """Price of a million prompt tokens that were resumed."""
    output_tokens: float | None = None
    """Price of a million tokens of answers."""
    models: Mapping[str, "Prices"] = field(default_factory=dict)
    """Prices by model, of those models that have prices of their own."""

    @property
    def known(self) -> bool:
        """Whether anything has a price."""
        return bool(self._amounts()) or any(each.known for each in self.models.values())

    def of(self, model: str) -> "Prices":
        """Return the prices of `model`: its own prices, or the prices for all models if it has none."""
        return self.models.get(model, self)

    def with_models(self, entries: Iterable[str]) -> "Prices":
        """Return these prices together with the prices of single models in `entries`.

        An entry is such as `NAME:device-hour=2.5,output-tokens=0.6`. Raises ValueError with a message about
        the wrong entry.
        """
        models: dict[str, Prices] = {}
        for entry in entries:
            name, _, amounts = entry.rpartition(":")
            if not name:
                raise ValueError(f"{entry!r}: begins with no name of a model; write NAME:device-hour=2.5")
            if name in models:
                raise ValueError(f"{entry!r}: {name} has prices already; put all of them into one entry")
            models[name] = replace(Prices(self.currency), **_amounts(entry, amounts))
        return replace(self, models=models)

    def header(self) -> tuple[bytes, bytes]:
        """Return the header that names these prices to an engine."""
        text = ",".join(f"{key}={amount!r}" for key, amount in self._amounts().items())
        return PRICES_HEADER, f"{self.currency} {text}".encode()

    def _amounts(self) -> dict[str, float]:
        """Return the prices that are set, by the names of `PRICED`."""
        amounts = {key: getattr(self, key.replace("-", "_")) for key in PRICED}
        return {key: amount for key, amount in amounts.items() if amount is not None}

    @classmethod
    def from_header(cls, value: bytes | None) -> Self | None:
        """Return the prices that `PRICES_HEADER` holds; None if it is missing or invalid."""
        currency, _, amounts = (value or b"")[:500].decode("latin-1").partition(" ")
        if not _CURRENCY.fullmatch(currency):
            return None
        try:
            return replace(cls(currency), **_amounts(amounts, amounts))
        except ValueError:
            return None

    def cost(self, total: UsageSum) -> float:
        """Return the price of the use `total`."""
        computed = total.prompt_tokens - total.resumed_tokens
        return (
            (self.device_hour or 0.0) * total.device / HOUR
            + (self.prompt_tokens or 0.0) * computed / MILLION
            + (self.resumed_tokens or 0.0) * total.resumed_tokens / MILLION
            + (self.output_tokens or 0.0) * total.output_tokens / MILLION
        )

    def saved(self, total: UsageSum) -> float:
        """Return the price of the device time that resuming saved."""
        return (self.device_hour or 0.0) * total.saved / HOUR


def _amounts(entry: str, text: str) -> dict[str, Any]:
    """Return the prices in `text`, such as `device-hour=2.5,output-tokens=0.6`, by field. Raises ValueError.

    `entry` is quoted in the message.
    """
    pairs = [_amount(entry, part) for part in text.split(",") if part]
    return {key.replace("-", "_"): amount for key, amount in pairs}


def _amount(entry: str, part: str) -> tuple[str, float]:
    """Return the field and the amount of one price, such as `device-hour=2.5`. Raises ValueError.

    `entry` is quoted in the message.
    """
    key, _, text = part.partition("=")
    if key not in PRICED:
        raise ValueError(f"{entry!r}: {key!r} has no price; these have: {', '.join(PRICED)}")
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount <= MOST_PRICE:
        raise ValueError(f"{entry!r}: {text!r} is no price from 0 to {MOST_PRICE:.0f}")
    return key, amount
