"""`python -m benchmarks.gpu --out DIR`: everything that a GPU can tell, whatever breaks on the way."""

import argparse
import math
import os
import sys
from pathlib import Path

from benchmarks.gpu.stage_list import SECONDS, STAGES, Stage
from benchmarks.gpu.supervisor import Options, Supervisor


def main(arguments: list[str] | None = None) -> int:
    """Run the stages. Returns the number of stages that are not done, 2 for options that cannot be."""
    parsed = _options(arguments)
    stages = [stage for stage in STAGES if not parsed.only or stage.name in parsed.only]
    options = Options(
        parsed.out,
        parsed.device,
        parsed.small,
        parsed.seconds,
        patience=10.0 if parsed.device == "cpu" else 1.0,
    )
    os.environ |= environment(parsed.device)
    return Supervisor(options, stages, _command).run()


def _command(stage: Stage) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu.child", stage.name]


def environment(device: str) -> dict[str, str]:
    """Return what the children need: the packages of this checkout, and Triton's interpreter on a CPU."""
    here = Path(__file__).parents[2]
    paths = [here, *(here / name for name in ("libs", "operator", "server", "cli", "kernels"))]
    before = os.environ.get("PYTHONPATH")
    variables = {"PYTHONPATH": os.pathsep.join([*map(str, paths), *([before] if before else [])])}
    if device == "cpu":
        variables |= {"TRITON_INTERPRET": "1", "MAMBASERVE_KERNELS": "triton", "CUDA_VISIBLE_DEVICES": ""}
    return variables


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results, at most eight files")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="for all stages (default: %(default)g)"
    )
    parser.add_argument(
        "--only", action="append", choices=[stage.name for stage in STAGES], help="may be repeated"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small models, as Triton's interpreter needs")
    options = parser.parse_args(arguments)
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out} is a file: name a folder")
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds {options.seconds:g}: give a number of seconds above 0")
    if options.device == "cpu" and not options.small:
        parser.error(
            "--device cpu goes with --small: Triton's interpreter computes, for tests of this command"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
