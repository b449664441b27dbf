"""Card and versions: what makes a number comparable, in every file."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from benchmarks.gpu.case import Job
from benchmarks.machine import commit

PACKAGES = ("torch", "triton", "numpy", "transformers", "msgspec", "pydantic", "llguidance", "safetensors")


def facts(job: Job) -> dict[str, Any]:
    """Return what the device and the packages are. Opens the device."""
    return {
        "card": card(job.device),
        "versions": {"python": platform.python_version(), "cuda": torch.version.cuda, **_versions()},
        "commit": commit(),
    }


def card(device: str) -> str:
    """Return the name of the device that computes."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"none: Triton's interpreter on {platform.machine()}"


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not there"
    return versions
