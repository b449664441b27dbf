"""The answer of `plan --trace`: a table for people, a document for programs. Renders; decides nothing."""

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mamba_cli.fleet.size_search.roofline import ASSUMED
from mamba_cli.fleet.size_search.sizing import SURPLUS, FleetCandidate, FleetResult, SizingResult
from mamba_cli.fleet.slo import GOAL, Slo


@dataclass(frozen=True, slots=True)
class SizingReport:
    """An answer and what was asked."""

    model: str
    trace: str
    requests: int
    """Of the trace."""
    simulated: int
    hours: float
    """Of the trace."""
    slo: Slo
    answer: SizingResult
    identity: bool
    """The trace says which prompts begin alike."""
    seed: int
    not_served: str | None = None
    """Why this version's engine cannot serve the model."""
    left_out: int = 0
    """Requests of the trace that cannot be played."""

    @property
    def priced(self) -> bool:
        return any(each.gpu.price is not None for each in self.answer.candidates)

    @property
    def notes(self) -> list[str]:
        """What one has to know of the numbers."""
        said = [f"speeds are assumed, not measured: each GPU by its {ASSUMED}"]
        if self.simulated < self.requests:
            said.append(
                f"simulated: the busiest {self.simulated:,} requests in a row of {self.requests:,}; "
                "--requests 0 takes all"
            )
        if self.left_out:
            said.append(
                f"left out: {self.left_out:,} requests without a prompt or longer than their hash_ids"
            )
        if not self.identity:
            said.append("nothing is resumed: the trace does not say which prompts begin alike")
        if self.not_served is not None:
            said.insert(0, f"not served: {self.not_served}")
        return said

    def to_json(self) -> dict[str, Any]:
        """The document of `--output json`."""
        chosen = self.answer.chosen
        return {
            "name": self.model,
            "trace": {
                "name": self.trace,
                "requests": self.requests,
                "simulated": self.simulated,
                "leftOut": self.left_out,
                "hours": round(self.hours, 4),
                "seconds": round(self.hours * 3600, 3),
            },
            "slo": {"ttftSeconds": self.slo.ttft, "tpotSeconds": self.slo.tpot, "attainment": GOAL},
            "seed": self.seed,
            "chosen": None
            if chosen is None or chosen.served is None
            else {
                "gpu": chosen.gpu.name,
                "strategy": chosen.strategy,
                "gpus": chosen.served.engines,
                "gpusAtTwiceTheLoad": self.answer.engines_doubled,
            },
            "candidates": [self._candidate(each) for each in self.answer.candidates],
            "notes": self.notes,
        }

    def _candidate(self, each: FleetCandidate) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "gpu": each.gpu.name,
            "strategy": each.strategy,
            "gpus": each.served.engines if each.served else None,
            "gpuHours": round(each.served.engines * self.hours, 3) if each.served else None,
        }
        if self.priced:
            shown["cost"] = round(each.served.engines * self.hours * each.price, 3) if each.served else None
        shown["served"] = _served(each.served)
        shown["servedAtTwiceTheLoad"] = _served(each.doubled)
        shown["tried"] = [{"gpus": run.engines, "attainment": run.attainment} for run in each.tried]
        if each.why_not is not None:
            shown["whyNot"] = each.why_not
        return shown

    def view(self) -> RenderableType:
        """The table, what is chosen in words, and the notes."""
        table = Table(title=f"{self.model} over {self.trace}", title_justify="left")
        table.add_column("", no_wrap=True)
        for name in ("GPU", "strategy"):
            table.add_column(name, no_wrap=True)
        heads = ["GPUs", "GPU-h", *(["cost"] if self.priced else []), "at 1x", f"at {SURPLUS:g}x"]
        for name in (*heads, "hits", "TTFT p95"):
            table.add_column(name, justify="right")
        missing: dict[tuple[str, str], list[str]] = {}
        for each in self.answer.candidates:
            best = each is self.answer.chosen
            if each.served is None or each.doubled is None:
                missing.setdefault((each.gpu.name, each.why_not or ""), []).append(each.strategy)
                continue
            found, cost = each.served, each.served.engines * self.hours
            table.add_row(
                "→" if best else "", each.gpu.name, each.strategy, f"{found.engines}", f"{cost:.2f}",
                *([f"{cost * each.price:.2f}"] if self.priced else []),
                f"{found.attainment:.1%}", f"{each.doubled.attainment:.1%}", f"{found.hit_rate:.0%}",
                f"{found.ttft_p95:.2f} s", style="bold green" if best else None,
            )  # fmt: skip
        parts: list[RenderableType] = [table] if table.rows else []
        parts.append(Text(self._words()))
        for (kind, why), strategies in missing.items():
            parts.append(Text(f"{kind}, {', '.join(strategies)}: {why}", style="dim"))
        return Group(*parts, *(Text(f"note: {note}", style="yellow") for note in self.notes))

    def _words(self) -> str:
        chosen = self.answer.chosen
        if chosen is None or chosen.served is None or chosen.doubled is None:
            return f"no fleet attains {GOAL:.0%}"
        engines, more = chosen.served.engines, self.answer.engines_doubled
        grown = "no allowed fleet does" if more is None else f"{more} would attain {GOAL:.0%}"
        return (
            f"chosen: {engines} x {chosen.gpu.name} with {chosen.strategy}, the least "
            f"{'cost' if self.priced else 'GPU-hours'}; at {SURPLUS:g}x the load it attains "
            f"{chosen.doubled.attainment:.1%}, and {grown}"
        )


def _served(found: FleetResult | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "attainment": found.attainment,
        "tokenHitRate": found.hit_rate,
        "ttftP50Seconds": found.ttft_p50,
        "ttftP95Seconds": found.ttft_p95,
    }
