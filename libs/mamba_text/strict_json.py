"""JSON written by models, parsed by the standard's rules and encoded so that it can be sent. Pure."""

import json
import math
import re
from typing import Any


def parse(text: str) -> Any:
    """Parse JSON; numbers that are infinite or NaN are refused. Raises ValueError, RecursionError."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_several(text: str) -> list[Any]:
    """Parse one or more values that follow each other. Raises the errors of `parse`."""
    reader = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
    values, place = [], 0
    while rest := text[place:].lstrip():
        value, length = reader.raw_decode(rest)
        values.append(value)
        place = len(text) - len(rest) + length
    if not values:
        raise ValueError("there is no JSON")
    return values


def encode(value: Any) -> str:
    """Write a value of `parse` as text that can be sent: a lone surrogate becomes U+FFFD."""
    return whole_characters(json.dumps(value, ensure_ascii=False))


def whole_characters(text: str) -> str:
    """Replace each lone surrogate, which JSON's escapes can name and UTF-8 cannot encode, by U+FFFD."""
    return text if is_text(text) else _SURROGATE.sub("\ufffd", text)


def parse_whole(text: str) -> Any:
    """Parse JSON with U+FFFD for lone surrogates; NaN and infinities are accepted.

    Raises ValueError, RecursionError.
    """
    value = json.loads(text)
    if "\\u" not in text or is_text(plain := json.dumps(value, ensure_ascii=False)):
        return value
    return json.loads(whole_characters(plain))


def is_text(text: str) -> bool:
    """Return whether the text can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is too large")
    return number
