"""One run against a URL: finds the model, warms up, drives the load, makes the report, writes it.

Called by the commands `bench serve` and `bench trace`; the benchmarks of this project use the same parts.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mamba_cli.bench.client import LoadClient
from mamba_cli.bench.load_loops import closed_loop, open_loop
from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.reuse import cached_before
from mamba_cli.bench.samples import LatencyLimits, Sample, report
from mamba_cli.endpoint import unreachable
from mamba_cli.errors import InvalidInput, RunFailed


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is run: the prompts, how they are sent, what is noted about it."""

    url: str
    prompts: Callable[[], Iterator[LoadPrompt]]
    """Makes the prompts from the first on, each as it is sent: those of a trace fill gigabytes."""
    total: int
    """How many there are."""
    concurrency: int | None
    """Closed loop with so many at once; None = open loop by the prompts' times."""
    limit: int | None
    """Open loop: most at once; None = no limit."""
    warmup: int
    model: str | None
    api_key: str | None
    timeout: float
    slo: LatencyLimits
    load: dict[str, Any]
    """The options, for the report."""


async def execute(plan: LoadPlan, console: Console) -> dict[str, Any]:
    """Run the plan; SIGINT ends it early with what there is (`interrupted` is true then).

    Raises `RunFailed` if the server does not answer at all or no request ended well, `InvalidInput` for an
    unknown model or what is no URL.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            model = await _model(session, plan)
            client = LoadClient(session, plan.url, model, api_key=plan.api_key, timeout=plan.timeout)
            await _warm_up(plan, client, stop)
            with _progress(console, plan.total) as told:
                if plan.concurrency:
                    samples = await closed_loop(plan.prompts(), client.send, plan.concurrency, stop, told)
                else:
                    samples = await open_loop(plan.prompts(), client.send, stop, told, plan.limit)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    found = report(samples, plan.slo)
    # After the run: what it costs must not slow the load.
    tokens, sent = found["tokens"], islice(plan.prompts(), len(samples))
    tokens["cached_before"] = cached_before(tokens["cached"], tokens["prompt"], sent)
    if samples and not found["requests"]["ok"]:
        raise RunFailed(f"no request ended well: {found['requests']['errors']}")
    about = {
        "mambaserve": version("mambaserve"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "url": plan.url,
        "model": model,
        "load": plan.load,
        "interrupted": stop.is_set(),
    }
    return {**about, **found}


def write(found: dict[str, Any], path: Path) -> None:
    """Write the report. Raises `RunFailed` when the file cannot be written."""
    try:
        path.write_text(json.dumps(found, indent=2) + "\n")
    except OSError as error:
        raise RunFailed(f"cannot write the report: {error}") from error


async def _model(session: aiohttp.ClientSession, plan: LoadPlan) -> str:
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    url = plan.url.rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        async with session.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as response:
            if response.status != 200:
                raise RunFailed(f"{url} answers {response.status}: {(await response.text())[:200]}")
            known = [str(entry["id"]) for entry in (await response.json())["data"]]
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise InvalidInput(f"URL: {plan.url!r} is no http:// or https:// URL") from error
    except aiohttp.ClientConnectorError as error:
        raise unreachable(plan.url, error) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise RunFailed(f"{url} does not answer: {error or type(error).__name__}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{url} does not answer like an OpenAI server: {error!r}") from error
    if plan.model is None and not known:
        raise RunFailed(f"{url} lists no model yet; wait until the server is ready")
    if plan.model is not None and known and plan.model not in known:
        raise InvalidInput(f"--model: {plan.model!r} is not served there; there is {', '.join(known)}")
    return plan.model or known[0]


async def _warm_up(plan: LoadPlan, client: LoadClient, stop: asyncio.Event) -> None:
    # Prompts of the same length but other tokens: nothing of the run itself is cached by them.
    chosen = [LoadPrompt(p.token_ids[::-1], p.output_tokens) for p in islice(plan.prompts(), plan.warmup)]
    await closed_loop(chosen, client.send, plan.concurrency or 8, stop, lambda _: None)


class _progress:  # noqa: N801 - reads as the function it is used as
    def __init__(self, console: Console, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("requests", total=total)
        self._failed = 0

    def __enter__(self) -> Callable[[Sample], None]:
        self._bar.start()
        return self._told

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _told(self, sample: Sample) -> None:
        self._failed += sample.error is not None
        words = f"requests, {self._failed} failed" if self._failed else "requests"
        self._bar.update(self._task, advance=1, description=words)
