"""Times on a command line: `2s`, `100ms`, `5m`."""

import re

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Parse a duration into seconds. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    if match is None or not float(match[1]) > 0:
        raise ValueError(f"{text} is no time: write such as 2s or 100ms")
    return float(match[1]) * UNITS[match[2]]
