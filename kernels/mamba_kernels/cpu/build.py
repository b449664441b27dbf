"""Compilation of the C++ sources in `src/` into one shared library.

The library is compiled once for each state of sources, flags and compiler: ahead of time by
`python -m mamba_kernels.cpu.build`, otherwise at the first start of an engine. It is kept in the user's
cache under a name that is a hash of its inputs. `--ship` builds it into the package, for an image or a wheel:
a shipped library of the same sources needs no compiler, and no C++ runtime but its own.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
SHIPPED = Path(__file__).parent / "shipped"
COMPILERS = ("g++", "clang++", "c++")
_WIDE = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
UNIT_FLAGS: dict[str, tuple[str, ...]] = {
    "checked_bytes.cpp": (),
    "cold_memory.cpp": (),
    "decode_step.cpp": (),
    "worker_pool.cpp": (),
    "library.cpp": (),
    "route.cpp": (),
    "matrix_unit.cpp": (),
    "kernels_avx2.cpp": _AVX2,
    "kernels_avx512.cpp": (*_AVX2, *_WIDE),
    "kernels_avx512_bf16.cpp": (*_AVX2, *_WIDE, "-mavx512bf16", "-mavx512vnni"),
    "kernels_amx_bf16.cpp": (*_AVX2, *_WIDE, "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
}
"""Instruction sets by source file. Code that runs before the choice of one is compiled for any x86-64."""
# Never -ffast-math: linking with it changes the rounding of the process that loads the library.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread")
# What a library for other machines needs: its own C++ runtime, of which it keeps no more than it calls (the
# rest needs a newer glibc), and no names of folders of this machine.
PORTABLE = (
    "-static-libstdc++", "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL", "-s",
    f"-ffile-prefix-map={SOURCES}=src",
)  # fmt: skip
SANITIZED = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


class CannotBuild(Exception):
    """There is no library and it cannot be built; the message says why."""


def ensure_built(environment: Mapping[str, str] = os.environ, *, sanitize: bool = False) -> Path:
    """Return the path of the library; build it first if it does not exist. Raises CannotBuild.

    `sanitize` says whether to build with checks of addresses and undefined behaviour, for tests.

    Several processes may call this at once: one builds, the others wait. A library appears complete or not at
    all.
    """
    flags = (*FLAGS, *SANITIZED) if sanitize else FLAGS
    target = _target(environment, flags)
    try:
        if target.is_file():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_suffix(".lock")):
            if not target.is_file():
                _build(find_compiler(environment), flags, target)
    except OSError as error:
        raise _no_place(error) from error
    return target


def is_built(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the library exists; building it takes a minute. Raises CannotBuild."""
    return _target(environment, FLAGS).is_file()


def _target(environment: Mapping[str, str], flags: tuple[str, ...]) -> Path:
    """Return where the library is or would be. Raises CannotBuild where it cannot exist."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        raise CannotBuild(f"the C++ kernels do not exist for {platform.machine()} on {sys.platform}")
    if flags == FLAGS and (shipped := _shipped_path()).is_file():
        return shipped
    compiler = find_compiler(environment)
    digest = _digest(flags, _run([compiler, "--version"]))
    try:
        return cache_root(environment) / f"{digest}.so"
    except RuntimeError as error:  # this user has no home
        raise _no_place(error) from error


def _no_place(why: Exception) -> CannotBuild:
    return CannotBuild(f"the C++ kernels cannot be stored ({why}); set XDG_CACHE_HOME")


def cache_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of libraries: `$XDG_CACHE_HOME/mambaserve/kernels`."""
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "mambaserve" / "kernels"


def find_compiler(environment: Mapping[str, str]) -> str:
    """Find `$CXX`, or the first of the usual compilers, on the path. Raises CannotBuild."""
    override = environment.get("CXX")
    for name in (override,) if override else COMPILERS:
        if path := shutil.which(name, path=environment.get("PATH")):
            return path
    raise CannotBuild(f"there is no C++ compiler ({override or ', '.join(COMPILERS)}); install g++")


def ship(environment: Mapping[str, str] = os.environ) -> Path:
    """Build the library into the package and return its path. Raises CannotBuild."""
    target = _shipped_path()
    target.parent.mkdir(exist_ok=True)
    _build(find_compiler(environment), (*FLAGS, *PORTABLE), target)
    return target


def _shipped_path() -> Path:
    return SHIPPED / f"{_digest(FLAGS)}.so"


def _digest(flags: tuple[str, ...], compiler: str = "") -> str:
    """Hash everything that the library depends on; `compiler`: the compiler's output for `--version`."""
    parts = [compiler, repr(flags), repr(UNIT_FLAGS)]
    parts += [f"{path.name}\n{path.read_text(encoding='utf-8')}" for path in sorted(SOURCES.iterdir())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    # Remove what an earlier build left behind when it was killed.
    for leftover in target.parent.glob(f"{target.stem}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.stem}-", dir=target.parent) as scratch:
        units = {name: Path(scratch, name).with_suffix(".o") for name in UNIT_FLAGS}
        with _process_groups() as running:
            for name, unit in units.items():
                command = [compiler, *flags, *UNIT_FLAGS[name], "-c", str(SOURCES / name), "-o", str(unit)]
                # A group of its own, since a compiler starts further programs.
                running.append(
                    subprocess.Popen(
                        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
                    )
                )
            outputs = [process.communicate()[0] for process in running]
        for process, text in zip(running, outputs, strict=True):
            if process.returncode:
                raise CannotBuild(f"{compiler} failed: {text.strip()[-400:]}")
        library = Path(scratch, "library.so")
        _run([compiler, *flags, "-shared", *map(str, units.values()), "-o", str(library)])
        library.rename(target)


@contextmanager
def _process_groups() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield a list to which processes are added, each of them the leader of a process group.

    An exception in the block ends the groups whose leaders still run. So does SIGTERM, which raises
    SystemExit in the block if this is the main thread and nothing else handles the signal.
    """
    running: list[subprocess.Popen[str]] = []
    handles_end = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if handles_end:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate()
        if handles_end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(command: list[str]) -> str:
    result = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise CannotBuild(f"{command[0]} failed: {result.stdout.strip()[-400:]}")
    return result.stdout


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Build the library, and print its path or why it cannot be built.

    Return the exit code: 1 if the library cannot be built and `--ship` asks for it, otherwise 0.
    """
    into_package = sys.argv[1:] == ["--ship"]
    try:
        sys.stdout.write(f"{ship() if into_package else ensure_built()}\n")
    except CannotBuild as why:
        sys.stdout.write(f"no C++ kernels: {why}; the engine computes with torch\n")
        return int(into_package)
    return 0


if __name__ == "__main__":
    sys.exit(main())
