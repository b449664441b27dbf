"""Bytes in words, as Kubernetes spells quantities. Pure; used in reasons, tables and status."""

_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def binary_size(count: int) -> str:
    """`3328599654` -> `3.1Gi`; below 1 Ki the plain number; negative counts keep their sign."""
    sign, size = ("-", -count) if count < 0 else ("", count)
    for unit, suffix in _UNITS:
        # What would be rounded to 1024.0 of a unit is 1.0 of the next.
        if round(size / (unit >> 10), 1) >= 1024:
            return f"{sign}{size / unit:.1f}{suffix}"
    return f"{sign}{size}"
