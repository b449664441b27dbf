"""Numbers out of results that are tables: rows, which a few of their values name. Pure.

The lists of figures use them; `figure` has what reads single numbers.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.figures.figure import Value


def cell(
    key: str, *path: str, source: int = 0, scale: float = 1.0, rows: str = "rows", **only: object
) -> Value:
    """Return a number of the one row with these values, at `key` and the keys `path` below it."""
    return picked(_only, key, *path, source=source, scale=scale, rows=rows, **only)


def picked(
    choose: Callable[[list[float]], float],
    key: str,
    *path: str,
    source: int = 0,
    scale: float = 1.0,
    rows: str = "rows",
    **only: object,
) -> Value:
    """Return what `choose` makes of a number of all rows with these values.

    `rows` is the place of the rows: keys with points between them.
    """

    def value(documents: Sequence[Any]) -> float:
        place = documents[source]
        for each in rows.split("."):
            place = place[each]
        found = []
        for row in place:
            if all(row[name] == wanted for name, wanted in only.items()):
                number = row[key]
                for each in path:
                    number = number[each]
                found.append(float(number))
        if not found:
            raise KeyError(key)
        return scale * choose(found)

    return value


def _only(numbers: list[float]) -> float:
    [number] = numbers
    return number


def mean(key: str, *path: str, **only: Any) -> Value:
    """Return the mean of a number of all rows with these values."""
    return picked(fmean, key, *path, **only)


def ratio(above: Value, below: Value) -> Value:
    """Return the quotient of two numbers."""
    return lambda documents: above(documents) / below(documents)


def ratio_of_rounds(above: Sequence[str], below: Sequence[str]) -> Value:
    """Return the median over rounds of the ratio of two lists of numbers, each at a path of keys."""

    def numbers(document: Any, path: Sequence[str]) -> list[float]:
        for key in path:
            document = document[key]
        return [float(number) for number in document]

    return lambda documents: median(
        mine / theirs
        for mine, theirs in zip(numbers(documents[0], above), numbers(documents[0], below), strict=True)
    )
