"""The stages in the order in which they run, with their limits and files. Free of torch."""

from dataclasses import dataclass

SECONDS = 560.0
"""The time for all stages unless `--seconds` says otherwise."""
CASE_SECONDS = 20.0
"""The time for one case; a case that needs more says so."""
START_SECONDS = 60.0
"""The time from the start of a child to its first case: torch is imported and the device is opened."""
SUMMARY = "summary.json"
LOG = "log.txt"


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the measurement, which a child process runs."""

    name: str
    seconds: float
    """Limit where all stages have `SECONDS` together; other totals scale it."""
    file: str
    """JSON Lines file for the stage's cases. Two stages may share a file."""


STAGES = (
    Stage("machine", 20, "machine.jsonl"),
    Stage("compile", 60, "machine.jsonl"),
    Stage("correct", 80, "correct.jsonl"),
    Stage("kernels", 120, "kernels.jsonl"),
    Stage("steps", 100, "steps.jsonl"),
    Stage("engine", 120, "engine.jsonl"),
    Stage("tune", 60, "kernels.jsonl"),
)


def stage_named(name: str) -> Stage:
    """Return the stage of that name. Raises KeyError."""
    return {stage.name: stage for stage in STAGES}[name]
