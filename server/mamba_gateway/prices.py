"""`Prices`: what the use of engines costs, by the settings of the gateway. Pure."""

from dataclasses import dataclass

from mamba_edge.usage.usage_sum import NANOSECONDS, UsageSum

HOUR = 3600 * NANOSECONDS
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in one currency; None = such use has no price."""

    currency: str = "USD"
    device_hour: float | None = None
    """Price of an hour of the device."""
    prompt_tokens: float | None = None
    """Price of a million prompt tokens that were computed."""
    resumed_tokens: float | None = None
    """Price of a million prompt tokens that were resumed."""
    output_tokens: float | None = None
    """Price of a million tokens of answers."""

    @property
    def known(self) -> bool:
        """Whether anything has a price."""
        prices = (self.device_hour, self.prompt_tokens, self.resumed_tokens, self.output_tokens)
        return any(price is not None for price in prices)

    def cost(self, total: UsageSum) -> float:
        """Return the price of what was used."""
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
