"""Counts of the transfers of one engine, for metrics and log lines. Only the loop's thread changes them."""

from collections import Counter
from dataclasses import dataclass, field

from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

QUIET = frozenset(("valid", "duplicate", "done", "stored", "known"))
"""Outcomes of transfers that went well: logged at the debug level."""


@dataclass(slots=True)
class TransferCounts:
    """Transfers that ended: `in`, `out` between engines, `demoted`, `restored` between arena and tiers."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number by direction and outcome."""
    sizes: Counter[str] = field(default_factory=Counter)
    """Bytes that arrived whole, by direction."""
    seconds: list[tuple[str, float]] = field(default_factory=list)
    """Direction and seconds of each, since `take_seconds`."""
    changes: int = 0
    """Number of changes of the cache's memory by transfers: a recount of the memory is void after each."""

    def record(
        self, direction: str, outcome: str, size: int, seconds: float, *, depth: int = 0, peer: str = ""
    ) -> None:
        """Count a transfer that ended, and log it. `size`: bytes that were moved whole."""
        self.outcomes[direction, outcome] += 1
        self.sizes[direction] += size
        self.seconds.append((direction, seconds))
        write = log.debug if outcome in QUIET else log.info
        write(
            "transfer", direction=direction, outcome=outcome, depth=depth, bytes=size,
            seconds=round(seconds, 4), peer=peer,
        )  # fmt: skip

    def take_seconds(self) -> list[tuple[str, float]]:
        """Return and clear the seconds of the transfers."""
        seconds, self.seconds = self.seconds, []
        return seconds

    def counters(self) -> dict[str, float]:
        """Return the counters by metric name."""
        counters: dict[str, float] = {
            f"transfers_total{{direction={direction},outcome={outcome}}}": count
            for (direction, outcome), count in self.outcomes.items()
        }
        counters.update(
            {f"transfer_bytes_total{{direction={direction}}}": size for direction, size in self.sizes.items()}
        )
        return counters
