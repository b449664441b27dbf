"""Duration of device work as in a captured step: a graph of many calls, repeated."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

LEAST_CALLS = 20
"""Calls in one graph, so that its launch is little beside them."""
REPEATS = 20
WARM_UPS = 3


def seconds_of(calls: Sequence[Callable[[], object]], device: torch.device) -> dict[str, float | bool]:
    """Return median seconds of one call, and whether a graph was timed.

    `calls` take their turns, each with its own memory, so that nothing stays in a cache that would not.
    """
    turns = [calls[number % len(calls)] for number in range(max(LEAST_CALLS, len(calls)))]
    if device.type != "cuda":
        return {"seconds": _clock(calls[0]), "graph": False}
    run, graph = _graph(turns)
    for _ in range(WARM_UPS):
        run()
    torch.cuda.synchronize(device)
    times = [_events(run) for _ in range(REPEATS)]
    return {"seconds": statistics.median(times) / len(turns), "graph": graph}


def _graph(turns: Sequence[Callable[[], object]]) -> tuple[Callable[[], object], bool]:
    """Return what repeats the calls, and whether that is a graph; work that cannot be captured is issued."""

    def issue() -> None:
        for call in turns:
            call()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        issue()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            issue()
    except RuntimeError:
        torch.cuda.synchronize()
        return issue, False
    return graph.replay, True


def _events(run: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def host_seconds(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return (seconds on the device, seconds of the host to issue) of `work`, medians, one run at a time."""
    if device.type != "cuda":
        seconds = _clock(work)
        return seconds, seconds
    on_device, on_host = [], []
    for number in range(WARM_UPS + REPEATS):
        torch.cuda.synchronize(device)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began = time.perf_counter()
        begin.record()
        work()
        end.record()
        issued = time.perf_counter() - began
        end.synchronize()
        if number >= WARM_UPS:
            on_device.append(float(begin.elapsed_time(end)) / 1e3)
            on_host.append(issued)
    return statistics.median(on_device), statistics.median(on_host)


def _clock(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
