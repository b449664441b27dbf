"""Screens of a page: commands behind their prompts, and what each prints, compared by form.

What differs from run to run is compared by its form alone: ids, times, ages, ports, names of pods. Dots in a
line of their own stand for any lines.
"""

import re
from typing import NamedTuple

DIFFERENT = (
    (r'"(?:chat)?cmpl-\w+"', '"ID"'),
    (r'"created":\d+', '"created":TIME'),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b\d+\.\d+\.\d+\.\d+(?=[:\s])", "ADDRESS"),
    (r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}", "DATE"),
    (r"(?<=-)[0-9a-f]{8,10}-[a-z0-9]{5}\b", "POD"),
    (r"\b(?:\d+ ?[dhms]){1,2}\b", "AGE"),
    # What a plan allots follows the processor's kernels.
    (r"\b\d[\d,]*(?= (?:slots|pages)\b)|\b\d[\d.]*[KMG]i\b|\b\d+(?= +\d+ +\d[\d.]*[KMG]i\b)", "AMOUNT"),
)


class Screen(NamedTuple):
    """One command as a page shows it, and the lines below it."""

    command: str
    output: str


def screens(page: str) -> list[Screen]:
    """Return the screens of all `console` blocks of a page, in their order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            # A quotation in a command may span lines.
            end = next(at for at in range(1, len(lines) + 1) if "\n".join(lines[:at]).count("'") % 2 == 0)
            found.append(Screen("\n".join(lines[:end]), "\n".join(lines[end:])))
    return found


def form(text: str) -> list[str]:
    """Return the lines of a screen without what differs from run to run, and without alignment."""
    for pattern, word in DIFFERENT:
        text = re.sub(pattern, word, text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def shows(expected: str, printed: str) -> bool:
    """Return whether a page shows what a command printed."""
    pattern = "".join(r"(?:.*\n)*" if line == "..." else f"{re.escape(line)}\n" for line in form(expected))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in form(printed))) is not None
