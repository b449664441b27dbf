"""Time from the wheel to the first token of the shipped model, and where it goes.

Run as `python -m benchmarks.first_token`, after `make release`; writes JSON and Markdown to
benchmarks/results. The wheel is installed into an empty environment out of a folder of downloaded packages,
so that the network does not count. Then `mambaserve run` answers twice, first with an empty cache of kernels.
`--compile` measures the wheel of all platforms, whose first engine compiles the kernels. Processor time is
comparable on a machine with other work, passed time is not.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cache.record import write

ROOT = Path(__file__).resolve().parents[1]
MODEL = "builtin://tiny-recall"


class Timer:
    """Wall time and the processor time of ended child processes, since it was made."""

    def __init__(self) -> None:
        self._wall, self._processor = time.monotonic(), self._children()

    @staticmethod
    def _children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def passed(self) -> dict[str, float]:
        """Return both, in seconds."""
        processor = self._children() - self._processor
        return {"wall": round(time.monotonic() - self._wall, 2), "processor": round(processor, 2)}


def install(wheel: Path, environment: Path, packages: Path | None) -> dict[str, dict[str, float]]:
    """Install the wheel with its extra `server` into an empty environment; return the time of each step."""
    steps, python = {}, environment / "bin/python"
    timer = Timer()
    _call(sys.executable, "-m", "venv", environment)
    steps["environment"] = timer.passed()
    if packages is None:
        packages, timer = environment / "packages", Timer()
        _call(python, "-m", "pip", "download", "-q", "-d", packages, f"{wheel}[server]")
        steps["download"] = timer.passed()
    timer = Timer()
    offline = ("--no-index", "--find-links", packages)
    _call(python, "-m", "pip", "install", "-q", *offline, f"{wheel}[server]")
    steps["install"] = timer.passed()
    return steps


def answer(mambaserve: Path, cache: Path) -> dict[str, Any]:
    """Run one conversation; return the seconds until each stage began and until the end."""
    timer = Timer()
    stages: dict[str, float] = {}
    variables = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    command = [str(mambaserve), "run", MODEL, "hello", "--max-tokens", "8"]
    # Both in one pipe, in the order of time: the first line that names no stage is the answer.
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cache
    ) as process:
        assert process.stdout is not None
        for line in iter(process.stdout.readline, b""):
            text = line.decode()
            stage = text.removeprefix(f"{MODEL}: ").strip() if text.startswith(MODEL) else "answer"
            stages.setdefault(stage, timer.passed()["wall"])
    if process.returncode or "answer" not in stages:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode} after {list(stages)}")
    return {"stages": stages, "first_token": stages["answer"], **timer.passed()}


def _call(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True)


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true", help="measure the wheel of all platforms")
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help="folder with the wheels of a release"
    )
    parser.add_argument("--packages", type=Path, help="folder with the downloaded dependencies; default: pip")
    parser.add_argument(
        "--installed", type=Path, help="environment that has the wheel, which is not installed"
    )
    options = parser.parse_args(arguments)
    pattern = "mambaserve-*-none-any.whl" if options.compile else "mambaserve-*-manylinux_*.whl"
    wheels = sorted(options.dist.glob(pattern))
    if len(wheels) != 1:
        parser.error(f"{options.dist} has {len(wheels)} files {pattern}: run `make release` first")
    with tempfile.TemporaryDirectory() as folder:
        environment, cache = options.installed or Path(folder, "environment"), Path(folder, "cache")
        cache.mkdir()
        steps = {} if options.installed else install(wheels[0], environment, options.packages)
        runs = {name: answer(environment / "bin/mambaserve", cache) for name in ("first run", "second run")}
    found = {"wheel": wheels[0].name, "compiled_by_the_engine": options.compile, "steps": steps, "runs": runs}
    write("first-token-compiled" if options.compile else "first-token", found, _lines(found))


def _lines(found: dict[str, Any]) -> list[str]:
    """Return the tables. Pure."""
    lines = [f"- wheel: `{found['wheel']}`", "", "| step | passed, s | processor, s |", "| --- | --- | --- |"]
    for name, step in {**found["steps"], **found["runs"]}.items():
        lines.append(f"| {name} | {step['wall']:.1f} | {step['processor']:.1f} |")
    for name, run in found["runs"].items():
        lines += ["", f"| {name}: begin of | after, s |", "| --- | --- |"]
        lines += [f"| {stage} | {seconds:.1f} |" for stage, seconds in run["stages"].items()]
    return lines


if __name__ == "__main__":
    main()
