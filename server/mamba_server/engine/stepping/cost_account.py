"""`CostAccount`: shares the time and memory of an engine out among its sequences. Pure: times are parameters.

The core calls it with each step that ends and each sequence that leaves its memory. All amounts are integers
of nanoseconds, so the totals are exactly the sums of what sequences were charged.

A step's time is shared out among its rows by weight. A prompt's piece weighs its work: one for each token,
and the work of attention for each token before it. A decode weighs its tokens, drafts included, each as much
as a token of a prompt at that depth. Reading the weights of the model costs a step the same whatever is in
it, so in a step with both kinds the decodes share the measured time of a step that only decodes, and the
pieces share the rest.
"""

from collections import defaultdict
from collections.abc import Sequence as SequenceOf

from mamba_planner.arithmetic import prefill_work
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.stepping.prefill_speed import MIN_PROMPT_SHARE, PrefillSpeed
from mamba_server.wire import Cost

NANOSECONDS = 1_000_000_000


class CostAccount:
    """Charges each sequence of one engine for its use, and adds the costs up by account.

    `speed` is the engine's measured speed.
    """

    def __init__(self, speed: PrefillSpeed) -> None:
        self._speed = speed
        self._total = [0, 0, 0, 0]
        self._unreported: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """Device, slots, pages and savings by account since the last `take`."""

    def counters(self) -> dict[str, float]:
        """Return the totals since the start, as counters of seconds."""
        names = ("device_seconds", "slot_seconds", "page_seconds", "saved_device_seconds")
        return {
            f"{name}_total": amount / NANOSECONDS for name, amount in zip(names, self._total, strict=True)
        }

    @property
    def total(self) -> Cost:
        """Total since the start."""
        return Cost(*self._total)

    def take(self) -> list[tuple[int, Cost]]:
        """Return the costs of each account since the last call."""
        costs = [(account, Cost(*amounts)) for account, amounts in self._unreported.items()]
        self._unreported.clear()
        return costs

    def begin(self, sequence: Sequence, now: float) -> None:
        """Record that a sequence may hold memory from `now` (in seconds) on.

        The first time, also record the computation that it saved by resuming.
        """
        cost, allocation = sequence.cost, sequence.allocation
        if allocation is None or cost.holds:
            return
        cost.look(allocation, _nanoseconds(now))
        speed = self._speed.tokens_per_second
        if sequence.cached_tokens and sequence.leader is None and not cost.saved and speed > 0:
            work = prefill_work(0, sequence.cached_tokens, self._speed.ratio)
            cost.saved = saved = round(work / speed * NANOSECONDS)
            self._add(cost.account, (0, 0, 0, saved))

    def step_ended(self, schedule: Schedule, seconds: float, now: float) -> None:
        """Charge the members of a step that took `seconds`, and the prompts' memory until `now` (seconds)."""
        time, unreported = _nanoseconds(max(0.0, seconds)), self._unreported
        self._total[0] += time
        shares = step_shares(schedule, time, self._speed)
        # Each row of each step comes here. One that has ended meanwhile was in the step all the same.
        for sequence, share in zip(schedule.members, shares, strict=True):
            cost = sequence.cost
            cost.device += share
            unreported[cost.account][0] += share
        for piece in schedule.pieces:
            self.look(piece.sequence, now)

    def look(self, sequence: Sequence, now: float) -> None:
        """Charge a sequence for the memory that it has held since the last charge until `now` (seconds)."""
        cost, allocation = sequence.cost, sequence.allocation
        if allocation is not None and cost.holds:
            self._add(cost.account, (0, *cost.look(allocation, _nanoseconds(now)), 0))

    def reported(self, sequence: Sequence, now: float) -> Cost | None:
        """Return the cost of a sequence until `now` (seconds); None = its client does not want to know."""
        if not sequence.reports_cost:
            return None
        self.look(sequence, now)
        return sequence.cost.total()

    def leave(self, sequence: Sequence, now: float) -> None:
        """Charge a sequence that is about to give its memory back at `now`, in seconds."""
        self.look(sequence, now)
        sequence.cost.leave()

    def _add(self, account: int, amounts: tuple[int, int, int, int]) -> None:
        for sums in (self._unreported[account], self._total):
            for place, amount in enumerate(amounts):
                sums[place] += amount


def step_shares(schedule: Schedule, time: int, speed: PrefillSpeed) -> list[int]:
    """Return the part of `time` of each member of a step; the parts add up to it."""
    ratio, drafts = speed.ratio, {draft.index: len(draft.tokens) for draft in schedule.drafts}
    decodes = [1.0 + ratio * sequence.known_tokens for sequence in schedule.decodes]
    for index, tokens in drafts.items():
        decodes[index] *= 1 + tokens
    pieces = [prefill_work(piece.start, piece.stop, ratio) for piece in schedule.pieces]
    if not (decodes and pieces and speed.decode_seconds):
        return _split(time, decodes + pieces)
    alone = min(_nanoseconds(speed.decode_seconds), round((1 - MIN_PROMPT_SHARE) * time))
    return _split(alone, decodes) + _split(time - alone, pieces)


def _split(time: int, weights: SequenceOf[float]) -> list[int]:
    """Split an amount in proportion to weights. The parts add up to it exactly."""
    unit = time / sum(weights) if weights else 0.0
    parts, passed, reached = [], 0, 0.0
    for weight in weights:
        reached += weight * unit
        until = int(reached)
        parts.append(until - passed)
        passed = until
    if parts:
        parts[-1] += time - passed
    return parts


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS)
