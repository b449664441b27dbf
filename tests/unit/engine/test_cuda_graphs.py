"""Captures of decode steps, with a device that is not there: what is asked of torch, and in which order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mamba_server.engine.execution.cuda_graphs import CudaGraphs
from mamba_server.engine.execution.step_graphs import GraphMemoryShort

MIB = 1 << 20


class Device:
    """`held`: bytes that the allocator keeps without using them, and gives back when it is told."""

    def __init__(self, patch: pytest.MonkeyPatch, *, free: int, held: int) -> None:
        self.free, self.held = free, held
        self.capturing = False
        self.pools = 0
        self.recording: set[tuple[int, int]] = set()
        """Pools that the allocator takes for a capture that has not ended."""
        self.breaks = ""
        """Error that breaks the capture: its end is an error then, too."""
        device = self

        class Graph:
            def capture_begin(self, pool: tuple[int, int], **_: Any) -> None:
                if pool in device.recording:
                    raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
                device.recording.add(pool)
                self.pool = pool
                device.capturing = True

            def capture_end(self) -> None:
                if not device.capturing:
                    raise RuntimeError("CUDA error: invalid argument")
                device.capturing = False
                if device.breaks:
                    raise RuntimeError(device.breaks)
                device.recording.remove(self.pool)

            def replay(self) -> None:
                pass

        @contextmanager
        def stream(_: object) -> Iterator[None]:
            yield

        for name, function in {
            "graph_pool_handle": self.pool, "synchronize": lambda _: None, "empty_cache": self.give_back,
            "mem_get_info": lambda _: (self.free, 80 << 30), "CUDAGraph": Graph, "stream": stream,
            "memory_reserved": lambda _: self.held, "memory_allocated": lambda _: 0,
        }.items():  # fmt: skip
            patch.setattr(torch.cuda, name, function)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_allocation, raising=False)
        patch.setattr(torch._C, "_cuda_releasePool", lambda *_: None, raising=False)
        queue: Any = type("Queue", (), {"stream": type("Stream", (), {"device": torch.device("cuda:0")})})
        self.graphs = CudaGraphs(queue, keep_free=64 * MIB)

    def pool(self) -> tuple[int, int]:
        self.pools += 1
        return 0, self.pools

    def give_back(self) -> None:
        # What torch asserts in the words of a bug report.
        if self.recording:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.free, self.held = self.free + self.held, 0

    def end_allocation(self, device: int, pool: tuple[int, int]) -> None:
        if pool not in self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording.remove(pool)


def fails(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_memory_that_earlier_steps_left_behind_is_given_back_before_a_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(monkeypatch, free=10 * MIB, held=60 * MIB)
    repeat = device.graphs.capture(lambda: "result")
    assert repeat() == "result"
    assert device.held == 0


def test_a_capture_is_not_begun_where_too_little_would_stay_free(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, free=10 * MIB, held=50 * MIB)
    with pytest.raises(GraphMemoryShort, match=r"60 MiB.*64 MiB"):
        device.graphs.capture(lambda: None)


def test_a_capture_that_finds_no_memory_is_ended_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, free=100 * MIB, held=0)
    with pytest.raises(GraphMemoryShort, match="no memory"):
        device.graphs.capture(fails(torch.OutOfMemoryError("no memory")))
    assert not device.capturing
    with pytest.raises(ValueError, match="another"):
        device.graphs.capture(fails(ValueError("another")))
    assert not device.capturing


BROKEN = "CUDA error: operation failed due to a previous error during capture"


def test_a_capture_that_broke_is_told_by_what_broke_it_and_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(monkeypatch, free=100 * MIB, held=0)
    device.breaks = BROKEN
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        device.graphs.capture(
            fails(RuntimeError("CUDA error: operation not permitted when stream is capturing"))
        )
    assert not device.capturing
    device.breaks = ""
    assert device.graphs.capture(lambda: "result")() == "result"


def test_work_whose_capture_cannot_be_ended_is_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, free=100 * MIB, held=0)
    device.breaks = "CUDA error: capturing stream has unjoined work"
    with pytest.raises(RuntimeError, match="unjoined"):
        device.graphs.capture(lambda: "result")
    device.breaks = "CUDA error: out of memory"
    with pytest.raises(GraphMemoryShort, match="out of memory"):
        device.graphs.capture(lambda: "result")
    device.breaks = ""
    assert device.graphs.capture(lambda: "result")() == "result"
