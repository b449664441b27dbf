"""The ledger of a gateway in a spec: `gateway.usage` of a MambaDeployment and `usage` of a MambaGateway."""

from typing import Annotated, Literal

from pydantic import Field

from mamba_api.v1alpha1.base import ApiModel, Rule, each_once, map_by

Price = Annotated[float, Field(ge=0, le=1_000_000_000)]
KeyName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
PRICED: tuple[Literal["device_hour", "prompt_tokens", "resumed_tokens", "output_tokens"], ...] = (
    "device_hour",
    "prompt_tokens",
    "resumed_tokens",
    "output_tokens",
)
"""Fields of `Prices` that are prices."""
_HAS_PRICE = (
    "has(self.deviceHour) || has(self.promptTokens) || has(self.resumedTokens) || has(self.outputTokens)"
)


def _some_price(message: str) -> Rule:
    """Return the rule that one of the prices is set."""
    return Rule(
        cel=_HAS_PRICE,
        message=message,
        holds=lambda self: any(getattr(self, name) is not None for name in PRICED),
    )


class Prices(ApiModel):
    """Prices of the use of engines, in one currency. The cost of a request is the sum of all prices set."""

    currency: Annotated[str, Field(min_length=3, max_length=3, pattern=r"^[A-Z]{3}$")] = "USD"
    """Currency of the prices: three letters."""
    device_hour: Price | None = None
    """Price of an hour of an engine's device. If absent, it has none."""
    prompt_tokens: Price | None = None
    """Price of a million prompt tokens that were computed. If absent, they have none."""
    resumed_tokens: Price | None = None
    """Price of a million prompt tokens that were resumed from a checkpoint. If absent, they have none."""
    output_tokens: Price | None = None
    """Price of a million tokens of answers. If absent, they have none."""

    rules = (
        _some_price(
            "prices has no price: set deviceHour, promptTokens, resumedTokens or outputTokens, or "
            "remove prices"
        ),
    )


class ModelPrices(ApiModel):
    """Prices of one model, in place of the prices for all models."""

    model: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]+$")]
    """Name of the model in the ledger: `spec.model.servedName` of its MambaDeployments."""
    device_hour: Price | None = None
    """Price of an hour of an engine's device. If absent, it has none."""
    prompt_tokens: Price | None = None
    """Price of a million prompt tokens that were computed. If absent, they have none."""
    resumed_tokens: Price | None = None
    """Price of a million prompt tokens that were resumed from a checkpoint. If absent, they have none."""
    output_tokens: Price | None = None
    """Price of a million tokens of answers. If absent, they have none."""

    rules = (
        _some_price(
            "a model of prices.models has no price: set deviceHour, promptTokens, resumedTokens or "
            "outputTokens, or remove it"
        ),
    )


class PricesByModel(Prices):
    """Prices at one address of several models."""

    models: Annotated[
        list[ModelPrices], Field(max_length=64, json_schema_extra=map_by("model")), each_once("model")
    ] = []
    """Models with prices of their own, in the same currency. The use of such a model costs only the prices
    set here, and none of the prices for all models."""

    rules = (
        Rule(
            cel=f"{_HAS_PRICE} || (has(self.models) && size(self.models) > 0)",
            message="prices has no price: set deviceHour, promptTokens, resumedTokens, outputTokens or "
            "models, or remove prices",
            holds=lambda self: bool(self.models) or any(getattr(self, name) is not None for name in PRICED),
        ),
    )


class Usage(ApiModel):
    """The ledger of the use of engines by day, model, API key and adapter, which `/v1/usage` shows."""

    retention_days: Annotated[int, Field(ge=1, le=3660)] = 90
    """Days (UTC) for which the use is kept: in the gateways' Redis (`prefixIndex.redis` of a MambaDeployment,
    `redis` of a MambaGateway), or in the memory of the gateway pod. A change replaces the gateway pods."""
    readers: Annotated[list[KeyName], Field(max_length=64)] = []
    """Names of the API keys that see the use of all keys; every other key sees its own. A change replaces the
    gateway pods."""
    prices: Prices | None = None
    """Prices of the use. If absent, the ledger has no costs. A change replaces the gateway pods, and holds
    for earlier days, too."""


class UsageOfModels(Usage):
    """The ledger of one address of several models."""

    prices: PricesByModel | None = None
    """Prices of the use. If absent, the ledger has no costs. A change replaces the gateway pods, and holds
    for earlier days, too."""


READERS_NEED_AUTH = Rule(
    cel="has(self.auth) || !has(self.usage.readers) || size(self.usage.readers) == 0",
    message="usage.readers names keys, and without auth there are none: name a Secret in auth, or "
    "remove readers",
    holds=lambda self: self.auth is not None or not self.usage.readers,
)
"""Rule of a gateway's spec, which has `auth` beside `usage`."""
