"""A plan as something people read: what runs, why, where every byte goes, and what was not chosen.

Renders; decides nothing. The bar tells its parts apart by pattern too, so that it works without colour.
"""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mamba_cli.local.planning import PlanOutcome
from mamba_planner import LedgerLine, MemoryPlan
from mamba_planner.byte_size import binary_size

# item of the ledger -> (pattern, colour, words)
_LOOK = {
    "weights": ("█", "blue", "weights"),
    "workspace": ("▓", "cyan", "workspace"),
    "padding slab": ("┃", "white", "padding"),
    "slots of running sequences": ("▚", "green", "slots, running"),
    "pages of running sequences": ("▒", "bright_green", "pages, running"),
    "slots of checkpoints": ("▞", "magenta", "slots, checkpoints"),
    "pages of checkpoints": ("░", "bright_magenta", "pages, checkpoints"),
    "free slabs": ("·", "yellow", "free slabs"),
    "left outside the arena": (" ", "bright_black", "not used"),
}
BAR_WIDTH = 60


def plan_view(outcome: PlanOutcome) -> RenderableType:
    """The panel of one object."""
    title = Text.assemble((outcome.name, "bold"), ("  " + _model_line(outcome), "dim"))
    body = _fitting(outcome, outcome.plan) if outcome.plan else _not_fitting(outcome)
    if outcome.not_served is not None:
        body = Group(Text(f"not served: {outcome.not_served}", style="bold yellow"), Text(), body)
    return Panel(
        body, title=title, title_align="left", border_style="green" if outcome.plan else "red", padding=(1, 2)
    )


def bar_cells(ledger: Iterable[LedgerLine], width: int) -> list[tuple[LedgerLine, int]]:
    """Cells of the bar by line, summing to `width`; a line with bytes gets a cell as long as there are any.

    Largest remainders get the cells that rounding leaves over.
    """
    lines = list(ledger)
    total = sum(line.bytes for line in lines)
    if total <= 0:
        return [(line, 0) for line in lines]
    exact = [line.bytes * width / total for line in lines]
    cells = [max(int(share), 1 if share > 0.25 else 0) for share in exact]
    order = sorted(range(len(lines)), key=lambda index: exact[index] - cells[index], reverse=True)
    while sum(cells) < width:
        for index in order:
            if sum(cells) < width:
                cells[index] += 1
    while sum(cells) > width:
        largest = max(range(len(lines)), key=lambda index: cells[index])
        cells[largest] -= 1
    return list(zip(lines, cells, strict=True))


def _model_line(outcome: PlanOutcome) -> str:
    model = outcome.model
    layers = f"{model.recurrent_layers} recurrent"
    if model.attention_layers:
        layers += f" + {model.attention_layers} attention layers"
    else:
        layers += " layers"
    return f"{model.family} · {layers} · {_count(model.parameters)} parameters"


def _fitting(outcome: PlanOutcome, plan: MemoryPlan) -> RenderableType:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row(
        "strategy", Text.assemble((plan.strategy, "bold green"), f" with {plan.state_dtype} states")
    )
    facts.add_row("because", Text(plan.reason))
    facts.add_row(
        "running",
        f"{plan.max_running_requests:,} sequences of {plan.workload.lengths} tokens fit, planned for "
        f"{plan.planned_running:,}; "
        f"bound by {plan.binding_constraint}",
    )
    kv = f"KV {binary_size(plan.kv_bytes_per_token)} per token" if plan.page_bytes else "no attention KV"
    facts.add_row(
        "a sequence", f"state {binary_size(plan.state_bytes)} x {plan.slots_per_sequence} slots, {kv}"
    )
    facts.add_row(
        "arena",
        f"{binary_size(plan.arena_bytes)} = {plan.slabs:,} slabs of {binary_size(plan.slab_bytes)}: "
        f"{plan.slots:,} slots and {plan.pages:,} pages, shared without a fixed ratio",
    )
    facts.add_row("longest", f"{plan.max_model_len:,} tokens")
    parts: list[RenderableType] = [facts, Text(), *_memory(outcome, plan)]
    if notes := (*plan.notes, *outcome.notes):
        parts += [Text(), *(Text(f"note: {note}", style="yellow") for note in notes)]
    if plan.rejected:
        parts += [Text(), Text("not chosen", style="bold"), _rejected(plan)]
    return Group(*parts)


def _memory(outcome: PlanOutcome, plan: MemoryPlan) -> Iterable[RenderableType]:
    of_device = ""
    if outcome.constraints.arena_bytes is None:
        device = "GPU" if outcome.device.kind == "cuda" else "free main memory"
        of_device = f" of {binary_size(outcome.device.memory)} {device}"
    yield Text.assemble(("memory ", "bold"), f"{binary_size(plan.budget_bytes)}{of_device}")
    bar = Text()
    for line, cells in bar_cells(plan.ledger, BAR_WIDTH):
        pattern, colour, _ = _LOOK.get(line.item, ("?", "white", line.item))
        bar.append(pattern * cells, style=colour)
    yield Text.assemble("▕", bar, "▏")
    legend = Table.grid(padding=(0, 2))
    for line in plan.ledger:
        if line.bytes:
            pattern, colour, words = _LOOK.get(line.item, ("?", "white", line.item))
            share = line.bytes / plan.budget_bytes
            legend.add_row(
                Text(pattern * 2, style=colour), words, Text(binary_size(line.bytes), justify="right"),
                Text(f"{share:6.1%}", style="dim"),
            )  # fmt: skip
    yield Padding(legend, (0, 0, 0, 1))


def _rejected(plan: MemoryPlan) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold", style="dim")
    for each in plan.rejected:
        table.add_row(each.strategy, each.state_dtype, Text(each.reason))
    return table


def _not_fitting(outcome: PlanOutcome) -> RenderableType:
    misfit = outcome.misfit
    missing = binary_size(misfit.need - misfit.have) if misfit else "?"
    return Group(
        Text.assemble(("does not fit", "bold red"), f": {missing} missing"), Text(), Text(str(misfit or ""))
    )


def _count(parameters: int) -> str:
    for scale, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= scale:
            return f"{parameters / scale:.1f}{suffix}"
    return str(parameters)
