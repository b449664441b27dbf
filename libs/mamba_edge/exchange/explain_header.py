"""Headers by which a client asks why its prompt resumed no more, and a gateway names a better engine. Pure.

Gateway and engine both read the first one. The second comes from a gateway alone, which knows what each
engine has cached; an engine knows only its own cache.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from mamba_edge.errors import InvalidRequest

EXPLAIN_HEADER = b"x-mambaserve-explain"
"""Header that asks for an explanation of what the prompt resumed: `1` = yes; `0`, or no header = no."""
ELSEWHERE_HEADER = b"x-mambaserve-elsewhere"
"""Header with an engine that could resume more of the prompt: `TOKENS NAME`, the tokens that it could resume
and its name."""
_ELSEWHERE = re.compile(rb"([0-9]{1,9}) ([!-~]{1,253})")


class Elsewhere(NamedTuple):
    """The engine that could resume more of a prompt than any other one, and how much."""

    tokens: int
    name: str


def wants_explanation(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the request asks for an explanation. Raises InvalidRequest for another value."""
    value = headers.get(EXPLAIN_HEADER)
    if value is None or value.strip() == b"0":
        return False
    if value.strip() == b"1":
        return True
    raise InvalidRequest(
        f"X-Mambaserve-Explain: {value[:80].decode('latin-1')!r} is neither 1 (explain what the prompt "
        "resumed) nor 0; to explain a prompt without computing it, use mambaserve why --prompt",
        param="X-Mambaserve-Explain",
    )


def elsewhere_header(elsewhere: Elsewhere) -> tuple[bytes, bytes]:
    """Return the header that tells the chosen engine which other engine could resume more."""
    return ELSEWHERE_HEADER, f"{elsewhere.tokens} {elsewhere.name}".encode("ascii", "replace")


def parse_elsewhere(headers: Mapping[bytes, bytes]) -> Elsewhere | None:
    """Return the engine that a gateway says could resume more; None without one in the exact form."""
    match = _ELSEWHERE.fullmatch(headers.get(ELSEWHERE_HEADER, b""))
    return Elsewhere(int(match[1]), match[2].decode()) if match is not None else None
