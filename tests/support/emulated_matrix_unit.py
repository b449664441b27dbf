"""The kernels for a matrix unit (AMX) on a CPU that has none: its instructions are plain C++ there."""

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path

from mamba_kernels.cpu.build import SOURCES, UNIT_FLAGS, CannotBuild, cache_root, find_compiler

HERE = Path(__file__).parent
TILES, UNIT = HERE / "emulated_tiles.h", HERE / "emulated_matrix_unit.cpp"
KERNELS = "kernels_amx_bf16.cpp"
REPLACED = {"matrix_unit.cpp", "kernels_avx2.cpp", "kernels_avx512.cpp", "kernels_avx512_bf16.cpp"}
# Optimized as the library is: compilers choose then which products and sums are one operation.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", f"-I{SOURCES}")
NEEDED = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
"""Instructions that the kernels use besides tiles."""


def emulated_library() -> Path:
    """Return the library, built if necessary. Raises CannotBuild without AVX-512 or a compiler."""
    if not set(Path("/proc/cpuinfo").read_text().split()) >= NEEDED:
        raise CannotBuild("tiles are emulated with AVX-512 alone")
    compiler = find_compiler(os.environ)
    target = cache_root(os.environ) / f"emulated-{_digest()}.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file():
            _build(compiler, target)
    return target


def _digest() -> str:
    sources = [*sorted(SOURCES.iterdir()), TILES, UNIT, Path(__file__)]
    text = [repr(UNIT_FLAGS[KERNELS]), *(path.read_text(encoding="utf-8") for path in sources)]
    return hashlib.sha256("\0".join(text).encode()).hexdigest()[:16]


def _build(compiler: str, target: Path) -> None:
    temporary = target.with_suffix(".tmp")
    units = [SOURCES / name for name in UNIT_FLAGS if name not in REPLACED and name != KERNELS]
    kernels = temporary.with_suffix(".o")
    flags = [*FLAGS, *UNIT_FLAGS[KERNELS], "-include", str(TILES)]
    subprocess.run([compiler, *flags, "-c", str(SOURCES / KERNELS), "-o", str(kernels)], check=True)
    objects = [str(kernels), str(UNIT), *map(str, units)]
    subprocess.run([compiler, *FLAGS, "-shared", *objects, "-o", str(temporary)], check=True)
    kernels.unlink()
    temporary.rename(target)
