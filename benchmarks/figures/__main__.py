"""`python -m benchmarks.figures`: the lines of pages with numbers, their results, and the commands for them.

Ends with exit code 1 and says which numbers are stale, and which nothing keeps, if there are any.
"""

import sys

import yaml
from benchmarks.figures.figure import ROOT, complaints
from benchmarks.figures.prose import pages, unkept
from benchmarks.figures.published import PUBLISHED


def main() -> int:
    """Print each line of a page with its source, and check the numbers of all pages."""
    wrong = []
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
    chosen = yaml.safe_load((ROOT / "benchmarks/figures/chosen.yaml").read_text(encoding="utf-8"))
    for figures in PUBLISHED:
        print(f"{figures.page}: {figures.begin} …\n  {', '.join(figures.sources)}\n  {figures.command}")
        wrong += [f"stale: {complaint}" for complaint in complaints(figures, texts[figures.page])]
    for page, text in texts.items():
        for line, numbers in unkept(page, text, PUBLISHED, chosen):
            wrong.append(f"kept by nothing: {page}: {', '.join(numbers)} in {line[:60]!r}")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
