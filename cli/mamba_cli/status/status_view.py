"""The status of endpoints and MambaDeployments as text for the terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mamba_cli.status.deployment_status import DeploymentStatus, PoolState
from mamba_cli.status.endpoint_status import EndpointStatus, ScrapedEngine


def status_view(status: EndpointStatus) -> RenderableType:
    """Return the view of one endpoint: a line on it, and a paragraph for each engine."""
    head = Text.assemble(
        (f"{status.kind} {status.url}", "bold"), "  ", (status.status, _colour(status.status == "ready"))
    )
    if status.version:
        head.append(f"  mambaserve {status.version}", style="dim")
    if status.kind == "engine":
        return Group(head, _engine(status.engines[0]))
    lines: list[RenderableType] = [head]
    queue = f"{status.in_flight or 0:,} in flight, {status.queued or 0:,} queued, {status.held or 0:,} held"
    lines.append(Text(f"{status.ready} of {len(status.engines)} engines ready; {queue}"))
    for engine in status.engines:
        word = "ready" if engine.ready else "not ready"
        title = f"{engine.role or ''} engine {engine.name}".strip()
        lines.append(Text.assemble("\n", (title, "bold"), "  ", (word, _colour(engine.ready))))
        lines.append(_engine(engine))
    return Group(*lines)


def deployments_view(statuses: Sequence[DeploymentStatus]) -> RenderableType:
    """Return a view with a paragraph for each MambaDeployment."""
    lines: list[RenderableType] = []
    for index, status in enumerate(statuses):
        word = {"True": "ready", "False": "not ready"}.get(status.ready, "unknown")
        head = Text.assemble((status.name, "bold"), "  ", (word, _colour(status.ready == "True")))
        head.append(f"  {status.ready_replicas} of {status.replicas} engines ready")
        pools = {pool.name: _pool(pool) for pool in status.pools}
        rows = {
            "because": "" if status.ready == "True" else f"{status.reason}: {status.message}".strip(": "),
            **{kind.lower(): message for kind, message in status.troubles.items()},
            "note": "" if status.current else "the operator has not seen the newest spec yet",
            "model": status.model,
            "plan": _plan(status),
            **pools,
            "url": status.url,
        }
        lines += [*([Text()] if index else []), head, _rows(rows)]
    return Group(*lines)


def _pool(pool: PoolState) -> str:
    ready = f"{pool.ready_replicas} of {pool.replicas} engines ready"
    return f"{ready}; {words}" if (words := _plan(pool)) else ready


def _plan(part: DeploymentStatus | PoolState) -> str:
    """Return the most important numbers of a plan; empty without one."""
    words = [part.strategy, part.slots is not None and f"{part.slots:,} slots",
             part.max_running_requests is not None and f"{part.max_running_requests:,} at once",
             part.headroom and f"{part.headroom} headroom"]  # fmt: skip
    return ", ".join(word for word in words if word)


def _engine(engine: ScrapedEngine) -> RenderableType:
    rows = {
        "because": engine.reason,
        "model": engine.model or "",
        "strategy": engine.strategy or "",
        "requests": _requests(engine),
        "slots": _owners(engine.slots),
        "pages": _owners(engine.pages),
        "resumed": _resumed(engine),
        "misses": _owners(engine.misses),
        "restarts": f"{engine.restarts:,}" if engine.restarts else "",
    }
    return _rows(rows)


def _rows(rows: dict[str, str]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in rows.items():
        if words:
            table.add_row(f"  {name}", Text(words))
    return table


def _requests(engine: ScrapedEngine) -> str:
    if engine.waiting is None:
        return (
            "" if engine.running is None else f"{engine.running:,} at the engine, as counted by the gateway"
        )
    return f"{engine.running or 0:,} running, {engine.waiting:,} waiting"


def _owners(counts: dict[str, int]) -> str:
    return ", ".join(f"{owner} {count:,}" for owner, count in counts.items())


def _resumed(engine: ScrapedEngine) -> str:
    if engine.prompt_tokens is None:
        return ""
    cached = engine.cached_tokens or 0
    share = cached / engine.prompt_tokens if engine.prompt_tokens else 0.0
    words = f"{cached:,} of {engine.prompt_tokens:,} prompt tokens ({share:.0%})"
    return words if engine.checkpoints is None else f"{words}; {engine.checkpoints:,} checkpoints kept"


def _colour(good: bool) -> str:
    return "green" if good else "yellow"
