"""Compiles the launches of `served_launches` for GPUs that are not here, in parallel processes.

`python compile_matrix.py` is what `compiled_matrix` starts, so that it may run with another Triton than this
process has.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mamba_kernels.triton_support import KernelCall

SHARED = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Bytes of shared memory that a program may have, by compute capability: A100; L4 and L40S; H100 and H200;
B200; RTX PRO 6000."""
PLAIN = (80, 90, 120)
"""Capabilities that launches without products are compiled for."""
FOLDERS = [str(Path(__file__).parents[2] / each) for each in ("libs", "operator", "server", "cli", "kernels")]
FOLDERS += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "models")]
USUAL = "usual"
"""The word on the command line that leaves all launches out but those of the usual run."""
OF_EXPERTS = ("expand_kernel", "project_kernel")
EXTENTS = ("WIDTH", "FEATURES", "TOP_K")
"""Constants of these kernels that are ends of loops."""
NICENESS = 10
"""Other tests are waited for."""


@dataclass(frozen=True)
class Compiled:
    """Result of compiling one launch."""

    launch: str
    model: str
    capability: int
    registers: int
    stack: int
    """Bytes of local memory of a thread: spilled registers."""
    shared: int
    tensor_cores: bool
    products: bool
    """Whether the kernel multiplies tiles."""
    wide: bool
    """Whether it multiplies tiles of float32."""
    seconds: float
    triton: str


def compiled_matrix(
    capabilities: list[int], other_triton: Path | None = None, *, whole: bool = True
) -> Iterator[Compiled]:
    """Compile for these GPUs, with this process's Triton or with the one in that folder.

    Unless `whole`, only the launches that `usual` keeps. Raises CalledProcessError.
    """
    first = [] if other_triton is None else [str(other_triton)]
    ran = subprocess.run(
        [sys.executable, __file__, *map(str, capabilities), *([] if whole else [USUAL])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*first, *FOLDERS]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.nice(NICENESS) and None,
    )
    for line in ran.stdout.splitlines():
        yield Compiled(**json.loads(line))


@cache
def _launches(capability: int):  # type: ignore[no-untyped-def]
    from served_launches import served_launches

    return served_launches(capability)


def multiplies(call: "KernelCall") -> bool:
    """Return whether the kernel multiplies tiles: it has a parameter for the type of their elements."""
    return "KIND" in call.constants or "DOT" in call.constants


def wide(call: "KernelCall") -> bool:
    """Return whether the kernel multiplies tiles of float32."""
    return str(call.constants.get("KIND", call.constants.get("DOT"))) == "fp32"


def _compiled(index: int, capability: int) -> Compiled:
    import triton

    from compiled_kernel import compiled

    began = time.monotonic()
    served = _launches(capability)[index]
    call = served.call
    result = compiled(call, capability)
    constants = {name: str(value) for name, value in call.constants.items()}
    return Compiled(
        launch=f"{call.kernel.__name__} {constants} {call.launch}",
        model=served.model,
        capability=capability,
        registers=result.registers,
        stack=result.stack,
        shared=result.shared,
        tensor_cores=result.tensor_cores,
        products=multiplies(call),
        wide=wide(call),
        seconds=round(time.monotonic() - began, 2),
        triton=triton.__version__,
    )


def usual(calls: "list[KernelCall]") -> set[int]:
    """Return which launches the usual run compiles.

    Kept are launches that multiply tiles of 16 bits, which may run out of registers and shared memory, once
    for each form of experts' blocks; and of each other kernel the first and the last launch.
    """
    tiles: dict[str, int] = {}
    for index, call in enumerate(calls):
        if multiplies(call) and not wide(call):
            experts = call.kernel.__name__ in OF_EXPERTS
            form = {name: value for name, value in call.constants.items() if name not in EXTENTS}
            tiles.setdefault(f"{call.kernel.__name__} {form}" if experts else str(index), index)
    kept = set(tiles.values())
    others = [(index, call) for index, call in enumerate(calls) if not multiplies(call)]
    for ordered in (others, others[::-1]):
        kept.update({call.kernel.__name__: index for index, call in ordered}.values())
    return kept


def main(capabilities: list[int], *, whole: bool) -> None:
    """Print a line of JSON for each launch and capability."""
    jobs = [
        (index, capability)
        for capability in capabilities
        for launches in [_launches(capability)]
        for index in (range(len(launches)) if whole else sorted(usual([each.call for each in launches])))
        if multiplies(launches[index].call) or capability in PLAIN
    ]
    # Forked, with the imports and launches of this process: to have them takes as long as dozens of launches.
    import compiled_kernel  # noqa: F401

    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as pool:
        for result in pool.map(_compiled, *zip(*jobs, strict=True), chunksize=4):
            print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:] if each != USUAL]
    main(numbers or list(SHARED), whole=USUAL not in sys.argv)
