"""Checks of the machine: system, processor, memory, files, ports and environment variables."""

import os
import platform
import resource
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from mamba_cli.doctor.finding import Finding, broken, ok, warning
from mamba_cli.errors import CliError
from mamba_settings.byte_size import binary_size

SMALLEST_MEMORY = 2 << 30
"""Bytes of main memory that an engine with the smallest model takes: torch alone needs about one GiB."""
FEW_FILES = 1024
"""Limit of open files below which a gateway refuses clients that one machine can bring."""
SMALL_SCRATCH = 256 << 20
"""Bytes of the temporary directory that logs of engines and gateways may fill."""
_CPUINFO = Path("/proc/cpuinfo")
_WIDEST = (
    ("amx_bf16", "AMX"),
    ("avx512_bf16", "AVX-512 with bfloat16"),
    ("avx512f", "AVX-512"),
    ("avx2", "AVX2"),
)
"""Flags of /proc/cpuinfo with the name of the instructions, the widest first."""


def system() -> Finding:
    """Check that the system is one for which the project is built."""
    text = f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        return broken(
            "system", text, "serve on Linux on x86-64; plan, chat, status and bench work on other systems"
        )
    return ok("system", text)


def processor(cpuinfo: Path = _CPUINFO) -> Finding:
    """Check the instructions of the processor and the cores that this process may use."""
    from mamba_server.host_cores import usable_cores

    cores = usable_cores()
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return warning("processor", f"{cpuinfo}: {error.strerror}", "mount /proc to see its instructions")
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()[2:]}
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    widest = next((words for flag, words in _WIDEST if flag in flags), "")
    text = f"{name or 'unknown'}, {cores} usable core{'s' * (cores != 1)}, {widest or 'no AVX2'}"
    if not widest:
        return warning(
            "processor",
            text,
            "the C++ kernels need AVX2: on a virtual machine choose a CPU type that passes it on; until then "
            "torch computes, several times slower",
        )
    return ok("processor", text)


def memory() -> Finding:
    """Check that an engine with a small model has room in main memory."""
    from mamba_server.host_memory import available_bytes

    try:
        free = available_bytes()
    except OSError as error:
        return warning(
            "memory", f"its size cannot be read ({error})", "give --device-memory to plan and serve"
        )
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < free:
        free, cause = limit, " (limit of the address space)"
        cure = "raise the limit: ulimit -v unlimited"
    else:
        cause, cure = "", "end other programs, or raise the memory limit of this container"
    text = f"{binary_size(free)} usable{cause}"
    return broken("memory", text, cure) if free < SMALLEST_MEMORY else ok("memory", text)


def open_files() -> Finding:
    """Check that a gateway may hold the connections of many clients."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        return warning(
            "open files",
            f"a process may open {hard:,}",
            f"raise the hard limit to {FEW_FILES:,} or more: each client of a gateway takes one or two",
        )
    return ok("open files", "no limit" if hard == resource.RLIM_INFINITY else f"a process may open {hard:,}")


def temporary_directory() -> Finding:
    """Check that logs and records can be written to the temporary directory."""
    try:
        place = tempfile.gettempdir()
        free = shutil.disk_usage(place).free
    except OSError as error:
        return broken(
            "temporary files", f"no directory can be written ({error.strerror or error})",
            "set TMPDIR to a directory that this user can write",
        )  # fmt: skip
    choice = os.environ.get("TMPDIR")
    if choice and Path(choice).resolve() != Path(place).resolve():
        return warning(
            "temporary files",
            f"TMPDIR={choice} cannot be written, so {place} is used",
            "correct TMPDIR, or unset it",
        )
    if free < SMALL_SCRATCH:
        return warning(
            "temporary files", f"{place} has {binary_size(free)} free",
            "free some space there, or set TMPDIR: the logs of `up` go there",
        )  # fmt: skip
    return ok("temporary files", f"{place}, {binary_size(free)} free")


def port(host: str, number: int) -> Finding:
    """Check that the port `number` of `host` is free, or used by `mambaserve up`."""
    from mamba_cli.local.ports import front_port
    from mamba_cli.local.running import running

    try:
        front_port(host, number)
    except CliError as error:
        ours = next((each for each in running() if each.port == number), None)
        if ours is not None:
            return ok("port", f"{number} of {host} is used by `mambaserve up`, which serves {ours.name}")
        what, _, cure = str(error).partition(": ")
        return warning("port", what, cure)
    return ok("port", f"{number} of {host} is free")


def environment(variables: Mapping[str, str], names: Collection[str]) -> Finding:
    """Check that each environment variable of the project is one that a command reads.

    Args:
        variables: the environment of this process.
        names: names of all variables that some command reads.
    """
    import difflib

    present = sorted(name for name in variables if name.startswith("MAMBASERVE_"))
    unknown = [name for name in present if name not in names]
    if unknown:
        close = difflib.get_close_matches(unknown[0], sorted(names), 1, 0.75)
        cure = f"write {close[0]}" if close else "unset it; `mambaserve config COMMAND` lists the names"
        return warning("environment", f"no command reads {', '.join(unknown)}", cure)
    return ok("environment", f"{', '.join(present)}" if present else "no MAMBASERVE_ variable is set")
