"""Probes: read `/readyz`, `/metrics` and `/v1/models` of every engine periodically, and report to the pool.

Each engine has a task of its own, so that a slow or dead engine delays no other probe.
"""

import asyncio
import math
import os
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import aiohttp
import msgspec
import structlog

from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.hand_over import transfer_report
from mamba_gateway.headers import bearer

log = structlog.get_logger("mambaserve.gateway")

RUNNING = ("mambaserve_requests_running", "vllm:num_requests_running", "sglang:num_running_reqs")
WAITING = ("mambaserve_requests_waiting", "vllm:num_requests_waiting", "sglang:num_queue_reqs")
KV_USAGE = ("vllm:kv_cache_usage_perc", "sglang:token_usage")
PROMPT_TOKENS_WAITING, PROMPT_ROOM = "mambaserve_prompt_tokens_waiting", "mambaserve_prompt_room_tokens"
MAX_RUNNING = "mambaserve_max_running_requests"
TOKENS_PER_SECOND = "mambaserve_prefill_tokens_per_second"
SPEED_ERROR = "mambaserve_prefill_speed_error"
ATTENTION_RATIO, DECODE_SECONDS = "mambaserve_prefill_attention_ratio", "mambaserve_decode_step_seconds"
NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions that may be raised when bytes of another process are decoded as JSON."""
PROBES_PER_MODELS = 30
"""Number of successful probes between two reads of `/v1/models`, which rarely changes."""
FAILURES = 3
"""Number of consecutive probes that may time out before a ready engine counts as not ready: it may just be
busy."""
TIMEOUTS_BEFORE_DOUBT = 2
"""Number of consecutive probes that time out before requests at the engine are checked for signs of life."""


def _cause_of(error: Exception) -> str:
    """Return the reason why an engine could not be probed, as text for the status."""
    if isinstance(error, aiohttp.ClientConnectorError):
        # The HTTP client's message repeats the address, mentions an unused ssl:default, and hides the cause.
        cause = error.os_error
        words = os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror or str(cause)
        return f"cannot be connected to: {words}"
    return str(error) or type(error).__name__


def read_gauges(text: str) -> dict[str, float]:
    """Return the value of each series of a Prometheus text, summed over its label sets.

    Malformed lines, NaN and infinities are skipped. This takes a tenth of the time of a full parser, which
    matters with a scrape per second and engine.
    """
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        name, brace, rest = line.partition("{")
        if brace:
            value = rest[rest.rfind("}") + 1 :]
        else:
            name, _, value = line.partition(" ")
        fields = value.split()
        try:
            number = float(fields[0])
        except (ValueError, IndexError):
            continue
        if math.isfinite(number):
            sums[name] = sums.get(name, 0.0) + number
    return sums


def first_value(gauges: dict[str, float], names: Iterable[str]) -> float:
    """Return the value of the first of these names that is present; 0 if none is."""
    return next((gauges[name] for name in names if name in gauges), 0.0)


def speed_of(gauges: dict[str, float]) -> EngineSpeed | None:
    """Return the speed that the engine has measured; None if it has measured or reports none."""
    tokens_per_second = gauges.get(TOKENS_PER_SECOND, 0.0)
    if tokens_per_second <= 0:
        return None
    return EngineSpeed(
        tokens_per_second,
        max(0.0, gauges.get(ATTENTION_RATIO, 0.0)),
        max(0.0, gauges.get(DECODE_SECONDS, 0.0)),
        max(0.0, gauges.get(SPEED_ERROR, 0.0)),
    )


def reason_of(body: bytes) -> tuple[str, bool]:
    """Return from the body of a 503 (JSON or text) why an engine is not ready, and whether it drains."""
    try:
        content: Any = msgspec.json.decode(body)
    except NO_JSON:
        content = body.decode("utf-8", "replace")
    if isinstance(content, dict):
        inner = content.get("error")
        error: dict[Any, Any] = inner if isinstance(inner, dict) else content
        text = next((str(error[k]) for k in ("code", "reason", "status", "message") if error.get(k)), "")
        everything = " ".join(str(value) for value in error.values()).lower()
        return text[:200], "drain" in everything
    return str(content)[:200], "drain" in str(content).lower()


class _Ready(msgspec.Struct, frozen=True):
    models_revision: int | None = None


def models_revision(body: bytes) -> int | None:
    """Return from the body of a `/readyz` the number that changes with the engine's models; None = none."""
    try:
        return msgspec.json.decode(body, type=_Ready).models_revision
    except NO_JSON:
        return None


class Prober:
    """Asks each engine at intervals whether it is ready and how busy it is, and reports that to the pool."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        pool: Pool,
        rng: Random,
        *,
        interval: float,
        timeout: float,
        key: Callable[[], bytes] | None = None,
        on_unanswered: Callable[[str, float], None] = lambda url, since: None,
    ) -> None:
        """Create a prober without engines, which probes each engine every `interval` seconds.

        `timeout` is the longest duration of a probe in seconds, and `key` returns the API key for engines.
        `on_unanswered` is called after the second and each further consecutive probe that has timed out, with
        the engine's URL and the time of the event loop at which that probe began.
        """
        self._session, self._pool, self._rng = session, pool, rng
        self._interval, self._key = interval, key
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._on_unanswered = on_unanswered
        self._revisions: dict[str, int | None] = {}
        """Revision of the models that were read last, by URL of the engine."""

    def set_targets(self, targets: Iterable[Target]) -> None:
        """Pass the engines to the pool, and probe exactly these from now on."""
        added, removed = self._pool.set_targets(targets)
        for url in removed:
            self._tasks.pop(url).cancel()
            self._revisions.pop(url, None)
        for url in added:
            self._tasks[url] = asyncio.create_task(self._watch(url), name=f"probe {url}")
        if added or removed:
            log.info("endpoints changed", added=sorted(added), removed=sorted(removed))

    async def close(self) -> None:
        """Stop probing."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def probe(self, url: str, with_models: bool) -> ProbeReport:
        """Probe an engine once. Raises TimeoutError if it does not answer; other failures are reported."""
        try:
            async with self._session.get(f"{url}/readyz", timeout=self._timeout) as answer:
                body = await answer.content.read(64 * 1024)
                if answer.status != 200:
                    reason, draining = reason_of(body)
                    return ProbeReport(
                        ready=False, draining=draining, reason=reason or f"/readyz says {answer.status}"
                    )
            # An engine that loads or unloads an adapter is asked at once, and all others rarely.
            revision = models_revision(body)
            changed = revision != self._revisions.get(url)
            models = await self._models(url) if with_models or changed else None
            if models is not None:
                self._revisions[url] = revision
            gauges = await self._gauges(url)
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            return ProbeReport(ready=False, reason=_cause_of(error))
        return ProbeReport(
            ready=True,
            models=models,
            running=int(first_value(gauges, RUNNING)),
            waiting=int(first_value(gauges, WAITING)),
            kv_usage=first_value(gauges, KV_USAGE),
            speed=speed_of(gauges),
            prompt_tokens_waiting=gauges.get(PROMPT_TOKENS_WAITING),
            room=gauges.get(PROMPT_ROOM),
            max_running=int(gauges.get(MAX_RUNNING, 0)) or None,
            transfer=transfer_report(body),
        )

    async def _gauges(self, url: str) -> dict[str, float]:
        async with self._session.get(f"{url}/metrics", timeout=self._timeout) as answer:
            return read_gauges(await answer.text("utf-8", "replace")) if answer.status == 200 else {}

    async def _models(self, url: str) -> tuple[dict[str, Any], ...] | None:
        headers = {"Authorization": bearer(self._key())} if self._key else {}
        async with self._session.get(f"{url}/v1/models", timeout=self._timeout, headers=headers) as answer:
            if answer.status != 200:
                return None
            try:
                listed = msgspec.json.decode(await answer.read(), type=dict[str, Any]).get("data")
            except NO_JSON:
                return None
        return tuple(e for e in listed if isinstance(e, dict)) if isinstance(listed, list) else None

    async def _watch(self, url: str) -> None:
        good = failures = 0
        models_read = was_ready = False
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            try:
                report = await self.probe(url, with_models=not models_read or good % PROBES_PER_MODELS == 0)
                failures = 0
            except TimeoutError:
                failures += 1
                if failures >= TIMEOUTS_BEFORE_DOUBT:
                    self._on_unanswered(url, begin)
                report = ProbeReport(ready=False, reason="/readyz did not answer in time")
            except Exception:
                # If the task ended, the state of its engine would never be updated again.
                log.exception("probe failed", endpoint=url)
                report = ProbeReport(ready=False, reason="the probe failed")
            if report.ready or failures == 0 or failures >= FAILURES or not was_ready:
                if report.ready != was_ready:
                    log.info("endpoint", url=url, ready=report.ready, reason=report.reason)
                models_read = report.ready and (models_read or report.models is not None)
                good = good + 1 if report.ready else 0
                was_ready = report.ready
                self._pool.report(url, report)
            await asyncio.sleep(self._interval * self._rng.uniform(0.9, 1.1))
