"""Prometheus helpers that every process shares: one registry per process, common buckets.

Processes create their registry here and expose it on `/metrics`. Metric names are defined where they are
counted.
"""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

PREFIX = "mambaserve_"

FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
)  # fmt: skip
"""Buckets in seconds: the OpenTelemetry GenAI buckets, continued beyond 10 s for long prompts."""
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
"""Buckets in seconds per token."""
REQUEST_BUCKETS = tuple(0.01 * 2**power for power in range(16))
"""Buckets in seconds per request: 10 ms to 5.5 minutes."""
STEP_BUCKETS = tuple(0.0001 * 2**power for power in range(18))
"""Buckets in seconds per part of a step: 0.1 ms to 13 s."""
LENGTH_BUCKETS = tuple(float(4**power) for power in range(10))
"""Buckets in tokens."""
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Buckets in sequences."""


def make_registry(*, process_metrics: bool = True) -> CollectorRegistry:
    """Return a new registry with the usual process and Python metrics."""
    registry = CollectorRegistry(auto_describe=False)
    if process_metrics:
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
    return registry


def expose(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Return body and content type of `/metrics`.

    The format is OpenMetrics with exemplars if `accept` (the header) requests it, else Prometheus text.
    """
    try:
        encode, kind = choose_encoder(accept)
    except (TypeError, ValueError):  # an invalid version
        encode, kind = choose_encoder("")
    return encode(registry), kind
