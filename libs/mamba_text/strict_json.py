"""JSON that models write, read as the standard has it and written so that it can be sent. Pure."""

import json
import math
import re
from typing import Any


def parse(text: str) -> Any:
    """Raises ValueError, RecursionError; for numbers that JSON does not have, too."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


_HALF = re.compile("[\ud800-\udfff]")


def parse_several(text: str) -> list[Any]:
    """The values that stand one behind the other, at least one. Raises as `parse`."""
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
    """Write what `parse` gives as text that can be sent: half of a character becomes U+FFFD."""
    return whole_characters(json.dumps(value, ensure_ascii=False))


def whole_characters(text: str) -> str:
    """The text, with U+FFFD for each half of a character that JSON's escapes can name and no text has."""
    return text if is_text(text) else _HALF.sub("\ufffd", text)


def parse_whole(text: str) -> Any:
    """Read JSON with U+FFFD for halves of characters. Raises ValueError, RecursionError."""
    value = json.loads(text)
    if "\\u" not in text or is_text(plain := json.dumps(value, ensure_ascii=False)):
        return value
    return json.loads(whole_characters(plain))


def is_text(text: str) -> bool:
    """It can be sent, as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is too large")
    return number
