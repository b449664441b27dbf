"""Order in which waiting sequences start: fair between clients and flows, cache-aware within a flow.

A flow is one priority of one cache salt of one client. Clients take turns by the prompt tokens that were
really computed for them, piece by piece, so that a long prompt in progress and waiting prompts take turns;
within a client its flows do, where a priority step is a factor of weight, so that a low priority is slow but
never starved. A client's priorities matter among its own requests alone. Within a flow, the longest resumable
prefix of the oldest few goes first, but the oldest is passed over a bounded number of times: no sequence
waits for ever. Pure; ages are counted in admissions.
"""

import bisect
from collections.abc import Callable, Iterator

from mamba_server.engine.scheduling.fair_turns import FairTurns, Member
from mamba_server.engine.scheduling.shared_prefix import AwaitedCheckpoint
from mamba_server.engine.sequences.sequence import Sequence

MAX_COMPARED = 8
"""Number of the oldest sequences of a flow that are compared."""
MAX_PASSES = 4
"""Number of times that the oldest sequence of a flow may be passed over."""
PRIORITY_FACTOR = 4.0
"""Weight of a flow, relative to the weight of a flow of the next lower priority."""
MIN_COST = 16
"""Tokens charged for a start that computes fewer: a place in the batch costs something, too."""

FlowKey = tuple[int, str]
"""Priority and salt."""
Turn = tuple[float, str, float, FlowKey]
"""Turn of a flow: start and name of its client, then its own start and key. The smallest comes first; equal
starts within a client are ordered by priority, with which the key begins."""


class Flow(Member[FlowKey]):
    """The sequences of one client with one priority and one salt, which take turns with its other flows."""

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
        """Return the oldest `limit` sequences that could start now."""
        ready: list[Sequence] = []
        for sequence in self.items:
            if sequence.leader is not None and not sequence.leader.prompt_done:
                # A sibling resumes from the checkpoint that its leader's prefill leaves.
                continue
            if sequence.in_flight:
                # A preempted sequence whose last token has not come back yet.
                continue
            ready.append(sequence)
            if len(ready) == limit:
                break
        return ready


class Client(Member[str]):
    """One client of the waiting queue, with its flows; all clients have equal shares."""

    __slots__ = ("active_flows", "flows", "waiting")

    def __init__(self, key: str, start: float) -> None:
        super().__init__(key, 1.0, start)
        self.flows: FairTurns[FlowKey, Flow] = FairTurns(Flow)
        self.waiting = 0
        """Number of waiting sequences in its flows."""
        self.active_flows = 0

    @property
    def waits(self) -> bool:
        return self.waiting > 0

    @property
    def active(self) -> bool:
        return self.active_flows > 0


class WaitingQueue:
    """Holds all waiting sequences, and says which is to start next: clients take turns, then their flows.

    A preempted sequence keeps its age.
    """

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
        for sequences in self._deferred.values():
            yield from sequences

    def push(self, sequence: Sequence) -> None:
        client, flow = self._place(sequence)
        if not flow.active:
            if not client.active:
                self._clients.begin(client)
            client.flows.begin(flow)
            client.active_flows += 1
        bisect.insort(flow.items, sequence, key=lambda waiting: waiting.order)
        client.waiting += 1
        self._count += 1
        client.flows.offer(flow)
        self._clients.offer(client)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that starts or was aborted."""
        self._count -= 1
        if sequence.deferred:
            for deferred in self._deferred.values():
                if sequence in deferred:
                    deferred.remove(sequence)
                    return
        client, flow = self._place(sequence)
        flow.items.remove(sequence)
        client.waiting -= 1
        self._rest(client, flow)

    def defer(self, sequence: Sequence, checkpoint: AwaitedCheckpoint) -> None:
        """Defer `sequence` until `checkpoint` exists or is no longer coming."""
        self.remove(sequence)
        sequence.deferred = True
        self._deferred.setdefault(checkpoint, []).append(sequence)
        self._count += 1

    def release(self) -> bool:
        """Requeue deferred sequences whose checkpoint exists or is no longer coming.

        Return whether there were any.
        """
        due = [checkpoint for checkpoint in self._deferred if not checkpoint.coming]
        for checkpoint in due:
            for sequence in self._deferred.pop(checkpoint):
                self._count -= 1
                self.push(sequence)
        return bool(due)

    def turn(self, sequence: Sequence) -> Turn:
        """Return the turn of the flow of `sequence`, which is being prefilled."""
        client, flow = self._place(sequence)
        return client.start, client.key, flow.start, flow.key

    def pick(self, resumable: Callable[[Sequence], int], before: Turn | None = None) -> Sequence | None:
        """Return the sequence to start next, among flows whose turn comes before `before` (None = all).

        The result is None if none can start. `resumable` returns the tokens that a sequence can resume.
        """

        def of_flow(flow: Flow) -> Sequence | None:
            ready = flow.ready(MAX_COMPARED if flow.passes < MAX_PASSES else 1)
            if len(ready) < 2:
                return ready[0] if ready else None
            return max(ready, key=lambda s: (resumable(s), -s.order))

        def of_client(client: Client) -> Sequence | None:
            if before is None or (client.start, client.key) != before[:2]:
                return client.flows.pick(of_flow)
            return client.flows.pick(of_flow, before[2:], before_last=True)

        return self._clients.pick(of_client, before[:2] if before is not None else None)

    def oldest_others(self, sequence: Sequence) -> list[Sequence]:
        """Return the oldest other sequences of the flow of `sequence`."""
        _, flow = self._place(sequence)
        return [other for other in flow.items[: MAX_COMPARED + 1] if other is not sequence]

    def started(self, sequence: Sequence, computed: int) -> None:
        """Charge the flow of `sequence`, which starts with a piece of `computed` tokens.

        The sequence was picked and removed before.
        """
        client, flow = self._place(sequence)
        older = bool(flow.items) and flow.items[0].order < sequence.order
        flow.passes = flow.passes + 1 if older else 0
        if not flow.active:
            if not client.active:
                self._clients.resume(client)
            client.flows.resume(flow)
            client.active_flows += 1
        flow.prefills += 1
        self.charge(sequence, max(MIN_COST, computed))

    def charge(self, sequence: Sequence, computed: int) -> None:
        """Charge the flow and the client of `sequence` for its next piece, of `computed` tokens."""
        client, flow = self._place(sequence)
        client.flows.charge(flow, computed)
        self._clients.charge(client, computed)

    def prefilled(self, sequence: Sequence) -> None:
        """Record that nothing of `sequence` is left to prefill, or that it was preempted."""
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
