"""Measured numbers in the prose of pages: which lines have one, and which of those nothing keeps.

A test of the pages and `python -m benchmarks.figures` ask for them. A number is measured where a unit of
measurement follows, where it is a decimal fraction, or where its line links to a result. Numbers
that somebody chose, such as a timeout, are in `chosen.yaml` with the line of code that has them. Pure but for
reading files.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.figures.figure import ROOT, Figures, lines_of, numbers_of

_WRITTEN = re.compile(r"<!-- begin: written by .*?<!-- end -->", re.DOTALL)
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\([^)]*\)|`[^`]*`")
_AMOUNT = r"\d+(?:,\d{3})*(?:\.\d+)?"
_UNIT = (
    r"%|percent|times|tokens/s|tokens per second|tokens a second|[KMGT]i?B/s|nats"
    r"|µs|ms|milliseconds?|s|seconds?|min|minutes?|hours?"
)
_MEASURED = re.compile(rf"(?<![\w.,/-])({_AMOUNT}) ?({_UNIT})(?![\w-])")
_SIZE = re.compile(rf"{_AMOUNT} [KMGT]?i?B(?![\w/])")
_RATIO = re.compile(r"(?<![\w.,/-])(?<!Python )\d\.\d\d(?![\w.])")
_DECIMAL = re.compile(r"(?<![\w.,/-])\d+\.\d+(?![\w.-])")
RECORDS = ("docs/notes/", "docs/adr/")
"""Folders of what was measured and decided at a time, with date and commit."""


def pages(root: Path = ROOT) -> list[str]:
    """Return the pages that say what is, written by people."""
    every = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    names = [path.relative_to(root).as_posix() for path in every]
    return [
        name
        for name, path in zip(names, every, strict=True)
        if not name.startswith(RECORDS) and "<!-- Written by `make docs`" not in path.read_text("utf-8")
    ]


def prose(text: str) -> str:
    """Return a page without code and without what a script writes into it."""
    return _FENCE.sub("", _WRITTEN.sub("", text))


def amounts(line: str) -> list[str]:
    """Return the numbers of a line that have a unit of measurement, each with its unit."""
    return [f"{number} {unit}" for number, unit in _MEASURED.findall(_LINK.sub(" ", line))]


def ratios(line: str) -> list[str]:
    """Return the numbers with two decimals in a sentence that have no unit, such as a ratio of two times."""
    return _RATIO.findall(_SIZE.sub(" ", _MEASURED.sub(" ", _LINK.sub(" ", line))))


def fractions(line: str) -> list[str]:
    """Return the decimal fractions in a row of a table, its first cell left out."""
    cells = line.strip().strip("|").partition("|")[2]
    return _DECIMAL.findall(_SIZE.sub(" ", _MEASURED.sub(" ", _LINK.sub(" ", cells))))


def measured_numbers(line: str) -> list[str]:
    """Return the numbers of a line that a measurement may have given."""
    found = amounts(line)
    if line.startswith("|"):
        return found + fractions(line)
    found += ratios(line)
    if "benchmarks/results" in line and not found:
        found = numbers_of(line)
    return found


def unkept(
    page: str, text: str, published: Sequence[Figures], chosen: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each line of a page with numbers that no figure keeps and nobody chose, and these numbers."""
    begins = tuple(figures.begin for figures in published if figures.page == page)
    known = set(chosen.get(page, {}))
    for line in lines_of(prose(text)):
        if line.removeprefix("|").strip().startswith(begins):
            continue
        if unknown := [number for number in measured_numbers(line) if number not in known]:
            yield line, unknown
