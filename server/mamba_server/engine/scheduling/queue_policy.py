"""Who starts next: fair between clients, and between flows of one; cache-aware within a flow; nobody waits
for ever.

A flow is one priority of one cache salt of one client. Clients take turns by the prompt tokens that were
really computed for them, piece by piece, so a long prompt that is being computed and prompts that wait take
turns; within a client its flows do, where a priority step is worth a factor in weight, so that a low
priority is slow but never starved. What a client writes decides among its own requests alone. Within a flow:
the longest resumable prefix of the oldest few goes first, but the oldest is passed over a bounded number of
times. Pure; ages are counted in admissions.
"""

import bisect
from collections.abc import Callable, Iterator

from mamba_server.engine.scheduling.fair_turns import FairTurns, Member
from mamba_server.engine.scheduling.shared_prefix import AwaitedCheckpoint
from mamba_server.engine.sequences.sequence import Sequence

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
Turn = tuple[float, str, float, FlowKey]
"""When a flow comes: start and name of its client, then its own. The smallest first; equal claims of one
client go by priority, with which the key begins."""


class Flow(Member[FlowKey]):
    """One priority and salt: waiting sequences, oldest first, and how many are being prefilled."""

    __slots__ = ("items", "passes", "prefills")

    def __init__(self, key: FlowKey, start: float) -> None:
        # Exponents are clamped: whatever a client sends, weights stay ordinary numbers.
        super().__init__(key, PRIORITY_FACTOR ** -max(-8, min(8, key[0])), start)
        self.items: list[Sequence] = []
        self.prefills = 0
        self.passes = 0

    @property
    def waits(self) -> bool:
        return bool(self.items)

    @property
    def active(self) -> bool:
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


class Client(Member[str]):
    """The flows of one client; all clients have the same weight."""

    __slots__ = ("active_flows", "flows", "waiting")

    def __init__(self, key: str, start: float) -> None:
        super().__init__(key, 1.0, start)
        self.flows: FairTurns[FlowKey, Flow] = FairTurns(Flow)
        self.waiting = 0
        """Sequences in its flows that wait."""
        self.active_flows = 0

    @property
    def waits(self) -> bool:
        return self.waiting > 0

    @property
    def active(self) -> bool:
        return self.active_flows > 0


class WaitingQueue:
    """All waiting sequences. A preempted one keeps its age."""

    def __init__(self) -> None:
        self._clients: FairTurns[str, Client] = FairTurns(Client)
        self._deferred: dict[AwaitedCheckpoint, list[Sequence]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for client in self._clients.members.values():
            for flow in client.flows.members.values():
                yield from flow.items
        for held in self._deferred.values():
            yield from held

    def push(self, sequence: Sequence) -> None:
        client, flow = self._place(sequence)
        if not flow.active:
            if not client.active:
                self._clients.begin(client)
            client.flows.begin(flow)
            client.active_flows += 1
        bisect.insort(flow.items, sequence, key=lambda each: each.order)
        client.waiting += 1
        self._count += 1
        client.flows.offer(flow)
        self._clients.offer(client)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that starts or was aborted."""
        self._count -= 1
        if sequence.deferred:
            for held in self._deferred.values():
                if sequence in held:
                    held.remove(sequence)
                    return
        client, flow = self._place(sequence)
        flow.items.remove(sequence)
        client.waiting -= 1
        self._rest(client, flow)

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
        client, flow = self._place(sequence)
        return client.start, client.key, flow.start, flow.key

    def pick(self, resumable: Callable[[Sequence], int], before: Turn | None = None) -> Sequence | None:
        """The sequence to start next, of the flows `before` that turn; `resumable`: tokens that it can
        resume."""

        def of_flow(flow: Flow) -> Sequence | None:
            ready = flow.ready(WINDOW if flow.passes < MOST_PASSES else 1)
            if len(ready) < 2:
                return ready[0] if ready else None
            return max(ready, key=lambda s: (resumable(s), -s.order))

        def of_client(client: Client) -> Sequence | None:
            if before is None or (client.start, client.key) != before[:2]:
                return client.flows.pick(of_flow)
            return client.flows.pick(of_flow, before[2:], before_last=True)

        return self._clients.pick(of_client, before[:2] if before is not None else None)

    def beside(self, sequence: Sequence) -> list[Sequence]:
        """The oldest others of its flow."""
        _, flow = self._place(sequence)
        return [each for each in flow.items[: WINDOW + 1] if each is not sequence]

    def started(self, sequence: Sequence, computed: int) -> None:
        """`sequence` was picked, removed and starts with a piece of `computed` tokens: its flow pays."""
        client, flow = self._place(sequence)
        older = bool(flow.items) and flow.items[0].order < sequence.order
        flow.passes = flow.passes + 1 if older else 0
        if not flow.active:
            if not client.active:
                self._clients.go_on(client)
            client.flows.go_on(flow)
            client.active_flows += 1
        flow.prefills += 1
        self.charge(sequence, max(LEAST_COST, computed))

    def charge(self, sequence: Sequence, computed: int) -> None:
        """The next piece of `sequence`, of `computed` tokens, starts: its flow and its client pay."""
        client, flow = self._place(sequence)
        client.flows.charge(flow, computed)
        self._clients.charge(client, computed)

    def prefilled(self, sequence: Sequence) -> None:
        """Nothing of the started `sequence` is left to compute, or it was preempted."""
        client, flow = self._place(sequence)
        flow.prefills -= 1
        self._rest(client, flow)

    def _place(self, sequence: Sequence) -> tuple[Client, Flow]:
        client = self._clients.of(sequence.client)
        return client, client.flows.of((sequence.priority, sequence.salt))

    def _rest(self, client: Client, flow: Flow) -> None:
        if flow.active:
            return
        client.active_flows -= 1
        client.flows.rest(flow)
        self._clients.rest(client)
