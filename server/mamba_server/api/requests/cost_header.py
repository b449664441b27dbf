"""The header by which a client asks what its request has cost. Pure."""

from collections.abc import Mapping

from mamba_edge.errors import InvalidRequest

COST_HEADER = b"x-mambaserve-cost"
"""`1`: the `usage` of the answer has the costs, and a stream ends with a usage chunk."""


def wants_cost(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the usage of the answer has the costs. Raises InvalidRequest."""
    value = headers.get(COST_HEADER, b"0").strip()
    if value not in (b"0", b"1"):
        text = value[:40].decode("latin-1")
        raise InvalidRequest(
            f"X-Mambaserve-Cost: {text!r} is neither 1, which adds the costs to the usage, nor 0",
            param="X-Mambaserve-Cost",
        )
    return value == b"1"
