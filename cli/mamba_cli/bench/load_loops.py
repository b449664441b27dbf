"""Load loops: send prompts by a schedule (open loop) or as answers arrive (closed loop), and collect samples.

An open loop never waits for answers, so that a slow server gets the same load as in production.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.samples import Sample


class Sender(Protocol):
    """Sends one prompt and returns its sample; failures of the server never raise."""

    def __call__(self, prompt: LoadPrompt, start: float, late: float = 0.0) -> Awaitable[Sample]: ...


OnSample = Callable[[Sample], None]


async def closed_loop(
    prompts: Iterable[LoadPrompt], send: Sender, concurrency: int, stop: asyncio.Event, on_sample: OnSample
) -> list[Sample]:
    """Keep `concurrency` requests in flight until the prompts are used up or `stop` is set."""
    start, samples, remaining = time.monotonic(), [], iter(prompts)

    async def worker() -> None:
        for prompt in remaining:
            if stop.is_set():
                return
            sample = await send(prompt, start)
            samples.append(sample)
            on_sample(sample)

    await _all_or_stop({asyncio.create_task(worker()) for _ in range(concurrency)}, stop)
    return samples


async def open_loop(
    prompts: Iterable[LoadPrompt],
    send: Sender,
    stop: asyncio.Event,
    on_sample: OnSample,
    limit: int | None = None,
) -> list[Sample]:
    """Send each prompt at its time `at` until `stop` is set, with at most `limit` requests in flight.

    A limit delays requests; `Sample.late` has the delay of each.
    """
    start, samples, tasks = time.monotonic(), [], set[asyncio.Task[None]]()
    permits = asyncio.Semaphore(limit) if limit else None

    async def send_at_time(prompt: LoadPrompt) -> None:
        try:
            late = max(0.0, time.monotonic() - start - prompt.at)
            sample = await send(prompt, start, late)
            samples.append(sample)
            on_sample(sample)
        finally:
            if permits:
                permits.release()

    for prompt in prompts:
        if await _stopped(stop, start + prompt.at - time.monotonic()):
            break
        if permits:
            await permits.acquire()
        task = asyncio.create_task(send_at_time(prompt))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await _all_or_stop(set(tasks), stop)
    return samples


async def _stopped(stop: asyncio.Event, seconds: float) -> bool:
    if seconds <= 0:
        # The event loop gets a turn for the answers, even when the schedule is behind.
        await asyncio.sleep(0)
        return stop.is_set()
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True


async def _all_or_stop(tasks: "set[asyncio.Task[None]]", stop: asyncio.Event) -> None:
    stopping = asyncio.create_task(stop.wait())
    try:
        while tasks and not stopping.done():
            done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                tasks.discard(task)
                task.result()
    finally:
        for task in (*tasks, stopping):
            task.cancel()
        await asyncio.gather(*tasks, stopping, return_exceptions=True)
