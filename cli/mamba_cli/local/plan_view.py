"""`plan_view`: a memory plan as text for the terminal: strategy, reason, use of every byte, alternatives.

The module renders and decides nothing. The parts of the bar differ in pattern as well as in colour, so that
the bar can be read without colour.
"""

from collections.abc import Iterable, Iterator

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mamba_cli.local.planning import PlanOutcome
from mamba_planner import LedgerLine, MemoryPlan
from mamba_planner.memory_plan import OtherSize
from mamba_settings.byte_size import binary_size

_LOOK = {
    "weights": ("█", "blue", "weights"),
    "workspace": ("▓", "cyan", "workspace"),
    "padding slab": ("┃", "white", "padding"),
    "slots of running sequences": ("▚", "green", "slots, running"),
    "pages of running sequences": ("▒", "bright_green", "pages, running"),
    "slots of receptions": ("▙", "bright_cyan", "slots, receiving"),
    "pages of receptions": ("▖", "bright_cyan", "pages, receiving"),
    "slots of exports": ("▟", "bright_cyan", "slots, handed over"),
    "pages of exports": ("▗", "bright_cyan", "pages, handed over"),
    "slots of checkpoints": ("▞", "magenta", "slots, checkpoints"),
    "pages of checkpoints": ("░", "bright_magenta", "pages, checkpoints"),
    "free slabs": ("·", "yellow", "free slabs"),
    "left outside the arena": (" ", "bright_black", "not used"),
}
"""Pattern, colour and label of each item of the ledger."""
BAR_WIDTH = 60
"""Largest width of the bar, in cells."""


def plan_view(outcome: PlanOutcome, *, verbose: bool = False) -> RenderableType:
    """Return the panel of one object; `verbose` adds all numbers and the reasons against other choices."""
    body = _fitting(outcome, outcome.plan, verbose) if outcome.plan else _not_fitting(outcome)
    if outcome.not_served is not None:
        body = Group(Text(f"not served: {outcome.not_served}", style="bold yellow"), Text(), body)
    return Panel(
        Group(Text(_model_line(outcome), style="dim"), body),
        title=Text(outcome.title, style="bold"),
        title_align="left",
        border_style="green" if outcome.plan else "red",
        padding=(0, 2),
    )


class _Bar:
    """Draws the memory ledger as a bar that fills the line, up to `BAR_WIDTH` cells."""

    def __init__(self, ledger: Iterable[LedgerLine]) -> None:
        self._ledger = tuple(ledger)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        bar = Text()
        for line, cells in bar_cells(self._ledger, max(1, min(BAR_WIDTH, options.max_width - 2))):
            pattern, colour, _words = _LOOK.get(line.item, ("?", "white", line.item))
            bar.append(pattern * cells, style=colour)
        yield Text.assemble("▕", bar, "▏")


def bar_cells(ledger: Iterable[LedgerLine], width: int) -> list[tuple[LedgerLine, int]]:
    """Return the number of cells for each line of the ledger; the numbers sum to `width`.

    A line with more than a quarter of a cell gets at least one, and the largest remainders get the cells that
    rounding leaves over.
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


def _fitting(outcome: PlanOutcome, plan: MemoryPlan, verbose: bool) -> RenderableType:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row(
        "strategy", Text.assemble((plan.strategy, "bold green"), f" with {plan.state_dtype} states")
    )
    if verbose:
        facts.add_row("because", Text(plan.reason))
    facts.add_row("running", _running(outcome, plan))
    if verbose:
        kv = f"KV {binary_size(plan.kv_bytes_per_token)} per token" if plan.page_bytes else "no attention KV"
        facts.add_row(
            "a sequence", f"state {binary_size(plan.state_bytes)} x {plan.slots_per_sequence} slots, {kv}"
        )
        facts.add_row(
            "arena",
            f"{binary_size(plan.arena_bytes)} = {plan.slabs:,} slabs of {binary_size(plan.slab_bytes)}: "
            f"{plan.slots:,} slots and {plan.pages:,} pages, shared without a fixed ratio",
        )
        facts.add_row(
            "overlap",
            "on: step n+1 is planned while step n runs" if plan.overlap else "off: one step after the other",
        )
    elif outcome.constraints.prefix_caching:
        facts.add_row(
            "cache",
            f"{plan.checkpoints:,} reusable checkpoints; {plan.expected_saved:.0%} of prompt tokens resumed "
            "if the traffic is as assumed"
            if plan.checkpoints
            else f"nothing is resumed while all {plan.planned_running:,} sequences run; fewer leave room "
            "for checkpoints; --verbose shows how many, and why",
        )
    for name, words in (*_handed_over(plan), *_tiers(plan)):
        facts.add_row(name, words)
    facts.add_row("longest", f"{plan.max_model_len:,} tokens")
    parts: list[RenderableType] = [facts, *_memory(outcome, plan, verbose)]
    if notes := (*outcome.notes, *plan.notes):
        parts += [Text(f"note: {note}", style="yellow") for note in notes]
    if plan.rejected and verbose:
        parts += [Text(), Text("not chosen", style="bold"), _rejected(plan)]
    if verbose and (plan.one_size_down or plan.one_size_up):
        parts += [Text(), Text("one GPU size down and up", style="bold"), *_other_sizes(outcome, plan)]
    return Group(*parts)


def _handed_over(plan: MemoryPlan) -> Iterator[tuple[str, str]]:
    """Yield the row about what an engine of a pool receives or hands over."""
    each = f"beside {plan.planned_running:,} running"
    if plan.role == "decode":
        yield "receiving", f"{plan.receptions:,} {_noun('state', plan.receptions)} at once, {each}"
    if plan.role == "prefill":
        yield "handed over", f"{plan.exports:,} {_noun('state', plan.exports)} kept for readers, {each}"


def _tiers(plan: MemoryPlan) -> Iterator[tuple[str, str]]:
    """Yield one row for each tier below the arena."""
    for tier in plan.tiers:
        name = "host memory" if tier.tier == "hostMemory" else tier.tier
        states = f"{tier.states:,} {_noun('state', tier.states)} of {plan.workload.lengths} tokens"
        yield name, f"{binary_size(tier.bytes)}, {states}"


def _noun(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _running(outcome: PlanOutcome, plan: MemoryPlan) -> str:
    match plan.binding_constraint:
        case "default limit":
            why = f"the default on {'CPUs' if outcome.device.kind == 'cpu' else 'GPUs'}"
        case "configured limit":
            why = "as configured"
        case resource:
            why = f"bound by {resource}"
    count = plan.max_running_requests
    noun = "sequence" if count == 1 else "sequences"
    words = f"{count:,} {noun} of {plan.workload.lengths} tokens at once, {why}"
    return words if plan.planned_running == count else f"{words}; cache sized for {plan.planned_running:,}"


def _memory(outcome: PlanOutcome, plan: MemoryPlan, verbose: bool) -> Iterable[RenderableType]:
    of_device = ""
    if outcome.constraints.arena_bytes is None:
        device = "GPU" if outcome.device.kind == "cuda" else "main memory"
        if device != "GPU" and not outcome.device.declared:
            device = f"free {device}"
        of_device = f" of {binary_size(outcome.device.memory)} {device}"
    used = plan.budget_bytes - plan.unused_bytes
    yield Text.assemble(("memory ", "bold"), f"{binary_size(used)}{of_device}")
    yield _Bar(plan.ledger)
    filled = [line for line in plan.ledger if line.bytes]
    if not verbose:
        entries = []
        for line in filled:
            pattern, colour, name = _LOOK.get(line.item, ("?", "white", line.item))
            entries.append(Text.assemble((pattern, colour), f" {name} {binary_size(line.bytes)}"))
        yield Padding(Columns(entries, padding=(0, 2)), (0, 0, 0, 1))
        return
    legend = Table.grid(padding=(0, 2))
    for line in filled:
        pattern, colour, name = _LOOK.get(line.item, ("?", "white", line.item))
        share = line.bytes / plan.budget_bytes
        legend.add_row(
            Text(pattern * 2, style=colour), name, Text(binary_size(line.bytes), justify="right"),
            Text(f"{share:6.1%}", style="dim"),
        )  # fmt: skip
    yield Padding(legend, (0, 0, 0, 1))


def _rejected(plan: MemoryPlan) -> RenderableType:
    """Return one line for each rejected choice; long reasons wrap, names are never cut."""
    return Group(
        *(
            Padding(
                Text(f"{choice.strategy}, {choice.state_dtype}: {choice.reason}", style="dim"), (0, 0, 0, 1)
            )
            for choice in plan.rejected
        )
    )


def _other_sizes(outcome: PlanOutcome, plan: MemoryPlan) -> Iterable[RenderableType]:
    """Return a table of this plan between the plans for the next smaller and the next larger GPU."""
    columns = [(outcome.device.memory, _this(plan))]
    if (down := plan.one_size_down) is not None:
        columns.insert(0, (down.memory, _other(down)))
    if (up := plan.one_size_up) is not None:
        columns.append((up.memory, _other(up)))
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    for memory, _ in columns:
        table.add_column(binary_size(memory), overflow="fold")
    names = ("strategy", "states", "at once", "slots", "pages", "longest", "checkpoints", "resumed")
    for name, row in zip(names, zip(*(numbers for _, numbers in columns), strict=True), strict=True):
        table.add_row(name, *row)
    yield Padding(table, (0, 0, 0, 1))
    for size in (down, up):
        if size is not None and size.chosen is None:
            line = f"{binary_size(size.memory)} does not fit: {size.misfit}"
            yield Padding(Text(line, style="dim"), (0, 0, 0, 1))


def _this(plan: MemoryPlan) -> Iterable[str]:
    counts = (plan.max_running_requests, plan.slots, plan.pages, plan.max_model_len, plan.checkpoints)
    return _numbers(plan.strategy, plan.state_dtype, counts, plan.expected_saved)


def _other(size: OtherSize) -> Iterable[str]:
    if (chosen := size.chosen) is None:
        return ("does not fit", *[""] * 7)
    counts = (chosen.running, chosen.slots, chosen.pages, chosen.max_model_len, chosen.checkpoints)
    return _numbers(chosen.strategy, chosen.state_dtype, counts, chosen.saved)


def _numbers(strategy: str, states: str, counts: Iterable[int], saved: float) -> Iterable[str]:
    return (strategy, states, *(f"{count:,}" for count in counts), f"{saved:.0%}")


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
