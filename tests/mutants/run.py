"""Seed one defect at a time into a copy of the tree and see that the tests notice. Exit 1 if one survives.

Run by `make mutants`; names or areas as arguments choose some. Each worker has a tree of its own.
"""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

# Last, because an area may be called as a module of the standard library is.
sys.path.append(str(Path(__file__).parent))
from seeded import SOURCES, Mutant, Unseedable, by_area, seeded

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "--tb=line", "-W", "ignore")
SECONDS = 900
"""Longest run of one mutant's tests."""
TEST_SECONDS = "60"
"""The same of a single test, which fails then: a defect may well make something wait for ever."""
_stamps = itertools.count(1_000_000_000)


class Unusable(Exception):
    """The tests did not run, so they say nothing about a mutant."""


@dataclass(frozen=True)
class Outcome:
    """Result of one mutant. `caught_by`: the first test that failed, empty = none."""

    mutant: Mutant
    area: str
    caught_by: str
    seconds: float
    unusable: str = ""

    @property
    def word(self) -> str:
        return "UNUSABLE" if self.unusable else "caught" if self.caught_by else "SURVIVED"


def copy(folder: Path) -> Path:
    """Return all that git knows of or would add, in `folder`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        original = ROOT / name
        # A link may lead to a folder, and is one file for git.
        if name and (original.is_file() or original.is_symlink()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(original, folder / name, follow_symlinks=False)
    return folder


def write(path: Path, text: str) -> None:
    """Write with a time stamp of its own: Python trusts compiled code if time and size of the source fit."""
    path.write_text(text)
    stamp = next(_stamps)
    os.utime(path, (stamp, stamp))


def first_failure(tree: Path, tests: Iterable[str], *options: str) -> str:
    """Return the first test that fails in `tree`, or an empty string. Raises Unusable."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *options, *tests],
        cwd=tree, capture_output=True, text=True, timeout=SECONDS,
        env={
            **os.environ, "MAMBASERVE_PROPS": "small", "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(str(tree / name) for name in SOURCES),
        },
    )  # fmt: skip
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == 1 and failed:
        file, _, name = failed[0].partition(" ")[2].partition(" - ")[0].partition("::")
        return f"{Path(file).name}::{name}"
    if done.returncode:
        raise Unusable(f"{' '.join(tests)} did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return ""


def tried(tree: Path, mutant: Mutant, area: str) -> Outcome:
    """Put the defect into the tree, run its tests, and restore the file."""
    began = time.perf_counter()
    caught = unusable = ""
    try:
        defect = seeded(tree, mutant)
        sound = defect.path.read_text()
        write(defect.path, defect.text)
        try:
            caught = next(
                filter(
                    None, (first_failure(tree, [test], "--timeout", TEST_SECONDS) for test in mutant.tests)
                ),
                "",
            )
        finally:
            write(defect.path, sound)
    except subprocess.TimeoutExpired:
        unusable = f"its tests were not through after {SECONDS} s"
    except (Unusable, Unseedable) as error:
        unusable = str(error)
    return Outcome(mutant, area, caught, time.perf_counter() - began, unusable)


def run(chosen: list[tuple[str, Mutant]], workers: int, folder: Path) -> list[Outcome]:
    """Try them all, and say each outcome as it comes."""
    trees: queue.Queue[Path] = queue.Queue()
    for number in range(workers):
        trees.put(copy(folder / f"tree-{number}"))

    def one(area: str, mutant: Mutant) -> Outcome:
        tree = trees.get()
        try:
            return tried(tree, mutant, area)
        finally:
            trees.put(tree)

    outcomes = []
    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(one, area, mutant) for area, mutant in chosen]):
            each = done.result()
            outcomes.append(each)
            place = f"[{len(outcomes):{len(str(len(chosen)))}}/{len(chosen)}]"
            print(f"{place} {each.word:8} {each.mutant.name} ({each.seconds:.0f} s)", flush=True)
            if each.unusable:
                print(each.unusable, flush=True)
    order = {mutant.name: place for place, (_, mutant) in enumerate(chosen)}
    return sorted(outcomes, key=lambda each: order[each.mutant.name])


def show(outcomes: list[Outcome], seconds: float) -> None:
    """Print the results: a table on a terminal, plain lines elsewhere."""
    rows = [
        (each.mutant.name, each.area, each.caught_by or each.word, f"{each.seconds:.0f}") for each in outcomes
    ]
    totals = [
        (area, sum(bool(each.caught_by) for each in of), len(of), sum(each.seconds for each in of))
        for area in dict.fromkeys(each.area for each in outcomes)
        for of in [[each for each in outcomes if each.area == area]]
    ]
    console = Console()
    if console.is_terminal:
        table = Table("defect", "area", "caught by", "s")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        for row in rows:
            print(" | ".join(row))
    for area, caught, count, spent in totals:
        print(f"{area}: {caught} of {count} caught, {spent:.0f} s of tests")
    caught = sum(bool(each.caught_by) for each in outcomes)
    print(f"{caught} of {len(outcomes)} mutants caught in {seconds:.0f} s")


def main() -> int:
    areas = by_area()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of defects or areas; none = all")
    parser.add_argument("--workers", type=int, default=int(os.environ.get("WORKERS", "2")))
    given = parser.parse_args()
    known = {*areas, *(mutant.name for each in areas.values() for mutant in each)}
    if strange := set(given.names) - known:
        parser.error(f"no defect and no area is called {', '.join(sorted(strange))}")
    chosen = [
        (area, mutant)
        for area, mutants in areas.items()
        for mutant in mutants
        if not given.names or {area, mutant.name} & set(given.names)
    ]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        everything = dict.fromkeys(test for _, mutant in chosen for test in mutant.tests)
        print(f"{len(chosen)} mutants; first their tests on the source as it is", flush=True)
        try:
            failing = first_failure(
                copy(Path(name) / "sound"), everything, "-n", str(given.workers), "--dist", "loadfile"
            )
        except Unusable as error:
            failing = str(error)
        if failing:
            print(f"{failing} on the unchanged source: nothing that it says about a mutant counts")
            return 1
        outcomes = run(chosen, given.workers, Path(name))
    show(outcomes, time.perf_counter() - began)
    return 0 if all(each.caught_by for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
