"""Markers and stop strings in text that arrives in pieces. Pure; used by what parses answers."""


def unfinished(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker` and is not all of it."""
    return next(
        (
            length
            for length in range(min(len(marker) - 1, len(text)), 0, -1)
            if marker.startswith(text[-length:])
        ),
        0,
    )
