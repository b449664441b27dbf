"""What gateways say of the Redis of the prefix index, by the ConfigMap X-wake. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.timestamp import parse_timestamp

REPORT_SECONDS = 90.0
"""For so long a report counts; gateways repeat it three times in that time."""
LONGEST_REPORT = 400
"""Characters of a report that are shown."""


@dataclass(frozen=True, slots=True)
class IndexTrouble:
    """Redis is missing to the prefix index."""

    message: str
    seconds_left: float
    """Until the report is too old to count."""


def index_trouble(
    deployment: MambaDeployment | None, report: Manifest | None, now: datetime
) -> IndexTrouble | None:
    """The trouble that a gateway lately reported; None: none did, or the spec has no Redis any more."""
    if deployment is None or deployment.spec.prefix_index.redis is None:
        return None
    data = report.get("data") if report else None
    text = data.get(names.INDEX_TROUBLE_KEY) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        return None
    at, _, said = text.partition(" ")
    when = parse_timestamp(at)
    # A clock that is ahead makes a report live no longer than one that is right.
    left = REPORT_SECONDS - abs((now - when).total_seconds()) if when is not None else 0.0
    # Gateways are what strangers talk to: of their words so much is shown, in one line.
    words = "".join(each if each.isprintable() else " " for each in said[:LONGEST_REPORT]).strip()
    if left <= 0 or not words:
        return None
    return IndexTrouble(f"{words}; requests are answered without it, check spec.prefixIndex.redis", left)
