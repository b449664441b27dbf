"""Report of `plan --trace`: a table for people, a document for programs. It renders and decides nothing."""

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
    """The result of a sizing together with its question, as a table or a document."""

    model: str
    trace: str
    requests: int
    """Requests of the trace."""
    simulated: int
    """Requests that were simulated."""
    hours: float
    """Hours that the trace takes."""
    slo: Slo
    answer: SizingResult
    identity: bool
    """Whether the trace says which prompts share a prefix."""
    seed: int
    not_served: str | None = None
    """Reason why this version's engine cannot serve the model, or None."""
    left_out: int = 0
    """Requests of the trace that cannot be simulated."""

    @property
    def priced(self) -> bool:
        """Whether the user gave prices."""
        return any(candidate.gpu.price is not None for candidate in self.answer.candidates)

    @property
    def notes(self) -> list[str]:
        """Remarks that a reader of the numbers has to know."""
        notes = [f"speeds are assumed, not measured: each GPU by its {ASSUMED}"]
        if self.simulated < self.requests:
            notes.append(
                f"simulated: the busiest {self.simulated:,} requests in a row of {self.requests:,}; "
                "--requests 0 takes all"
            )
        if self.left_out:
            notes.append(
                f"left out: {self.left_out:,} requests without a prompt or with hash_ids that do not fit it"
            )
        if not self.identity:
            notes.append("nothing is resumed: the trace does not say which prompts share a prefix")
        if self.not_served is not None:
            notes.insert(0, f"not served: {self.not_served}")
        return notes

    def to_json(self) -> dict[str, Any]:
        """Return the document of `--output json`."""
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
            "candidates": [self._candidate(candidate) for candidate in self.answer.candidates],
            "notes": self.notes,
        }

    def _candidate(self, candidate: FleetCandidate) -> dict[str, Any]:
        gpu_hours = candidate.served.engines * self.hours if candidate.served else None
        document: dict[str, Any] = {
            "gpu": candidate.gpu.name,
            "strategy": candidate.strategy,
            "gpus": candidate.served.engines if candidate.served else None,
            "gpuHours": round(gpu_hours, 3) if gpu_hours is not None else None,
        }
        if self.priced:
            document["cost"] = round(gpu_hours * candidate.price, 3) if gpu_hours is not None else None
        document["served"] = _served(candidate.served)
        document["servedAtTwiceTheLoad"] = _served(candidate.doubled)
        document["tried"] = [{"gpus": run.engines, "attainment": run.attainment} for run in candidate.runs]
        if candidate.why_not is not None:
            document["whyNot"] = candidate.why_not
        return document

    def view(self) -> RenderableType:
        """Return the table, the choice in words, and the notes."""
        table = Table(title=f"{self.model} over {self.trace}", title_justify="left")
        table.add_column("", no_wrap=True)
        for name in ("GPU", "strategy"):
            table.add_column(name, no_wrap=True)
        heads = ["GPUs", "GPU-h", *(["cost"] if self.priced else []), "at 1x", f"at {SURPLUS:g}x"]
        for name in (*heads, "hits", "TTFT p95"):
            table.add_column(name, justify="right")
        missing: dict[tuple[str, str], list[str]] = {}
        for candidate in self.answer.candidates:
            best = candidate is self.answer.chosen
            gpu, result = candidate.gpu, candidate.served
            if result is None or candidate.doubled is None:
                missing.setdefault((gpu.name, candidate.why_not or ""), []).append(candidate.strategy)
                continue
            gpu_hours = result.engines * self.hours
            table.add_row(
                "→" if best else "", gpu.name, candidate.strategy, f"{result.engines}", f"{gpu_hours:.2f}",
                *([f"{gpu_hours * candidate.price:.2f}"] if self.priced else []),
                f"{result.attainment:.1%}", f"{candidate.doubled.attainment:.1%}", f"{result.hit_rate:.0%}",
                f"{result.ttft_p95:.2f} s", style="bold green" if best else None,
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


def _served(result: FleetResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    return {
        "attainment": result.attainment,
        "tokenHitRate": result.hit_rate,
        "ttftP50Seconds": result.ttft_p50,
        "ttftP95Seconds": result.ttft_p95,
    }
