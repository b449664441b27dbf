"""Seed one defect at a time into a copy of the source and see that the tests notice. Exit 1 if one survives.

Run by `make mutants`; names as arguments choose some.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from seeded import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("server", "kernels", "operator", "tests", "docs", "pyproject.toml")
OPTIONS = ["-q", "-x", "-p", "no:cacheprovider", "--tb=line", "-W", "ignore"]


def seed(tree: Path, mutant: Mutant) -> None:
    """Replace the text; raises if it is not there exactly once."""
    path = tree / mutant.path
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: the text occurs {text.count(mutant.old)} times in {mutant.path}")
    path.write_text(text.replace(mutant.old, mutant.new))


def caught_by(tree: Path, mutant: Mutant) -> str:
    """The first test that fails, or nothing."""
    environment = {
        **os.environ,
        "MAMBASERVE_PROPS": "small",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(str(tree / name) for name in ("server", "kernels", "operator")),
    }
    for tests in mutant.tests:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, tests],
            cwd=tree, env=environment, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if done.returncode == 1 and failed:
            return failed[0].split(" ")[1].rsplit("/", 1)[-1]
        if done.returncode != 0:
            raise SystemExit(
                f"{mutant.name}: {tests} did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
    return ""


def main(names: list[str]) -> int:
    chosen = [each for each in MUTANTS if not names or each.name in names]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clean = Path(folder) / "clean"
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, clean / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, clean / name)
        everything = tuple(dict.fromkeys(test for each in chosen for test in each.tests))
        if failing := caught_by(clean, Mutant("unchanged source", "", "", "", everything)):
            raise SystemExit(
                f"{failing} fails on the unchanged source: nothing it says about a mutant counts"
            )
        survivors = []
        for mutant in chosen:
            tree = Path(folder) / "mutant"
            shutil.copytree(clean, tree)
            seed(tree, mutant)
            began = time.perf_counter()
            caught = caught_by(tree, mutant)
            shutil.rmtree(tree)
            print(f"{'caught  ' if caught else 'SURVIVED'} {mutant.name}", flush=True)
            print(f"           {caught or '-'} ({time.perf_counter() - began:.0f} s)", flush=True)
            if not caught:
                survivors.append(mutant.name)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
