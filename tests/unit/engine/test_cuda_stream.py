"""The CUDA stream: what it asks of torch and in which order, on a scripted double of `torch.cuda`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from engine_trial import EngineTrial, TrialSetup
from mamba_server.engine.execution.cuda_stream import CudaStream


class Device:
    """Writes down every call; an event is passed once somebody has synchronized with it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.inside = False
        self.lost = False

    def check(self) -> None:
        """Raise what every call raises once the device is lost."""
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def stream(self, device: torch.device) -> Stream:
        self.calls.append(f"stream on {device}")
        return Stream(self)

    def event(self) -> Event:
        return Event(self, sum(call.startswith("record") for call in self.calls) + 1)

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        assert stream.device is self
        self.inside = True
        yield
        self.inside = False

    def work(self, name: str) -> str:
        self.calls.append(f"issue {name}" if self.inside else f"issue {name} on the default stream")
        return name


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device

    def synchronize(self) -> None:
        self.device.check()
        self.device.calls.append("synchronize the stream")

    def wait_stream(self, other: str) -> None:
        self.device.check()
        self.device.calls.append(f"wait for {other}")


class Event:
    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number

    def record(self, stream: Stream) -> None:
        assert stream.device is self.device
        self.device.check()
        self.device.calls.append(f"record {self.number}")

    def synchronize(self) -> None:
        self.device.check()
        self.device.calls.append(f"synchronize {self.number}")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.cuda, "Stream", made.stream)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "stream", made.use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "what was made before")
    return made


def test_work_is_issued_on_the_stream_at_once_and_its_event_behind_it(device: Device) -> None:
    stream = CudaStream(torch.device("cuda"))
    for name in "ab":
        stream.launch(lambda name=name: device.work(name))
    before = ["stream on cuda", "wait for what was made before"]
    assert device.calls == [*before, "issue a", "record 1", "issue b", "record 2"]


def test_a_result_is_read_only_behind_its_own_event(device: Device) -> None:
    stream = CudaStream(torch.device("cuda"))
    first, second = (stream.launch(lambda name=name: device.work(name)) for name in "ab")
    assert stream.wait(first) == "a"
    assert device.calls[-1] == "synchronize 1"
    assert stream.wait(second) == "b"
    assert device.calls[-1] == "synchronize 2"


def test_what_fails_while_it_is_issued_is_raised_where_it_is_waited_for(device: Device) -> None:
    stream = CudaStream(torch.device("cuda"))

    def broken() -> None:
        raise RuntimeError("out of memory")

    ticket = stream.launch(broken)
    good = stream.launch(lambda: device.work("good"))
    with pytest.raises(RuntimeError, match="out of memory"):
        stream.wait(ticket)
    assert stream.wait(good) == "good"


@pytest.mark.parametrize("steps", [0, 1])
def test_what_is_launched_on_a_lost_device_fails_where_it_is_waited_for(device: Device, steps: int) -> None:
    stream = CudaStream(torch.device("cuda"))
    for _ in range(steps):
        stream.wait(stream.launch(lambda: device.work("a")))
    device.lost = True
    ticket = stream.launch(lambda: device.work("b"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        stream.wait(ticket)
    stream.close()


def test_requests_on_a_device_that_is_lost_between_two_steps_get_their_error(device: Device) -> None:
    engine = EngineTrial(TrialSetup(slabs=40), random.Random(0))
    engine.core._stream = CudaStream(torch.device("cuda"))
    for _ in range(2):
        engine.add([5, 6, 7], 20)
    for _ in range(3):
        engine.step()
    assert not engine.ended
    device.lost = True
    for _ in range(3):
        engine.step()
    assert engine.ended == {("r0", 0): "error", ("r1", 0): "error"}
    assert "illegal memory access" in engine.core.device_error


def test_closing_waits_for_all_that_was_issued(device: Device) -> None:
    stream = CudaStream(torch.device("cuda"))
    stream.launch(lambda: device.work("a"))
    stream.close()
    assert device.calls[-1] == "synchronize the stream"
