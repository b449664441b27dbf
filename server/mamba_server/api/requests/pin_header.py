"""Pinned prefixes of a request: the header that keeps the whole prompt cached for a time, and a limit. Pure.

Messages pin prefixes, too, by `cache_control`: such a prefix ends with the message. `check_pins` limits their
number.
"""

import re
from collections.abc import Mapping

from mamba_api.openai import ChatCompletionRequest
from mamba_edge.errors import InvalidRequest

PIN_HEADER = b"x-mambaserve-pin"
"""`10m`: the prompt of the request stays cached for ten minutes."""
MOST_SECONDS = 24 * 3600
"""Longest time of a pin."""
MOST_PINS = 16
"""Most messages of one request with `cache_control`: each one is rendered again."""
_TIME = re.compile(rb"([1-9][0-9]{0,5})([smh])")
_SECONDS = {b"s": 1, b"m": 60, b"h": 3600}


def pin_seconds(headers: Mapping[bytes, bytes]) -> float:
    """Return the seconds for which the whole prompt is to stay; 0 = no header. Raises InvalidRequest."""
    value = headers.get(PIN_HEADER)
    if value is None:
        return 0.0
    match = _TIME.fullmatch(value.strip())
    seconds = int(match[1]) * _SECONDS[match[2]] if match is not None else 0
    if not 0 < seconds <= MOST_SECONDS:
        text = value[:80].decode("latin-1")
        raise InvalidRequest(
            f"X-Mambaserve-Pin: {text!r} is no time from 1s to 24h: write a number and s, m or h, as in 10m",
            param="X-Mambaserve-Pin",
        )
    return float(seconds)


def check_pins(request: ChatCompletionRequest) -> None:
    """Check that no more messages pin a prefix than one request may. Raises InvalidRequest."""
    pinned = sum(message.pin_seconds > 0 for message in request.messages)
    if pinned > MOST_PINS:
        raise InvalidRequest(
            f"messages: {pinned} messages have cache_control, and at most {MOST_PINS} may: leave it out of "
            "the first ones",
            param="messages",
        )
