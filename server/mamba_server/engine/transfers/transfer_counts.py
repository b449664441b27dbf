"""Counts of one engine's transfers, for metrics and the log. Only the thread of the loop changes them."""

from collections import Counter
from dataclasses import dataclass, field

from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

QUIET = frozenset(("valid", "duplicate", "done", "stored", "known"))
"""Outcomes of successful transfers, which are logged at the debug level."""


@dataclass(slots=True)
class TransferCounts:
    """Numbers of transfers that have ended, by direction.

    The directions are `in` and `out` between engines, `demoted` from the arena to a tier, and `restored` from
    a tier to the arena.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of transfers by direction and outcome."""
    sizes: Counter[str] = field(default_factory=Counter)
    """Bytes of complete transfers, by direction."""
    seconds: list[tuple[str, float]] = field(default_factory=list)
    """Direction and duration in seconds of each transfer since the last call of `take_seconds`."""
    changes: int = 0
    """Number of changes that transfers have made to the memory of the cache. A count of the used memory that
    was taken before a change is out of date."""

    def record(
        self, direction: str, outcome: str, size: int, seconds: float, *, depth: int = 0, peer: str = ""
    ) -> None:
        """Count a transfer that has ended, and log it.

        `size` is the number of bytes, if it was complete, and `seconds` its duration. `peer` is the other
        engine.
        """
        self.outcomes[direction, outcome] += 1
        self.sizes[direction] += size
        self.seconds.append((direction, seconds))
        write = log.debug if outcome in QUIET else log.info
        write(
            "transfer", direction=direction, outcome=outcome, depth=depth, bytes=size,
            seconds=round(seconds, 4), peer=peer,
        )  # fmt: skip

    def take_seconds(self) -> list[tuple[str, float]]:
        """Return the direction and the seconds of each transfer since the last call."""
        seconds, self.seconds = self.seconds, []
        return seconds

    def counters(self) -> dict[str, float]:
        """Return the values of the counters by metric name."""
        counters: dict[str, float] = {
            f"transfers_total{{direction={direction},outcome={outcome}}}": count
            for (direction, outcome), count in self.outcomes.items()
        }
        counters.update(
            {f"transfer_bytes_total{{direction={direction}}}": size for direction, size in self.sizes.items()}
        )
        return counters
