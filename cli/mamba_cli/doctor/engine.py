"""Checks of the software and devices of an engine: packages, torch, GPU, Triton, compiler and C++ kernels.

torch is imported, and the kernels are loaded, in a process of their own: an import of torch takes seconds,
and a library for another machine can end the process that loads it.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from mamba_cli.doctor.finding import Finding, broken, note, ok, warning
from mamba_cli.doctor.folders import can_be_written, nearest_existing
from mamba_cli.extras import SERVER, install

IMPORT_TIMEOUT = 120.0
"""Seconds for an import of torch; a cold network disk can need one minute."""
OLDEST_TORCH = (2, 9)
"""First two numbers of the oldest version of torch on which the engine runs."""
_PROBE = """
import json, sys
import torch
facts = {"version": torch.__version__, "cuda": torch.version.cuda or "", "gpus": [], "trouble": ""}
try:
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            facts["gpus"].append([gpu.name, f"{gpu.major}.{gpu.minor}", gpu.total_memory])
        torch.zeros(1, device="cuda").add_(1).item()
except Exception as error:
    facts["trouble"] = " ".join(str(error).split())[:200]
print(json.dumps(facts))
"""
_KERNELS = """
import os
from mamba_kernels.cpu.library import open_library
library = open_library(os.environ)
print(library.name if library else "")
"""


@dataclass(frozen=True, slots=True)
class Torch:
    """Facts about torch, reported by a process that imported it."""

    version: str
    cuda: str
    """Version of CUDA that this torch is built for; empty = built for CPUs alone."""
    gpus: list[tuple[str, str, int]]
    """Name, compute capability and memory in bytes of each GPU."""
    trouble: str
    """The error of the first computation on a GPU; empty = none."""


def packages() -> Finding:
    """Check that the packages of an engine and of its API server are installed."""

    missing = [name for name in SERVER if find_spec(name) is None]
    if missing:
        return broken(
            "packages",
            f"an engine needs {', '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed",
            f"{install('server')}; plan, chat, status and bench work without them",
        )
    return ok("packages", "all that `mambaserve serve` and `up` need")


def torch_facts() -> Torch | str:
    """Import torch in another process; return its facts, or the error in one line.

    The error is empty if torch is not installed.
    """
    if find_spec("torch") is None:
        return ""
    answer = _child(_PROBE)
    if isinstance(answer, str):
        return answer
    try:
        facts = json.loads(answer.stdout.splitlines()[-1])
        return Torch(facts["version"], facts["cuda"], [tuple(gpu) for gpu in facts["gpus"]], facts["trouble"])
    except (ValueError, IndexError, KeyError, TypeError):
        return f"torch printed {answer.stdout[:100]!r} where it should describe itself"


def torch(facts: Torch | str) -> Finding:
    """Report whether torch can be imported and is new enough."""
    if isinstance(facts, str):
        return broken(
            "torch", facts or "not installed",
            "install it again: pip install --force-reinstall torch, or for a machine without a GPU from "
            "https://download.pytorch.org/whl/cpu" if facts else install("server"),
        )  # fmt: skip
    built = f"built for CUDA {facts.cuda}" if facts.cuda else "built for CPUs"
    numbers = tuple(int(number) for number in re.findall(r"\d+", facts.version)[:2])
    if numbers < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return broken(
            "torch", f"{facts.version} is older than {oldest}", f"pip install --upgrade 'torch>={oldest}'"
        )
    return ok("torch", f"{facts.version}, {built}")


def gpu(facts: Torch | str) -> Finding:
    """Report the GPUs that torch can use, and why it cannot use one that the machine has."""
    if isinstance(facts, str):
        return note("GPU", "not checked, because torch cannot be imported")
    present = os.path.exists("/dev/nvidia0") or os.path.exists("/proc/driver/nvidia/version")
    if facts.trouble:
        return broken(
            "GPU", facts.trouble,
            "compare the driver (nvidia-smi) with the CUDA version of torch, and end other users of the GPU",
        )  # fmt: skip
    if facts.gpus:
        from mamba_settings.byte_size import binary_size

        return ok("GPU", "; ".join(f"{name}, {binary_size(size)}, SM {sm}" for name, sm, size in facts.gpus))
    if present:
        cure = (
            "install a driver that supports this CUDA version, or a torch for the driver"
            if facts.cuda
            else "install torch for CUDA: pip install --force-reinstall torch"
        )
        return broken("GPU", "the machine has one, and torch cannot use it", cure)
    return note("GPU", "none: models run on the CPU")


def compiler() -> Finding:
    """Check that the C++ kernels can be compiled, if no library of them is shipped or in the cache."""
    from mamba_kernels.cpu.build import CannotBuild, find_compiler, is_built

    try:
        if is_built():
            return ok("compiler", "not needed: the C++ kernels are compiled")
        return ok("compiler", find_compiler(os.environ))
    except (CannotBuild, OSError) as error:
        return warning(
            "compiler", str(error).rpartition("; ")[0] or str(error),
            "install g++, or set CXX: without the C++ kernels torch computes, several times slower",
        )  # fmt: skip


def kernels(facts: Torch | str) -> Finding:
    """Check the kernels that an engine would use.

    C++ kernels that are compiled already are loaded in another process; none are compiled here.
    """
    from mamba_kernels.cpu.library import has_to_be_built
    from mamba_kernels.kernel_choice import KernelChoice, UnknownKernels

    try:
        choice = KernelChoice.of(os.environ).kernels
    except UnknownKernels as error:
        what, _, cure = str(error).partition(": ")
        return broken("kernels", f"{what} names no kernels", cure)
    if not isinstance(facts, str) and facts.gpus and choice == "auto":
        return ok("kernels", "Triton compiles them for the GPU while an engine starts")
    if has_to_be_built():
        from mamba_kernels.cpu.build import cache_root

        folder = cache_root(os.environ)
        if not can_be_written(nearest_existing(folder)):
            return warning(
                "kernels", f"the compiled C++ kernels cannot be kept in {folder}",
                "set XDG_CACHE_HOME to a directory that this user can write: until then torch computes, "
                "several times slower",
            )  # fmt: skip
        return note("kernels", "the first engine compiles the C++ kernels, which takes a minute")
    if isinstance(facts, str):
        return note("kernels", "not checked, because torch cannot be imported")
    answer = _child(_KERNELS)
    if isinstance(answer, str):
        return broken(
            "kernels", answer, "set MAMBASERVE_KERNELS to auto or torch, or empty the cache of kernels"
        )
    if name := answer.stdout.strip():
        return ok("kernels", f"C++ with {name} instructions")
    return warning("kernels", "torch computes", "unset MAMBASERVE_KERNELS, and see the compiler above")


def _child(code: str) -> "subprocess.CompletedProcess[str] | str":
    """Run Python code in another process; return its output, or its error in one line.

    The process may take `IMPORT_TIMEOUT` seconds.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {IMPORT_TIMEOUT:.0f} s"
    if done.returncode == 0:
        return done
    if done.returncode < 0:
        return f"the process ended by signal {-done.returncode}"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else f"the process ended with exit code {done.returncode}"
