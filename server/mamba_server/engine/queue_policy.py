"""Who starts next: fair between flows, cache-aware within one, and nobody waits for ever.

A flow is one priority of one cache salt. Between flows: weighted fair queueing by start tags (Goyal, Vin and
Cheng, 1996) over the prompt tokens that were really computed, piece by piece, so a long prompt that is being
computed and prompts that wait take turns; a priority step is worth a factor in weight, so that a low priority
is slow but never starved. Within a flow: the longest resumable prefix of the oldest few goes first, but the
oldest is passed over a bounded number of times. Pure; ages are counted in admissions. No call takes longer
for more flows than the logarithm of their number.
"""

import bisect
import heapq
from collections.abc import Callable, Iterator

from mamba_server.engine.sequence import Sequence
from mamba_server.engine.shared_prefix import AwaitedCheckpoint

WINDOW = 8
"""How many of the oldest of a flow are compared."""
MOST_PASSES = 4
"""How often the oldest of a flow may see a younger one go first."""
PRIORITY_FACTOR = 4.0
"""Weight of a flow against that of the next lower priority."""
LEAST_COST = 16
"""Tokens charged for a start that recomputes nothing: a place in the batch costs too."""

FlowKey = tuple[int, str]
"""Priority and salt."""
Turn = tuple[float, FlowKey]
"""When a flow comes: the smallest first. Equal claims go by priority, with which the key begins."""


class Flow:
    """One priority and salt: waiting sequences, oldest first, and how many are being prefilled."""

    __slots__ = ("items", "key", "listed", "passes", "prefills", "start", "weight")

    def __init__(self, key: FlowKey, weight: float, start: float) -> None:
        self.key = key
        self.items: list[Sequence] = []
        self.prefills = 0
        self.weight = weight
        self.start = start
        """Virtual time at which its next piece starts."""
        self.listed: float | None = None
        """The start under which the queue has it in its heap; None = not there."""
        self.passes = 0

    @property
    def active(self) -> bool:
        """It has something to compute."""
        return bool(self.items) or self.prefills > 0

    def ready(self, limit: int) -> list[Sequence]:
        """The oldest `limit` that could start now."""
        out: list[Sequence] = []
        for sequence in self.items:
            if sequence.leader is not None and not sequence.leader.prompt_done:
                # Siblings resume from the checkpoint that their leader's prefill leaves.
                continue
            if sequence.in_flight:
                # Preempted, and its last token has not come back yet.
                continue
            out.append(sequence)
            if len(out) == limit:
                break
        return out


class WaitingQueue:
    """All waiting sequences. A preempted one keeps its age."""

    def __init__(self) -> None:
        self._flows: dict[FlowKey, Flow] = {}
        self._turns: list[Turn] = []
        """A heap of flows with waiting sequences; an entry counts while its flow is `listed` under it."""
        self._idle: list[Turn] = []
        """A heap of flows that had nothing to compute: forgotten once they owe nothing either."""
        self._active_weight = 0.0
        """Of all active flows; weights are powers of two, so the sum is exact."""
        self._deferred: dict[AwaitedCheckpoint, list[Sequence]] = {}
        self._virtual = 0.0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for flow in self._flows.values():
            yield from flow.items
        for held in self._deferred.values():
            yield from held

    def push(self, sequence: Sequence) -> None:
        flow = self._flow(sequence)
        if not flow.active:
            # Time spent empty earns nothing.
            flow.start = max(flow.start, self._virtual)
            self._active_weight += flow.weight
        bisect.insort(flow.items, sequence, key=lambda each: each.order)
        self._count += 1
        self._list(flow)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that starts or was aborted."""
        self._count -= 1
        if sequence.deferred:
            for held in self._deferred.values():
                if sequence in held:
                    held.remove(sequence)
                    return
        flow = self._flow(sequence)
        flow.items.remove(sequence)
        self._resort(flow)

    def defer(self, sequence: Sequence, awaited: AwaitedCheckpoint) -> None:
        """Defer `sequence` until the checkpoint `awaited` exists or is no longer coming."""
        self.remove(sequence)
        sequence.deferred = True
        self._deferred.setdefault(awaited, []).append(sequence)
        self._count += 1

    def release(self) -> bool:
        """Requeue deferred sequences whose checkpoint exists or is no longer coming; whether there were
        any."""
        due = [each for each in self._deferred if not each.coming]
        for awaited in due:
            for sequence in self._deferred.pop(awaited):
                self._count -= 1
                self.push(sequence)
        return bool(due)

    def turn(self, sequence: Sequence) -> Turn:
        """Turn of the flow of `sequence`, which is being prefilled."""
        flow = self._flow(sequence)
        return flow.start, flow.key

    def pick(self, resumable: Callable[[Sequence], int], before: Turn | None = None) -> Sequence | None:
        """The sequence to start next, of the flows `before` that turn; `resumable`: tokens that it can
        resume."""
        unready: list[Flow] = []
        picked: Sequence | None = None
        while self._turns:
            start, key = self._turns[0]
            flow = self._flows.get(key)
            if flow is not None and flow.items and flow.listed == start == flow.start:
                if before is not None and (start, key) >= before:
                    break
                ready = flow.ready(WINDOW if flow.passes < MOST_PASSES else 1)
                if ready:
                    picked = (
                        ready[0] if len(ready) == 1 else max(ready, key=lambda s: (resumable(s), -s.order))
                    )
                    break
                unready.append(flow)
            heapq.heappop(self._turns)
            if flow is not None and flow.listed == start:
                flow.listed = None
        for flow in unready:
            self._list(flow)
        return picked

    def beside(self, sequence: Sequence) -> list[Sequence]:
        """The oldest others of its flow."""
        return [each for each in self._flow(sequence).items[: WINDOW + 1] if each is not sequence]

    def started(self, sequence: Sequence, computed: int) -> None:
        """`sequence` was picked, removed and starts with a piece of `computed` tokens: its flow pays."""
        flow = self._flow(sequence)
        older = bool(flow.items) and flow.items[0].order < sequence.order
        flow.passes = flow.passes + 1 if older else 0
        if not flow.active:
            self._active_weight += flow.weight
        flow.prefills += 1
        self.charge(sequence, max(LEAST_COST, computed))

    def charge(self, sequence: Sequence, computed: int) -> None:
        """The next piece of `sequence`, of `computed` tokens, starts: its flow pays."""
        flow = self._flow(sequence)
        # Time passes for everybody as work is done, so ever new flows cannot starve one that has to wait.
        self._virtual = max(self._virtual, flow.start) + computed / self._active_weight
        flow.start += computed / flow.weight
        self._list(flow)
        self._forget_idle()

    def prefilled(self, sequence: Sequence) -> None:
        """Nothing of the started `sequence` is left to compute, or it was preempted."""
        flow = self._flow(sequence)
        flow.prefills -= 1
        self._resort(flow)

    def _flow(self, sequence: Sequence) -> Flow:
        key = (sequence.priority, sequence.salt)
        if key not in self._flows:
            # Exponents are clamped: whatever a client sends, weights stay ordinary numbers.
            weight = PRIORITY_FACTOR ** -max(-8, min(8, sequence.priority))
            self._flows[key] = Flow(key, weight, self._virtual)
        return self._flows[key]

    def _list(self, flow: Flow) -> None:
        if flow.items and flow.listed != flow.start:
            flow.listed = flow.start
            heapq.heappush(self._turns, (flow.start, flow.key))

    def _resort(self, flow: Flow) -> None:
        if not flow.active:
            self._active_weight -= flow.weight
            heapq.heappush(self._idle, (flow.start, flow.key))

    def _forget_idle(self) -> None:
        """A salt seen once is not kept for ever: flows that neither have work nor owe anything go."""
        while self._idle and self._idle[0][0] <= self._virtual:
            _, key = heapq.heappop(self._idle)
            flow = self._flows.get(key)
            if flow is None or flow.active:
                continue
            if flow.start <= self._virtual:
                del self._flows[key]
            else:
                heapq.heappush(self._idle, (flow.start, key))
