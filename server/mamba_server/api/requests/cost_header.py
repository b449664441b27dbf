"""The headers by which a client asks what its request has cost, and a gateway names the prices. Pure."""

from collections.abc import Mapping

from mamba_edge.errors import InvalidRequest
from mamba_edge.usage.prices import COST_HEADER, PRICES_HEADER, Prices


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


def request_prices(headers: Mapping[bytes, bytes]) -> Prices | None:
    """Return the prices of the request's model as the gateway names them; None = it names none."""
    value = headers.get(PRICES_HEADER)
    return None if value is None else Prices.from_header(value)
