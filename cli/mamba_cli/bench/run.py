"""One run against a URL: finds the model, warms up, sends the load, and builds and writes the report.

Called by the commands of `bench`; the project's benchmarks use the same functions.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Iterable, Iterator
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
from mamba_cli.bench.dataset import reversed_messages
from mamba_cli.bench.load_loops import closed_loop, open_loop
from mamba_cli.bench.prompts import LoadPrompt, cached_before
from mamba_cli.bench.samples import LatencyLimits, Sample, report
from mamba_cli.endpoint import unreachable
from mamba_cli.errors import InvalidInput, RunFailed


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Plan of one run: the server, the prompts, the way they are sent, and what is reported."""

    url: str
    prompts: Callable[[], Iterator[LoadPrompt]]
    """Function that returns all prompts from the first. They are built as they are sent, because all prompts
    of a trace together would take gigabytes."""
    total: int
    """Number of prompts."""
    concurrency: int | None
    """Requests in flight of a closed loop; None = open loop by the times of the prompts."""
    limit: int | None
    """Most requests in flight of an open loop; None = no limit."""
    warmup: int
    """Number of requests that are sent before the run and not counted."""
    model: str | None
    """Model to ask for; None = the first that the server lists."""
    api_key: str | None
    timeout: float
    """Seconds after which a request counts as failed."""
    slo: LatencyLimits
    load: dict[str, Any]
    """Options of the run, for the report."""
    cached_before: Callable[[int, int, Iterable[LoadPrompt]], int] = cached_before
    """Function that returns how many tokens were cached before the run, given the number of cached tokens,
    the number of all prompt tokens, and the prompts."""


async def execute(plan: LoadPlan, console: Console) -> dict[str, Any]:
    """Run the plan and return the report; SIGINT ends the run early, with `interrupted` true in the report.

    Raises `RunFailed` if the server does not answer at all or no request succeeded, `InvalidInput` for an
    unknown model or a text that is not a URL.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            model = await _model(session, plan)
            client = LoadClient(session, plan.url, model, api_key=plan.api_key, timeout=plan.timeout)
            await _warm_up(plan, client, stop)
            with _progress(console, plan.total) as on_sample:
                if plan.concurrency:
                    samples = await closed_loop(
                        plan.prompts(), client.send, plan.concurrency, stop, on_sample
                    )
                else:
                    samples = await open_loop(plan.prompts(), client.send, stop, on_sample, plan.limit)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    result = report(samples, plan.slo)
    # The comparison of prompts takes time, so it follows the run.
    tokens, sent = result["tokens"], islice(plan.prompts(), len(samples))
    tokens["cached_before"] = plan.cached_before(tokens["cached"], tokens["prompt"], sent)
    if samples and not result["requests"]["ok"]:
        raise RunFailed(f"no request succeeded: {result['requests']['errors']}")
    about = {
        "mambaserve": version("mambaserve"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "url": plan.url,
        "model": model,
        "load": plan.load,
        "interrupted": stop.is_set(),
    }
    return {**about, **result}


def write(result: dict[str, Any], path: Path) -> None:
    """Write the report. Raises `RunFailed` when the file cannot be written."""
    write_file(json.dumps(result, indent=2) + "\n", path)


def write_file(text: str, path: Path) -> None:
    """Write a file of results. Raises `RunFailed` when the file cannot be written."""
    try:
        path.write_text(text)
    except OSError as error:
        raise RunFailed(f"cannot write the file: {error}") from error


async def _model(session: aiohttp.ClientSession, plan: LoadPlan) -> str:
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    url = plan.url.rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        async with session.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as response:
            if response.status != 200:
                raise RunFailed(f"{url} answered {response.status}: {(await response.text())[:200]}")
            names = [str(entry["id"]) for entry in (await response.json())["data"]]
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise InvalidInput(f"URL: {plan.url!r} is not an http:// or https:// URL") from error
    except aiohttp.ClientConnectorError as error:
        raise unreachable(plan.url, error) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise RunFailed(f"{url} does not answer: {error or type(error).__name__}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{url} does not answer like an OpenAI server: {error!r}") from error
    if plan.model is None and not names:
        raise RunFailed(f"{url} lists no model yet; wait until the server is ready")
    if plan.model is not None and names and plan.model not in names:
        raise InvalidInput(f"--model: {plan.model!r} is not served there; the server has {', '.join(names)}")
    return plan.model or names[0]


async def _warm_up(plan: LoadPlan, client: LoadClient, stop: asyncio.Event) -> None:
    # Reversed prompts have the same lengths, but leave no prefix of the run in the cache.
    chosen = [_reversed(prompt) for prompt in islice(plan.prompts(), plan.warmup)]
    await closed_loop(chosen, client.send, plan.concurrency or 8, stop, lambda _: None)


def _reversed(prompt: LoadPrompt) -> LoadPrompt:
    messages = None if prompt.messages is None else reversed_messages(prompt.messages)
    return LoadPrompt(prompt.token_ids[::-1], prompt.output_tokens, messages=messages)


class _progress:  # noqa: N801 - used like a function
    def __init__(self, console: Console, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("requests", total=total)
        self._failed = 0

    def __enter__(self) -> Callable[[Sample], None]:
        self._bar.start()
        return self._add

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _add(self, sample: Sample) -> None:
        self._failed += sample.error is not None
        words = f"requests, {self._failed} failed" if self._failed else "requests"
        self._bar.update(self._task, advance=1, description=words)
