"""Which kernels a step launches and how long each takes, by torch's profiler."""

from collections.abc import Callable

import torch
from benchmarks.gpu.case import Numbers
from torch.profiler import ProfilerActivity, profile

MOST = 40


def top_kernels(work: Callable[[], object]) -> Numbers:
    """Profile one run of warm `work`: its `MOST` longest kernels, and all launches."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        work()
        torch.cuda.synchronize()
    on_device = [event for event in profiled.key_averages() if str(event.device_type).endswith("CUDA")]
    on_device.sort(key=lambda event: -event.self_device_time_total)
    return {
        "launches": sum(event.count for event in on_device),
        "microseconds": sum(event.self_device_time_total for event in on_device),
        "kernels": [
            {
                "name": event.key[:100],
                "count": event.count,
                "microseconds": round(event.self_device_time_total, 1),
            }
            for event in on_device[:MOST]
        ],
    }
