"""`index_trouble`: trouble with the Redis of the prefix index that gateways report. Pure; called by `plan`.

Gateways write their reports to the ConfigMap `<name>-wake`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.timestamp import parse_timestamp

REPORT_SECONDS = 90.0
"""Seconds for which a report counts; gateways repeat it three times in that time."""
MAX_REPORT_CHARS = 400
"""Characters of a report that are shown."""


@dataclass(frozen=True, slots=True)
class IndexTrouble:
    """Report of a gateway that the prefix index lacks its Redis."""

    message: str
    seconds_left: float
    """Seconds until the report is too old to count."""


def index_trouble(
    deployment: MambaDeployment | None, report: Manifest | None, now: datetime
) -> IndexTrouble | None:
    """Return the trouble that a gateway reported lately; None if none did, or the spec names no Redis."""
    if deployment is None or deployment.spec.prefix_index.redis is None:
        return None
    data = report.get("data") if report else None
    text = data.get(names.INDEX_TROUBLE_KEY) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        return None
    timestamp, _, report_text = text.partition(" ")
    reported_at = parse_timestamp(timestamp)
    # The distance in both directions: the clock of a gateway that is ahead does not prolong its report.
    left = REPORT_SECONDS - abs((now - reported_at).total_seconds()) if reported_at is not None else 0.0
    # Strangers can reach a gateway, so its text is cut and made one printable line.
    line = "".join(char if char.isprintable() else " " for char in report_text[:MAX_REPORT_CHARS]).strip()
    if left <= 0 or not line:
        return None
    return IndexTrouble(
        f"{line}; requests are answered without the prefix index: check spec.prefixIndex.redis", left
    )
