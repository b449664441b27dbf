"""The status of endpoints and MambaDeployments as text for the terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mamba_cli.status.deployment_status import DeploymentStatus
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
        lines.append(
            Text.assemble("\n", (f"engine {engine.name}", "bold"), "  ", (word, _colour(engine.ready)))
        )
        lines.append(_engine(engine))
    return Group(*lines)


def deployments_view(statuses: Sequence[DeploymentStatus]) -> RenderableType:
    """Return a view with a paragraph for each MambaDeployment."""
    lines: list[RenderableType] = []
    for index, each in enumerate(statuses):
        word = {"True": "ready", "False": "not ready"}.get(each.ready, "unknown")
        head = Text.assemble((each.name, "bold"), "  ", (word, _colour(each.ready == "True")))
        head.append(f"  {each.ready_replicas} of {each.replicas} engines ready")
        plan = [each.strategy, each.slots is not None and f"{each.slots:,} slots",
                each.max_running_requests is not None and f"{each.max_running_requests:,} at once",
                each.headroom and f"{each.headroom} headroom"]  # fmt: skip
        rows = {
            "because": "" if each.ready == "True" else f"{each.reason}: {each.message}".strip(": "),
            **{kind.lower(): message for kind, message in each.troubles.items()},
            "note": "" if each.current else "the operator has not seen the newest spec yet",
            "model": each.model,
            "plan": ", ".join(part for part in plan if part),
            "url": each.url,
        }
        lines += [*([Text()] if index else []), head, _rows(rows)]
    return Group(*lines)


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
