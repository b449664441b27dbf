"""Open and closed loops."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mamba_cli.bench import load_loops
from mamba_cli.bench.load_loops import closed_loop, open_loop
from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.samples import Sample
from virtual_time import in_virtual_time


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_loops, "time", SimpleNamespace(monotonic=now))


def now() -> float:
    return asyncio.get_running_loop().time()


class Server:
    """Answers after `seconds`; remembers when what was sent and how many were out."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.out, self.most = seconds, 0, 0
        self.sent: list[float] = []

    async def __call__(self, prompt: LoadPrompt, start: float, late: float = 0.0) -> Sample:
        begin = now() - start
        self.sent.append(begin)
        self.out += 1
        self.most = max(self.most, self.out)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.out -= 1
        return Sample(sent=begin, end=now() - start, late=late)


def near(*seconds: float) -> Any:
    return pytest.approx(list(seconds), abs=1e-3)


def prompts(*times: float) -> list[LoadPrompt]:
    return [LoadPrompt((9,), 1, at) for at in times]


def ignore(_sample: Sample) -> None:
    pass


@in_virtual_time
async def test_a_closed_loop_keeps_its_number_out_and_sends_the_next_when_one_ends() -> None:
    server, told = Server(3), list[Sample]()
    samples = await closed_loop(prompts(*[0] * 12), server, 4, asyncio.Event(), told.append)
    assert len(samples) == 12
    assert told == samples
    assert server.most == 4
    assert server.sent == near(*[0] * 4, *[3] * 4, *[6] * 4)


@in_virtual_time
async def test_an_open_loop_sends_on_time_however_slow_the_server_is() -> None:
    server = Server(10)
    samples = await open_loop(prompts(0, 1, 2.5, 2.5, 7), server, asyncio.Event(), ignore)
    assert server.sent == near(0, 1, 2.5, 2.5, 7)
    assert server.most == 5
    assert [s.late for s in samples] == near(*[0] * 5)


@in_virtual_time
async def test_a_limit_holds_requests_back_and_their_lateness_is_told() -> None:
    server = Server(10)
    samples = await open_loop(prompts(0, 1, 2, 3), server, asyncio.Event(), ignore, limit=2)
    assert server.most == 2
    assert server.sent == near(0, 1, 10, 11)
    assert [s.late for s in samples] == near(0, 0, 8, 8)


@pytest.mark.parametrize("kind", ["open", "closed"])
@in_virtual_time
async def test_a_stop_ends_the_run_with_what_there_is(kind) -> None:
    server, stop = Server(3), asyncio.Event()
    begin = now()
    asyncio.get_running_loop().call_later(10, stop.set)
    many = prompts(*range(0, 100, 2))
    if kind == "open":
        samples = await open_loop(many, server, stop, ignore)
        assert len(samples) == 4
    else:
        samples = await closed_loop(many, server, 2, stop, ignore)
        assert len(samples) == 6
    assert server.out == 0
    assert [now() - begin] == near(10)


@in_virtual_time
async def test_a_failure_of_the_client_itself_is_not_swallowed() -> None:
    async def broken(prompt: LoadPrompt, start: float, late: float = 0.0) -> Sample:
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError, match="bug"):
        await closed_loop(prompts(0), broken, 1, asyncio.Event(), ignore)
    with pytest.raises(RuntimeError, match="bug"):
        await open_loop(prompts(0), broken, asyncio.Event(), ignore)


@in_virtual_time
async def test_no_prompts_are_no_samples() -> None:
    unused: Any = Server(1)
    assert await closed_loop([], unused, 3, asyncio.Event(), ignore) == []
    assert await open_loop([], unused, asyncio.Event(), ignore) == []
