"""The ledger of a gateway: how long and where the use of engines is kept, who may see it, and its prices."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

MOST_PRICE = 1e9


class UsageSettings(BaseModel):
    """The ledger of the use of engines."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    usage_days: int = Field(90, ge=1, le=3660)
    """Days (UTC) for which the use of engines is kept: in Redis where there is one, else in this process and
    --usage-file."""
    usage_file: str | None = Field(None, min_length=1)
    """File in which a gateway without a Redis keeps the use of engines, and from which it goes on after a
    restart; default: after a restart, the counts of engines that have ended are lost."""
    usage_reader: tuple[str, ...] = ()
    """Names of API keys that may see the use of all keys in `/v1/usage`; other keys see their own; in the
    environment separated by spaces."""
    price_currency: str = Field("USD", pattern=r"^[A-Z]{3}$")
    """Currency of the prices: three letters."""
    price_device_hour: float | None = Field(None, ge=0, le=MOST_PRICE)
    """Price of an hour of an engine's device; default: it has none."""
    price_prompt_tokens: float | None = Field(None, ge=0, le=MOST_PRICE)
    """Price of a million prompt tokens that were computed; default: they have none."""
    price_resumed_tokens: float | None = Field(None, ge=0, le=MOST_PRICE)
    """Price of a million prompt tokens that were resumed from a checkpoint; default: they have none."""
    price_output_tokens: float | None = Field(None, ge=0, le=MOST_PRICE)
    """Price of a million tokens of answers; default: they have none."""

    model_price: tuple[str, ...] = ()
    """Prices of one model by its name in the ledger, in place of those for all models:
    NAME:device-hour=2.5,prompt-tokens=0.2,resumed-tokens=0.02,output-tokens=0.6; in the environment one a
    line."""

    @field_validator("model_price", mode="before")
    @classmethod
    def _split_lines(cls, value: Any) -> Any:
        return tuple(value.splitlines()) if isinstance(value, str) else value

    @field_validator("usage_reader", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return tuple(value.split()) if isinstance(value, str) else value
