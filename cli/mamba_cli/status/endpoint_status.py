"""`EndpointStatus`: readiness, strategy, queue, slots, pages, hits and misses of a gateway or an engine.

They are read from `/version`, `/readyz` and `/metrics`, which need no key.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from mamba_cli.endpoint import refusal, unreachable
from mamba_cli.errors import RunFailed
from mamba_cli.scrape import Scrape, read_metrics

_GATEWAY = "mambaserve_gateway_in_flight"
_ENGINE = "mambaserve_engine_up"


@dataclass(frozen=True, slots=True)
class ScrapedEngine:
    """State of one engine, read from metrics.

    None = not reported, or the engine cannot be reached from here.
    """

    name: str
    ready: bool
    reason: str = ""
    role: str | None = None
    """Work of an engine that exchanges states with others: prefill, decode or unified."""
    model: str | None = None
    strategy: str | None = None
    running: int | None = None
    waiting: int | None = None
    slots: dict[str, int] = field(default_factory=dict)
    """Number of slots by owner."""
    pages: dict[str, int] = field(default_factory=dict)
    """Number of pages by owner, including free pages."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    misses: dict[str, int] = field(default_factory=dict)
    """Number of prompts that resumed less than possible, by cause."""
    checkpoints: int | None = None
    restarts: int | None = None


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """The state of one endpoint. `kind` is gateway or engine; only a gateway has counts of requests."""

    url: str
    kind: str
    version: str
    status: str
    reason: str
    engines: tuple[ScrapedEngine, ...]
    in_flight: int | None = None
    queued: int | None = None
    held: int | None = None

    @property
    def ready(self) -> int:
        """Number of ready engines."""
        return sum(engine.ready for engine in self.engines)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `status --output json` prints."""
        return {**asdict(self), "engines": [asdict(engine) for engine in self.engines], "ready": self.ready}


async def endpoint_status(session: aiohttp.ClientSession, url: str) -> EndpointStatus:
    """Read the state of the endpoint at `url`. Raises `RunFailed` unless a gateway or an engine answers."""
    try:
        metrics = await _scrape(session, url)
        readiness = await _json(session, f"{url}/readyz")
        version = await _json(session, f"{url}/version")
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise unreachable(url, error) from error
    kind = "gateway" if _GATEWAY in metrics.values else "engine" if _ENGINE in metrics.values else ""
    if not kind:
        raise RunFailed(f"{url} is neither a gateway nor an engine of mambaserve")
    engines: tuple[ScrapedEngine, ...]
    if kind == "engine":
        name = urlsplit(url).netloc
        engine = _engine(name, readiness.get("status") == "ready", _text(readiness, "reason"), metrics)
        engines = (replace(engine, role=_role(readiness)),)
    else:
        reasons = readiness.get("reasons")
        engines = await _behind(session, metrics, reasons if isinstance(reasons, dict) else {})
    return EndpointStatus(
        url, kind, _text(version, "version"), _text(readiness, "status"), _text(readiness, "reason"), engines,
        in_flight=_count(metrics, "mambaserve_gateway_in_flight"),
        queued=_count(metrics, "mambaserve_gateway_queued"),
        held=_count(metrics, "mambaserve_gateway_held"),
    )  # fmt: skip


async def _behind(
    session: aiohttp.ClientSession, gateway: Scrape, reasons: dict[str, Any]
) -> tuple[ScrapedEngine, ...]:
    """Return the engines of a gateway; engines named by an address are scraped, others have a load only."""
    ready = gateway.by("mambaserve_gateway_endpoint_ready", "endpoint")

    async def read_engine(name: str) -> ScrapedEngine:
        reason = str(reasons.get(name) or "")
        metrics, readiness = Scrape(), dict[str, Any]()
        try:
            # An engine in a pod has the name of the pod, which is no address.
            if ":" in name:
                metrics = await _scrape(session, f"http://{name}")
                readiness = await _json(session, f"http://{name}/readyz")
        except (RunFailed, TimeoutError, aiohttp.ClientError, OSError):
            pass
        if _ENGINE in metrics.values:
            return replace(_engine(name, ready[name] == 1, reason, metrics), role=_role(readiness))
        load = gateway.total("mambaserve_gateway_endpoint_load", endpoint=name)
        return ScrapedEngine(name, ready[name] == 1, reason, running=None if load is None else int(load))

    return tuple(await asyncio.gather(*(read_engine(name) for name in sorted(ready))))


def _role(readiness: Mapping[str, Any]) -> str | None:
    transfer = readiness.get("transfer")
    return str(transfer["role"]) if isinstance(transfer, dict) and transfer.get("role") else None


def _engine(name: str, ready: bool, reason: str, metrics: Scrape) -> ScrapedEngine:
    # An engine that is not ready exposes no series about itself.
    labels = next((labels for labels, _ in metrics.series("mambaserve_strategy_info")), {})
    up = next((labels for labels, _ in metrics.series(_ENGINE)), {})
    return ScrapedEngine(
        name=name,
        ready=ready,
        reason="" if ready else reason,
        model=up.get("model"),
        strategy=labels.get("strategy"),
        running=_count(metrics, "mambaserve_requests_running"),
        waiting=_count(metrics, "mambaserve_requests_waiting"),
        slots=_by(metrics, "mambaserve_slots", "owner"),
        pages=_by(metrics, "mambaserve_pages", "owner"),
        prompt_tokens=_count(metrics, "mambaserve_prompt_tokens_total"),
        cached_tokens=_count(metrics, "mambaserve_cached_tokens_total"),
        misses=_by(metrics, "mambaserve_prefix_misses_total", "cause"),
        checkpoints=_count(metrics, "mambaserve_checkpoints"),
        restarts=_count(metrics, "mambaserve_engine_restarts_total"),
    )


def _count(metrics: Scrape, name: str) -> int | None:
    value = metrics.total(name)
    return None if value is None else int(value)


def _by(metrics: Scrape, name: str, label: str) -> dict[str, int]:
    return {key: int(value) for key, value in metrics.by(name, label).items()}


async def _scrape(session: aiohttp.ClientSession, url: str) -> Scrape:
    async with session.get(f"{url}/metrics") as answer:
        if answer.status != 200:
            raise refusal(url, answer.status, None)
        return read_metrics((await answer.read()).decode("utf-8", "replace"))


async def _json(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as answer:
        try:
            body = await answer.json(content_type=None)
        except ValueError:
            return {}
    return body if isinstance(body, dict) else {}


def _text(body: dict[str, Any], name: str) -> str:
    return str(body.get(name) or "")
