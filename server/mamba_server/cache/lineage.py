"""Lineage: where the state of a checkpoint comes from, kept for as long as something descends from it.

Donation and transit write it; whoever has to name a wrong checkpoint reads it. A chain is never longer than a
text has pages, because each checkpoint is deeper than the one that its sequence resumed from.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, Optional

Origin = Literal["device", "tier", "peer", "hand_over", "session"]
"""Place at which a state was before this arena had it; `device` = it was computed here."""


class Provenance(NamedTuple):
    """Source of one state."""

    origin: Origin
    request_id: str = ""
    """Request that wrote the checkpoint, or for which it came; "" = none."""
    place: str = ""
    """Address and incarnation of the engine that sent it, or the name of the tier; "" = this engine."""


RECEIVED = Provenance("peer")
"""Provenance of a state that came from outside, and of which nobody said more."""


class Lineage:
    """Lineage of one checkpoint. `parent`: that of the checkpoint from which its writer resumed, if any."""

    __slots__ = ("depth", "parent", "provenance", "resumed", "step")

    def __init__(
        self, provenance: Provenance, depth: int, step: int, parent: Optional["Lineage"] = None
    ) -> None:
        self.provenance = provenance
        self.depth = depth
        self.step = step
        """Step that wrote the checkpoint."""
        self.parent = parent
        self.resumed = 0
        """Number of sequences that have resumed from the checkpoint."""

    def chain(self) -> Iterator["Lineage"]:
        """Yield this lineage and its ancestors, the deepest first."""
        lineage: Lineage | None = self
        while lineage is not None:
            yield lineage
            lineage = lineage.parent
