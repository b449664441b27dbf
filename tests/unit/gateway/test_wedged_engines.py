"""Engines that take a request and fall silent: those that live are waited for, the others are not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from eventually import until
from mamba_gateway.endpoints.endpoint import FAILURES
from mamba_gateway.endpoints.pool import ProbeReport, Target
from mamba_gateway.endpoints.probe import Prober
from mamba_gateway.errors import UpstreamIdleTimeout, UpstreamLost
from mamba_gateway.relay.attempts import MIN_RETRIES
from mamba_gateway.upstream.connector import UpstreamRequest
from raw_engine import OK, SSE, RawEngine, Speech, says

Harnesses = Callable[..., Any]
ASKED = UpstreamRequest("/v1/completions", "", [], b"{}", "m")


def engine(speech: Speech, *, lives: bool) -> RawEngine:
    """Return an engine that answers requests like that; `lives`: it answers at /livez."""

    async def by_path(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        looked = made.requests[-1][0].startswith(b"GET /livez")
        await (says(OK) if looked and lives else says(hold=True) if looked else speech)(reader, writer)

    made = RawEngine(by_path)
    return made


def late(seconds: float, *parts: bytes) -> Speech:
    async def speech(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        await says(*parts)(reader, writer)

    return speech


async def test_a_wedged_engine_s_request_goes_elsewhere_and_it_gets_no_more(harness: Harnesses) -> None:
    async with engine(says(hold=True), lives=False) as wedged, RawEngine(says(OK)) as good:
        made = harness(silence_timeout=5.0)
        made.engines(wedged.url, good.url)
        begin = asyncio.get_running_loop().time()
        await made.run()
        assert asyncio.get_running_loop().time() - begin == pytest.approx(7, abs=0.5)
        assert made.status == 200
        await made.run()
        assert len(good.requests) == 2
        assert made.count("retries_total", reason="silent") == 1
        assert made.in_flight == [0, 0]


async def test_an_engine_that_is_slow_and_lives_is_waited_for(harness: Harnesses) -> None:
    async with engine(late(24, OK), lives=True) as slow, RawEngine(says(OK)) as good:
        made = harness(silence_timeout=5.0)
        made.engines(slow.url, good.url)
        await made.run()
        assert (made.status, made.body, good.requests) == (200, b"{}", [])
        assert sum(head.startswith(b"GET /livez") for head, _ in slow.requests) == 4


async def test_requests_that_wait_for_one_engine_ask_it_once_for_all(harness: Harnesses) -> None:
    async with engine(late(24, OK), lives=True) as slow:
        made = harness(silence_timeout=5.0)
        made.engines(slow.url)

        async def begin(at: float) -> None:
            await asyncio.sleep(at)
            await made.run(replace(ASKED))

        await asyncio.gather(*(begin(0.5 * number) for number in range(8)))
        # From second 5 to the last answer at 27.5.
        assert sum(head.startswith(b"GET /livez") for head, _ in slow.requests) == 5


async def test_who_goes_takes_the_question_of_the_others_not_along(harness: Harnesses) -> None:
    async with engine(says(hold=True), lives=False) as wedged:
        made = harness(silence_timeout=5.0, max_attempts=1)
        made.engines(wedged.url)
        gone, stays = (asyncio.create_task(made.run(replace(ASKED))) for _ in range(2))
        await asyncio.sleep(6)
        gone.cancel()
        with pytest.raises(UpstreamIdleTimeout):
            await stays
        assert sum(head.startswith(b"GET /livez") for head, _ in wedged.requests) == 1
        assert made.in_flight == [0]


async def test_a_stream_whose_engine_is_wedged_in_the_middle_ends_with_an_error_event(
    harness: Harnesses,
) -> None:
    parts = (SSE + b"\r\n", b"data: 1\n\n")
    async with engine(says(*parts, hold=True), lives=False) as wedged, RawEngine(says(OK)) as good:
        made = harness(silence_timeout=5.0)
        made.engines(wedged.url, good.url)
        with pytest.raises(UpstreamIdleTimeout):
            await made.run()
        assert made.body.startswith(b"data: 1\n\n")
        assert b"upstream_silent" in made.body
        assert made.body.endswith(b"data: [DONE]\n\n")
        assert good.requests == []
        assert made.in_flight == [0, 0]


async def test_a_request_that_wedges_two_engines_goes_no_further(harness: Harnesses) -> None:
    async with (
        engine(says(hold=True), lives=False) as one,
        engine(says(hold=True), lives=False) as two,
        RawEngine(says(OK)) as three,
    ):
        made = harness(silence_timeout=5.0)
        made.engines(one.url, two.url, three.url)
        with pytest.raises(UpstreamIdleTimeout):
            await made.run()
        assert three.requests == []


async def test_an_engine_that_lies_about_its_health_is_left_out(harness: Harnesses) -> None:
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with RawEngine(says(busy)) as liar, RawEngine(says(OK)) as good:
        made = harness()
        made.engines(liar.url, good.url)
        for _ in range(10):
            await made.run()
            made.pool.report(liar.url, ProbeReport(ready=True))  # all is well, it says
        assert len(liar.requests) == FAILURES
        assert len(good.requests) == 10


async def test_where_everything_fails_not_every_request_is_sent_again(harness: Harnesses) -> None:
    async with RawEngine(says()) as one, RawEngine(says()) as two:
        made = harness()
        for _ in range(40):
            made.engines(one.url, two.url)
            with pytest.raises(UpstreamLost):
                await made.run(replace(ASKED))
        sent = len(one.requests) + len(two.requests)
        assert 40 + MIN_RETRIES <= sent <= 40 + MIN_RETRIES + 0.2 * 40


class Probed:
    """A relay whose engines are probed as a gateway's are, with its defaults."""

    def __init__(self, made: Any, session: aiohttp.ClientSession) -> None:
        self.made = made
        self.prober = Prober(
            session, made.pool, Random(2),
            interval=1.0, timeout=2.0, on_unanswered=made.liveness.doubt,
        )  # fmt: skip

    async def serve_by(self, *engines: RawEngine) -> None:
        """Make these the engines, and wait until all are ready."""
        self.prober.set_targets([Target(one.url) for one in engines])
        await until(lambda: all(one.ready for one in self.made.pool.snapshot()))

    async def send_one(self, engine: RawEngine) -> asyncio.Task[None]:
        """Start the only request and wait until the engine has it."""
        await self.serve_by(engine)
        running = asyncio.create_task(self.made.run())
        await until(lambda: any(head.startswith(b"POST") for head, _ in engine.requests))
        return running


@pytest.fixture
async def probed(harness: Harnesses) -> AsyncIterator[Probed]:
    async with aiohttp.ClientSession() as session:
        probed = Probed(harness(), session)
        yield probed
        await probed.prober.close()


class Machine:
    """Machine of an engine that is healthy until nothing answers any more."""

    def __init__(self, speech: Speech, *, livez: bool = False) -> None:
        self.gone = False
        self._speech, self._livez = speech, livez
        self.engine = RawEngine(self._speak)

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = self.engine.requests[-1][0]
        if head.startswith(b"POST"):
            await self._speech(reader, writer)
        elif self.gone and not (self._livez and head.startswith(b"GET /livez")):
            await says(hold=True)(reader, writer)
        else:
            await says(OK)(reader, writer)


DETECTED = 9.0
"""Seconds: two probes of two, a check of two, and a pause before and between."""


async def test_a_request_whose_engine_s_machine_vanished_goes_elsewhere_when_probes_tell(
    probed: Probed,
) -> None:
    machine = Machine(says(hold=True))
    async with machine.engine as lost, RawEngine(says(OK)) as good:
        running = await probed.send_one(lost)
        await probed.serve_by(lost, good)
        begin, machine.gone = asyncio.get_running_loop().time(), True

        await running

        assert asyncio.get_running_loop().time() - begin < DETECTED
        assert (probed.made.status, probed.made.body) == (200, b"{}")
        assert probed.made.count("retries_total", reason="silent") == 1


async def test_a_stream_from_a_machine_that_vanished_is_told_so_when_probes_tell(probed: Probed) -> None:
    machine = Machine(says(SSE + b"\r\n", b"data: 1\n\n", hold=True))
    async with machine.engine as lost:
        running = await probed.send_one(lost)
        await until(lambda: probed.made.body)
        begin, machine.gone = asyncio.get_running_loop().time(), True

        with pytest.raises(UpstreamIdleTimeout):
            await running

        assert asyncio.get_running_loop().time() - begin < DETECTED
        assert b"upstream_silent" in probed.made.body


async def test_an_engine_that_answers_no_probe_in_time_and_lives_is_waited_for(probed: Probed) -> None:
    machine = Machine(late(25, OK), livez=True)
    async with machine.engine as busy, RawEngine(says(OK)) as good:
        running = await probed.send_one(busy)
        await probed.serve_by(busy, good)
        machine.gone = True

        await running

        assert (probed.made.status, probed.made.count("retries_total", reason="silent")) == (200, 0)
        assert probed.made.in_flight == [0, 0]


async def test_who_cannot_connect_to_an_engine_tells_those_that_wait_for_it(harness: Harnesses) -> None:
    lost, good = engine(says(hold=True), lives=False), RawEngine(says(OK))
    async with good:
        async with lost:
            made = harness()
            made.engines(lost.url)
            earlier = asyncio.create_task(made.run())
            await until(lambda: lost.requests)
            lost.refuse()
            begin = asyncio.get_running_loop().time()
            await asyncio.sleep(1)
            made.engines(lost.url, good.url)

            await made.run(replace(ASKED))
            await earlier

        assert asyncio.get_running_loop().time() - begin == pytest.approx(1, abs=0.5)
        assert len(good.requests) == 2


async def test_all_requests_of_an_engine_that_dies_go_elsewhere_however_many(harness: Harnesses) -> None:
    async with RawEngine(late(5)) as dying, RawEngine(says(OK)) as good:
        made = harness()
        made.engines(dying.url)
        together = [asyncio.create_task(made.run(replace(ASKED))) for _ in range(4 * MIN_RETRIES)]
        await until(lambda: len(dying.requests) == len(together))
        made.engines(dying.url, good.url)

        await asyncio.gather(*together)

        assert len(good.requests) == len(together)
        assert made.in_flight == [0, 0]
