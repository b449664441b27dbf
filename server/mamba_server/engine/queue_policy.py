"""Who starts next: fair between flows, cache-aware within one, and nobody waits for ever.

A flow is one priority of one cache salt. Between flows: weighted fair queueing by start tags (Goyal, Vin and
Cheng, 1996) over the prompt tokens that were really computed; a priority step is worth a factor in weight, so
that a low priority is slow but never starved. Within a flow: the longest resumable prefix of the oldest few
goes first, but the oldest is passed over a bounded number of times. Pure; ages are counted in admissions.
"""

import bisect
from collections.abc import Callable, Iterator

from mamba_server.engine.sequence import Sequence
from mamba_server.engine.shared_prefix import Awaited

WINDOW = 8
"""How many of the oldest of a flow are compared."""
MOST_PASSES = 4
"""How often the oldest of a flow may see a younger one go first."""
PRIORITY_FACTOR = 4.0
"""Weight of a flow against that of the next lower priority."""
LEAST_COST = 16
"""Tokens charged for a start that recomputes nothing: a place in the batch costs too."""


class Flow:
    """Waiting sequences of one priority and salt, oldest first."""

    __slots__ = ("items", "passes", "start", "weight")

    def __init__(self, weight: float, start: float) -> None:
        self.items: list[Sequence] = []
        self.weight = weight
        self.start = start
        """Virtual time at which its next sequence starts."""
        self.passes = 0

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
        self._flows: dict[tuple[int, str], Flow] = {}
        self._held: dict[Awaited, list[Sequence]] = {}
        self._virtual = 0.0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for flow in self._flows.values():
            yield from flow.items
        for held in self._held.values():
            yield from held

    def push(self, sequence: Sequence) -> None:
        flow = self._flow(sequence)
        if not flow.items:
            # Time spent empty earns nothing.
            flow.start = max(flow.start, self._virtual)
        bisect.insort(flow.items, sequence, key=lambda each: each.order)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """It starts, or its client is gone."""
        self._count -= 1
        if sequence.put_off:
            for held in self._held.values():
                if sequence in held:
                    held.remove(sequence)
                    return
        self._flow(sequence).items.remove(sequence)

    def hold(self, sequence: Sequence, awaited: Awaited) -> None:
        """Put `sequence` off until the checkpoint `awaited` is there, or will never be."""
        self.remove(sequence)
        sequence.put_off = True
        self._held.setdefault(awaited, []).append(sequence)
        self._count += 1

    def release(self) -> None:
        """Whose checkpoint is no longer coming takes its old place again."""
        for awaited in [each for each in self._held if not each.coming]:
            for sequence in self._held.pop(awaited):
                self._count -= 1
                self.push(sequence)

    def pick(self, resumable: Callable[[Sequence], int]) -> Sequence | None:
        """Who starts next; `resumable` tells how many tokens of a sequence need no computing."""
        # Equal claims go by priority: the key of a flow begins with it.
        for _, flow in sorted(self._flows.items(), key=lambda each: (each[1].start, each[0])):
            ready = flow.ready(WINDOW if flow.passes < MOST_PASSES else 1)
            if ready:
                return ready[0] if len(ready) == 1 else max(ready, key=lambda s: (resumable(s), -s.order))
        return None

    def beside(self, sequence: Sequence) -> list[Sequence]:
        """The oldest others of its flow."""
        return [each for each in self._flow(sequence).items[: WINDOW + 1] if each is not sequence]

    def started(self, sequence: Sequence, computed: int) -> None:
        """`sequence` was picked, removed and starts with `computed` tokens to compute: its flow pays."""
        flow = self._flow(sequence)
        cost = max(LEAST_COST, computed)
        waiting = sum(each.weight for each in self._flows.values() if each.items and each is not flow)
        # Time passes for everybody as work is done, so ever new flows cannot starve one that has to wait.
        self._virtual = max(self._virtual, flow.start) + cost / (flow.weight + waiting)
        flow.start += cost / flow.weight
        older = bool(flow.items) and flow.items[0].order < sequence.order
        flow.passes = flow.passes + 1 if older else 0
        self._forget_idle()

    def _flow(self, sequence: Sequence) -> Flow:
        key = (sequence.priority, sequence.salt)
        if key not in self._flows:
            # Exponents are clamped: whatever a client sends, weights stay ordinary numbers.
            weight = PRIORITY_FACTOR ** -max(-8, min(8, sequence.priority))
            self._flows[key] = Flow(weight, self._virtual)
        return self._flows[key]

    def _forget_idle(self) -> None:
        """A salt seen once is not kept for ever: flows that neither hold nor owe anything go."""
        if len(self._flows) > 64:
            idle = [
                key for key, flow in self._flows.items() if not flow.items and flow.start <= self._virtual
            ]
            for key in idle:
                del self._flows[key]
