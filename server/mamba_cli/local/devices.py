"""Which device this machine offers: the first NVIDIA GPU, or its main memory. Asked once, without torch."""

import subprocess

from mamba_cli.errors import RunFailed
from mamba_planner import Device
from mamba_server.host_memory import available_bytes

_QUERY = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]


def gpu_memory(command: list[str] | None = None, timeout: float = 10.0) -> int | None:
    """Bytes of the smallest GPU, as its driver says; None without a GPU or a driver."""
    try:
        done = subprocess.run(command or _QUERY, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    sizes = [int(line) for line in done.stdout.split() if line.isdigit()]
    return min(sizes) << 20 if done.returncode == 0 and sizes else None


def cpu_device() -> Device:
    """The machine's free main memory. Raises `RunFailed` where it cannot be read."""
    try:
        return Device("cpu", available_bytes(), told=False)
    except OSError as error:
        raise RunFailed(
            f"cannot read the free memory of this machine: {error}: give --device-memory"
        ) from error
