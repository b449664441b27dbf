"""The header that tells a full engine from a client above a limit of its own, both with a 429. Pure."""

from mamba_edge.exchange.request_body import RawHeaders, find_header

LIMIT_HEADER = b"x-mambaserve-limit"
"""Header of an engine's 429 with the limit that is reached; without it the engine takes no more requests."""
FORMS = "forms"
"""Limit on answer formats that wait to be checked."""
_TOO_MANY = 429


def is_full(status: int, headers: RawHeaders) -> bool:
    """Return whether the answer says that the engine takes no more requests."""
    return status == _TOO_MANY and not find_header(headers, LIMIT_HEADER)


def is_over_own_limit(status: int, headers: RawHeaders) -> bool:
    """Return whether this client exceeds a limit, so that no other engine is to be tried."""
    return status == _TOO_MANY and bool(find_header(headers, LIMIT_HEADER))
