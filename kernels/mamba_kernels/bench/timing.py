"""Timing of device work: the median of many runs, each with cold caches on a GPU."""

import statistics
import time
from collections.abc import Callable

import torch

MEASUREMENT_SECONDS = 0.3
"""Approximate duration of one measurement in seconds."""


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of one run of `work`, which must have run before."""
    if device.type == "cuda":
        from triton.testing import do_bench

        milliseconds: float = do_bench(
            work, warmup=50, rep=int(MEASUREMENT_SECONDS * 1000), return_mode="median"
        )
        return milliseconds / 1000
    times: list[float] = []
    ends = time.perf_counter() + MEASUREMENT_SECONDS
    while len(times) < 3 or time.perf_counter() < ends:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
