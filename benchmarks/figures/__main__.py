"""`python -m benchmarks.figures`: the lines of pages with numbers, their results, and the commands for them.

Ends with exit code 1 and says which numbers are stale, if there are any.
"""

import sys

from benchmarks.figures.figure import ROOT, complaints
from benchmarks.figures.published import PUBLISHED


def main() -> int:
    """Print each line of a page and check its numbers."""
    wrong = []
    for figures in PUBLISHED:
        print(f"{figures.page}: {figures.begin} …\n  {', '.join(figures.sources)}\n  {figures.command}")
        wrong += complaints(figures, (ROOT / figures.page).read_text(encoding="utf-8"))
    for line in wrong:
        print(f"stale: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
