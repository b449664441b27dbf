"""`UsageSum` and `UsageFeed`: what requests have used, by day, API key and adapter, as engines report it.

An engine counts for each day (UTC), key and adapter what was used since its process began. These numbers only
grow, so a reader that keeps the newest numbers of each process has counted everything once, however often it
reads and however many other readers there are. Engines write feeds, gateways read them. Pure.
"""

import msgspec

ANYONE = "anyone"
"""Name under which requests without an API key are counted."""
OTHER = "other"
"""Name under which further keys, or adapters, are counted together once there are too many of them."""
NANOSECONDS = 1_000_000_000


class UsageSum(msgspec.Struct, array_like=True, frozen=True):
    """How much of engines a number of requests used. All numbers are integers, so sums are exact."""

    requests: int = 0
    """Requests that have ended, however they ended."""
    prompt_tokens: int = 0
    """Tokens of the prompts, resumed ones included."""
    resumed_tokens: int = 0
    """Tokens of the prompts that were resumed from a checkpoint."""
    output_tokens: int = 0
    """Tokens of the answers."""
    device: int = 0
    """Nanoseconds of the device."""
    slots: int = 0
    """Slot-nanoseconds: state slots times the time for which they were held."""
    pages: int = 0
    """Page-nanoseconds: pages of attention keys and values times the time for which they were used."""
    saved: int = 0
    """Nanoseconds of the device that the resumed tokens would have taken."""

    def plus(self, other: "UsageSum") -> "UsageSum":
        """Return the sum of both."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return UsageSum(*(mine + theirs for mine, theirs in pairs))

    def minus(self, other: "UsageSum") -> "UsageSum":
        """Return this sum without `other`, number by number."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return UsageSum(*(mine - theirs for mine, theirs in pairs))

    def named(self) -> dict[str, float]:
        """Return the numbers by name, times in seconds."""
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "resumed_tokens": self.resumed_tokens,
            "output_tokens": self.output_tokens,
            "device_seconds": self.device / NANOSECONDS,
            "slot_seconds": self.slots / NANOSECONDS,
            "page_seconds": self.pages / NANOSECONDS,
            "saved_device_seconds": self.saved / NANOSECONDS,
        }


class UsageEntry(msgspec.Struct, frozen=True):
    """How much one key used one adapter on one day, since the engine's process began."""

    day: str
    """Day in UTC, as 2026-11-29."""
    key: str
    """Name of the API key."""
    adapter: str
    """Name of the adapter; "" = the base model."""
    revision: int
    """Revision at which the entry changed last. Revisions grow within one incarnation."""
    total: UsageSum


class UsageFeed(msgspec.Struct, frozen=True):
    """Holds what an engine answers to a reader: the entries that changed after a revision."""

    incarnation: str
    """Random name of the process that counts."""
    model: str
    """Name of the model that the engine serves."""
    revision: int
    """Newest revision."""
    entries: list[UsageEntry]
