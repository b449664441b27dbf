"""`Figures`: the numbers on one line of a page, each read from a kept result. Pure but for reading files.

The lists of figures are in `published`; a test and `python -m benchmarks.figures` check them. A line of a
page is stale where one of its numbers is not that of its result, or where a newer result has all of them.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
Value = Callable[[Sequence[Any]], float]
"""Returns one number, of the contents of the sources. Raises KeyError or IndexError where it is not there."""
_LINK = re.compile(r"\]\([^)]*\)|`[^`]*`")
_NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w-])")


@dataclass(frozen=True)
class Figures:
    """The numbers of one line of a page."""

    page: str
    """Path from the project's root."""
    begin: str
    """The line's first words, without the bar of a table."""
    command: str
    """What measures them again."""
    sources: tuple[str, ...]
    """Names of results, without folder and ending."""
    values: tuple[Value | str, ...]
    """Each number in the order of the line, its first cell left out; a text = a number of the description."""

    def read(self, results: Path = RESULTS) -> list[Any]:
        """Return the contents of the sources."""
        return [json.loads((results / f"{name}.json").read_text(encoding="utf-8")) for name in self.sources]


def numbers_of(line: str) -> list[str]:
    """Return the numbers of a line, without those in addresses, in code and in the first cell of a table."""
    cells = line.strip().strip("|").split("|")
    return _NUMBER.findall(_LINK.sub(" ", " ".join(cells[1:] if line.startswith("|") else cells)))


def lines_of(text: str) -> list[str]:
    """Return the rows of tables, the paragraphs and the items of lists of a page, each as one line."""
    rows = [line.strip() for line in text.splitlines() if line.lstrip().startswith("|")]
    rest = re.sub(r"^ *\|.*$", "", text, flags=re.MULTILINE)
    paragraphs = re.split(r"\n\s*\n|\n(?= *(?:-|\d+\.) )", rest)
    return rows + [" ".join(each.split()) for each in paragraphs]


def complaints(figures: Figures, text: str, results: Path = RESULTS) -> list[str]:
    """Return what is wrong with the figures of a page, given its text."""
    where = f"{figures.page}: {figures.begin!r}"
    lines = [line for line in lines_of(text) if line.removeprefix("|").strip().startswith(figures.begin)]
    if len(lines) != 1:
        return [f"{where}: {len(lines)} lines begin so"]
    shown, documents = numbers_of(lines[0]), figures.read(results)
    if len(shown) != len(figures.values):
        return [f"{where}: the line has the numbers {shown}, and {len(figures.values)} are kept"]
    wrong = []
    for number, value in zip(shown, figures.values, strict=True):
        if isinstance(value, str):
            if number != value:
                wrong.append(f"{where}: {number} is described as {value}")
        elif not agrees(number, exact := value(documents)):
            wrong.append(f"{where}: {number} is {exact:.4g} in {', '.join(figures.sources)}")
    return wrong + [f"{where}: {name} is newer" for name in newer(figures, results)]


def agrees(number: str, exact: float) -> bool:
    """Return whether a written number is the exact one, rounded to as many digits."""
    digits = len(number.partition(".")[2])
    return abs(float(number.replace(",", "")) - exact) <= 0.5 * 10.0**-digits * (1 + 1e-9)


def newer(figures: Figures, results: Path = RESULTS) -> list[str]:
    """Return the newer results of the first source's name that have all the numbers."""
    first, *others = figures.sources
    found = []
    for path in sorted(results.glob(f"????-??-??{first[10:]}.json")):
        if path.stem <= first or path.stem in others:
            continue
        documents = [json.loads(path.read_text(encoding="utf-8")), *figures.read(results)[1:]]
        try:
            for value in figures.values:
                if not isinstance(value, str):
                    value(documents)
        except (KeyError, IndexError, TypeError):
            continue
        found.append(path.stem)
    return found


def at(*path: str, source: int = 0, scale: float = 1.0) -> Value:
    """Return the number at a path of keys; of a list of numbers the median."""

    def value(documents: Sequence[Any]) -> float:
        found = documents[source]
        for key in path:
            found = found[key]
        return scale * (median(found) if isinstance(found, list) else float(found))

    return value


def step(kind: str, way: str, *part: str) -> Value:
    """Return the seconds of a step of `benchmarks.engine_cpu`; `part`: keys of the run in its file."""

    def value(documents: Sequence[Any]) -> float:
        found = documents[0]
        for key in part:
            found = found[key]
        return float(median(turn[way]["wall"] for turn in found["steps"][kind]))

    return value


def rates(way: str, *rows: int, part: tuple[str, ...] = ()) -> tuple[Value, ...]:
    """Return tokens per second at these numbers of rows, by `benchmarks.engine_cpu`."""

    def rate(count: int) -> Value:
        seconds = step(f"decode {count}", way, *part)
        return lambda documents: count / seconds(documents)

    return tuple(rate(count) for count in rows)
