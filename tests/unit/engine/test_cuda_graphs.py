"""Captures of decode steps, with a device that is not there: what is asked of torch, and in which order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mamba_server.engine.cuda_graphs import CudaGraphs
from mamba_server.engine.step_graphs import GraphMemoryShort

MIB = 1 << 20


class Device:
    """`held`: bytes that the allocator keeps without using them, and gives back when it is told."""

    def __init__(self, patch: pytest.MonkeyPatch, *, free: int, held: int) -> None:
        self.free, self.held = free, held
        self.capturing = False
        device = self

        class Graph:
            def capture_begin(self, **_: Any) -> None:
                device.capturing = True

            def capture_end(self) -> None:
                device.capturing = False

            def replay(self) -> None:
                pass

        @contextmanager
        def stream(_: object) -> Iterator[None]:
            yield

        for name, function in {
            "graph_pool_handle": lambda: (0, 1), "synchronize": lambda _: None, "empty_cache": self.give_back,
            "mem_get_info": lambda _: (self.free, 80 << 30), "CUDAGraph": Graph, "stream": stream,
            "memory_reserved": lambda _: self.held, "memory_allocated": lambda _: 0,
        }.items():  # fmt: skip
            patch.setattr(torch.cuda, name, function)
        queue: Any = type("Queue", (), {"stream": type("Stream", (), {"device": "cuda:0"})})
        self.graphs = CudaGraphs(queue, keep_free=64 * MIB)

    def give_back(self) -> None:
        self.free, self.held = self.free + self.held, 0


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
    with pytest.raises(GraphMemoryShort, match="60 MiB are free, 64 MiB are to stay free"):
        device.graphs.capture(lambda: None)


def test_a_capture_that_finds_no_memory_is_ended_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, free=100 * MIB, held=0)
    with pytest.raises(GraphMemoryShort, match="no memory"):
        device.graphs.capture(fails(torch.OutOfMemoryError("no memory")))
    assert not device.capturing
    with pytest.raises(ValueError, match="another"):
        device.graphs.capture(fails(ValueError("another")))
    assert not device.capturing
