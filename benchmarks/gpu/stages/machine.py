"""The machine's limits: what is installed; how fast the card copies, reads, multiplies, launches."""

import importlib
import subprocess
from collections.abc import Iterator

import torch
from benchmarks.gpu.case import Absent, Case, Job, Numbers
from benchmarks.gpu.device_facts import facts
from benchmarks.gpu.timing import host_seconds, seconds_of

__all__ = ["cases", "facts"]
NEEDED = (
    "torch", "triton", "numpy", "pydantic", "msgspec", "llguidance", "safetensors", "mamba_kernels",
    "mamba_planner", "mamba_server.engine.boot",
)  # fmt: skip
WANTED = ("fla", "mamba_ssm", "flashinfer", "pytest")
"""Peers and tools that may be there."""


def cases(job: Job) -> Iterator[Case]:
    """Yield the cases: imports first, then limits."""
    device = torch.device(job.device)
    yield Case("imports", _imports)
    yield Case("card", lambda: _card(device))
    yield Case("copy", lambda: _copy(device, 1 << 22 if job.small else 1 << 30))
    yield Case("read", lambda: _read(device, 1 << 22 if job.small else 1 << 30))
    yield Case("bfloat16 product", lambda: _product(device, 256 if job.small else 8192))
    yield Case("float8 product", lambda: _float8(device, 256 if job.small else 8192))
    yield Case("launches", lambda: _launches(device))


def _imports() -> Numbers:
    absent = {name: why for name in (*NEEDED, *WANTED) if (why := _why_not(name))}
    missing = [name for name in NEEDED if name in absent]
    if missing:
        raise ImportError("; ".join(f"{name}: {absent[name]}" for name in missing))
    return {"absent": absent}


def _why_not(name: str) -> str:
    try:
        importlib.import_module(name)
    except Exception as why:
        return f"{type(why).__name__}: {why}"[:200]
    return ""


def _card(device: torch.device) -> Numbers:
    if device.type != "cuda":
        raise Absent("there is no card")
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    fields = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,driver_version,temperature.gpu"
    try:
        query = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
        )
        clocks = query.stdout.strip()
    except OSError as why:
        clocks = str(why)
    return {
        "capability": f"{properties.major}.{properties.minor}",
        "processors": properties.multi_processor_count,
        "free_gib": round(free / 2**30, 1),
        "total_gib": round(total / 2**30, 1),
        fields: clocks,
    }


def _copy(device: torch.device, size: int) -> Numbers:
    # Random, since equal bytes cost less to move.
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rate = 2 * size / float(seconds_of([lambda: target.copy_(source)], device)["seconds"])
    return {"bytes_per_second": rate, "headline": {"copy_gb_per_second": round(rate / 1e9)}}


def _read(device: torch.device, size: int) -> Numbers:
    source = torch.randn(size // 4, device=device)
    return {"bytes_per_second": size / float(seconds_of([source.sum], device)["seconds"])}


def _product(device: torch.device, n: int) -> Numbers:
    left, right = (torch.randn(n, n, device=device).bfloat16() for _ in range(2))
    rate = 2 * n**3 / float(seconds_of([lambda: left @ right], device)["seconds"])
    return {"flops": rate, "headline": {"bfloat16_tflops": round(rate / 1e12, 1)}}


def _float8(device: torch.device, n: int) -> Numbers:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        raise Absent("products of float8 need compute capability 8.9")
    left = torch.randn(n, n, device=device).to(torch.float8_e4m3fn)
    right = torch.randn(n, n, device=device).to(torch.float8_e4m3fn).t()
    rows, columns = torch.ones(n, 1, device=device), torch.ones(1, n, device=device)

    def run() -> torch.Tensor:
        return torch._scaled_mm(left, right, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16)

    rate = 2 * n**3 / float(seconds_of([run], device)["seconds"])
    return {"flops": rate, "headline": {"float8_tflops": round(rate / 1e12, 1)}}


def _launches(device: torch.device) -> Numbers:
    """Measure a launch: the time of the host, and the extra time of the device for a node of a graph."""
    small = torch.zeros(16, device=device)
    node = float(seconds_of([lambda: small.add_(1)], device)["seconds"])
    on_device, on_host = host_seconds(lambda: small.add_(1), device)
    return {"graph_node_seconds": node, "launch_device_seconds": on_device, "launch_host_seconds": on_host}
