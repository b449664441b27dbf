"""`DraftCounts`: what became of the drafts of one engine since its start, by kind. Pure.

Each source of drafts has one, and its counters are those of the engine's metrics.
"""

from collections import defaultdict

from mamba_server.engine.sequences.schedule import Schedule


class DraftCounts:
    """Counts, for metrics, how many tokens one source drafted and how many of these were right."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds
        self._drafted: defaultdict[str, int] = defaultdict(int)
        self._accepted: defaultdict[str, int] = defaultdict(int)
        self._absorbed = self._steps = 0

    def checked(self, kind: str, drafted: int, accepted: int) -> None:
        """Count a draft of `drafted` tokens, of which `accepted` were right."""
        self._drafted[kind] += drafted
        self._accepted[kind] += accepted

    def step_ended(self, schedule: Schedule) -> None:
        """Count the accepted drafts that a step computed into states; count the step if it checked drafts."""
        if schedule.absorbed:
            self._absorbed += sum(each.count for each in schedule.absorbed)
        self._steps += bool(schedule.drafts)

    def counters(self) -> dict[str, float]:
        """Return the series of the counts, by name."""
        counters: dict[str, float] = {}
        for kind in self._kinds:
            counters[f"draft_tokens_total{{kind={kind}}}"] = self._drafted[kind]
            counters[f"accepted_draft_tokens_total{{kind={kind}}}"] = self._accepted[kind]
        counters["absorbed_draft_tokens_total"] = self._absorbed
        counters["draft_steps_total"] = self._steps
        return counters
