"""JSON that models write, read as the standard has it and written so that it can be sent. Pure."""

import json
import math
from typing import Any


def parse(text: str) -> Any:
    """Raises ValueError, RecursionError; for numbers that JSON does not have, too."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def encode(value: Any) -> str:
    """Of what `parse` gives. Halves of characters stay escaped: no text in UTF-8 has them."""
    plain = json.dumps(value, ensure_ascii=False)
    return plain if is_text(plain) else json.dumps(value)


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
