"""Which limit of an engine a 429 speaks of: the header by which a gateway tells a full engine from a client
that asks too much of one that has room. Pure."""

from mamba_edge.exchange.request_body import RawHeaders, find_header

LIMIT_HEADER = b"x-mambaserve-limit"
"""Of an engine's 429: the limit that is reached; none = the requests that the engine takes."""
FORMS = "forms"
"""Forms that wait to be checked."""
_TOO_MANY = 429


def is_full(status: int, headers: RawHeaders) -> bool:
    """Whether the answer says that the engine takes no more requests."""
    return status == _TOO_MANY and not find_header(headers, LIMIT_HEADER)


def is_over_own_limit(status: int, headers: RawHeaders) -> bool:
    """Whether the answer says that the client alone asks too much, which another engine is not to give."""
    return status == _TOO_MANY and bool(find_header(headers, LIMIT_HEADER))
