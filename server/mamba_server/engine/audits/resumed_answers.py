"""`ResumedAnswers`: audits of answers that resumed from a checkpoint or had drafts, for one engine.

A sampled share of such answers is scored while it is served. Once its sequence has ended, the prompt and the
answer are computed again from the first token, a chunk at a time and only while the engine has nothing else
to do. The states on the way are compared with the checkpoints, and the scores with those that were served.
Beyond a bound, the checkpoint is quarantined, and drafts are switched off. The core calls it between two
steps; it never changes a token, and never waits for memory.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from mamba_server.cache import Lineage, ManagedStateCache, Quarantined
from mamba_server.engine.audits.audit_log import AuditLog, AuditResult
from mamba_server.engine.audits.distance import Bounds, differences, worst_window
from mamba_server.engine.audits.pending_audit import PendingAudit
from mamba_server.engine.sequences.schedule import PrefillPiece, Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.sequences.served_scores import Resumption, ServedScores
from mamba_server.engine.stepping.forward_stream import ForwardStream
from mamba_server.engine.stepping.held_adapters import NO_ADAPTERS, HeldAdapters
from mamba_server.engine.stepping.speculation import DraftSwitch
from mamba_server.engine.stepping.step_result import StepRunner

MOST_WAITING = 16
"""Answers that wait for their audit; the oldest gives way to a new one."""
MOST_TOKENS = 1 << 16
"""Most tokens of a prompt and its answer that are computed again."""
MOST_TRIES = 3
"""Number of times that an audit begins before it is abandoned, because other work has interrupted it."""
Result = TypeVar("Result")
_NOBODY = np.empty(0, np.int32)


class AuditRunner(StepRunner, Protocol):
    """Computes audits on the device, and compares states there."""

    def compare_states(self, slot: int, truth: int) -> Callable[[], Callable[[], list[float]]]:
        """Return work as `prepare` does; its result is the distance of each part of each recurrent layer.

        The states of all recurrent layers come first, then their windows. `slot` has the state of the cache,
        and `truth` the state that was computed again.
        """
        ...


class ResumedAnswers:
    """Audits of the answers of one engine that resumed from a checkpoint or had drafts.

    Args:
        cache: cache of the engine.
        stream: forward stream, on which audits compute.
        runner: computes and compares scores and states.
        share: share of the answers that resumed, or had drafts, that is audited, 0 to 1.
        bounds: largest distances that count as equal.
        chunk: tokens of a piece.
        random: returns a number from 0 to 1.
        withdraw: called with quarantined checkpoints, to withdraw their copies.
        adapters: adapters that the engine holds.
        drafts: switch of the engine's drafts; None = it has none.
    """

    def __init__(
        self,
        cache: ManagedStateCache,
        stream: ForwardStream,
        runner: AuditRunner,
        *,
        share: float,
        bounds: Bounds,
        chunk: int,
        random: Callable[[], float],
        withdraw: Callable[[list[Quarantined]], None] = lambda _: None,
        adapters: HeldAdapters = NO_ADAPTERS,
        drafts: DraftSwitch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._adapters = adapters
        self._cache, self._stream, self._runner = cache, stream, runner
        self.share, self.bounds, self._chunk, self._random = share, bounds, chunk, random
        self._withdraw, self._drafts, self._clock = withdraw, drafts, clock
        self._waiting: deque[PendingAudit] = deque()
        self._current: PendingAudit | None = None
        self.log = AuditLog()
        self.changes = 0
        """Number of changes of the cache's memory by audits."""

    @property
    def due(self) -> bool:
        """Whether an audit waits or is under way."""
        return self._current is not None or bool(self._waiting)

    @property
    def holding(self) -> bool:
        """Whether an audit is under way, which holds memory of the cache."""
        return self._current is not None

    # --- while answers are served --------------------------------------------------------------------

    def observe(self, schedule: Schedule) -> None:
        """Choose among the sequences that begin in a step those whose answers are to be audited."""
        if self._cache.condemned:
            self._cache.release_condemned()
        for piece in schedule.pieces:
            sequence, allocation = piece.sequence, piece.sequence.allocation
            if allocation is None or piece.start != allocation.resumed:
                continue
            if not piece.start and (self._drafts is None or sequence.served is not None):
                # It resumed from nothing, and has no drafts or is chosen already.
                continue
            resumption = Resumption(sequence.known_tokens, allocation.resumed, allocation.lineage)
            if sequence.served is not None:
                sequence.served.resumptions.append(resumption)
            elif not sequence.outputs and sequence.params.max_tokens and self._random() < self.share:
                sequence.served = ServedScores(resumption)

    def ended(self, sequence: Sequence, keep: int | None) -> None:
        """Queue the answer of a sequence for an audit; `keep`: its tokens that count, None = all known."""
        served, prompt_len = sequence.served, sequence.prompt_len
        assert served is not None
        tokens = sequence.known_token_ids()[:keep].copy()
        outputs = len(tokens) - prompt_len
        if outputs <= 0 or not served.audits:
            return
        served.logprobs = served.logprobs[:outputs]
        trace = "" if sequence.timeline is None else sequence.timeline.traceparent
        audit = PendingAudit(
            sequence.request_id, sequence.index, prompt_len, tokens, sequence.salt, sequence.adapter, served,
            trace,
        )  # fmt: skip
        if len(tokens) > MOST_TOKENS:
            self._record(audit, audit.result("abandoned", "too_long"))
            return
        if len(self._waiting) >= MOST_WAITING:
            oldest = self._waiting.popleft()
            self._record(oldest, oldest.result("abandoned", "too_many"))
        self._waiting.append(audit)

    # --- while the engine has nothing else to do -----------------------------------------------------

    def interrupt(self) -> None:
        """Give the memory of the audit under way back, because there is other work."""
        audit = self._current
        if audit is None:
            return
        self._end(audit)
        if audit.tries < MOST_TRIES:
            self._waiting.appendleft(audit)
        else:
            self._record(audit, audit.result("abandoned", "other_work"))

    def compute(self, step: int, fail: Callable[[Schedule, BaseException], None]) -> bool:
        """Compute the next piece of an audit as `step`, and wait for it; return whether there was one."""
        if self._cache.condemned:
            self._cache.release_condemned()
        audit = self._current or self._begin()
        if audit is None:
            return False
        schedule = self._next_piece(audit, step)
        piece = schedule.pieces[0]
        try:
            result = self._run(self._runner.prepare(schedule))
            wrong = self._compare_states(audit, piece)
        except Exception as error:
            fail(schedule, error)
            self._end(audit)
            self._record(audit, audit.result("abandoned", "failed"))
            return True
        self._cache.advance(step)
        if result.finite is not None and not result.finite.all():
            self._end(audit)
            self._record(audit, audit.result("abandoned", "not_finite"))
            return True
        audit.plain.extend(score.logprob for score in result.prompt_logprobs.get(0, ()))
        if wrong:
            lineage = audit.checkpoint_at(piece.stop)
            self._end(audit)
            self._diverge(audit, piece.stop, lineage, wrong)
        elif piece.stop == audit.last:
            self._end(audit)
            self._compare_scores(audit)
        return True

    def _record(self, audit: PendingAudit, result: AuditResult) -> None:
        self.log.record(result)
        if audit.traceparent and audit.began:
            self.log.note_span(audit.traceparent, audit.began, self._clock(), result)

    def _run(self, work: Callable[[], Callable[[], Result]]) -> Result:
        """Do work on the forward stream, and wait for its result."""
        return self._stream.wait(self._stream.launch(work))()

    def _begin(self) -> PendingAudit | None:
        """Take the memory of the next audit; None = none waits, or there is none that fits."""
        while self._waiting:
            audit = self._waiting.popleft()
            if not self._adapters.holds(audit.adapter):
                self.log.record(audit.result("abandoned", "adapter_unloaded"))
                continue
            allocation = self._cache.admit_audit(audit.token_ids, audit.salt)
            if allocation is None:
                self._record(audit, audit.result("abandoned", "no_memory"))
                continue
            self.changes += 1
            audit.begin(allocation, self._clock())
            self._current = audit
            return audit
        return None

    def _next_piece(self, audit: PendingAudit, step: int) -> Schedule:
        """Record in the cache that `step` computes the next piece; return the schedule of the step."""
        allocation, sequence = audit.allocation, audit.sequence
        assert sequence is not None
        start, stop = allocation.depth, audit.next_stop(self._chunk)
        piece = PrefillPiece(sequence, start, stop, allocation.slot_in, allocation.live, [], False)
        self._cache.launch(allocation.row, stop, step)
        return Schedule(step, _NOBODY, _NOBODY, [], [piece])

    def _end(self, audit: PendingAudit) -> None:
        """Return the memory of an audit, whose last step is complete."""
        self._cache.retire(audit.allocation, lambda: _NOBODY)
        audit.sequence = self._current = None
        self.changes += 1

    # --- comparison ----------------------------------------------------------------------------------

    def _compare_states(self, audit: PendingAudit, piece: PrefillPiece) -> str:
        """Compare the state behind a piece with the checkpoint there; return which part is wrong.

        The result is "" if the distance is within the bound, or if there is nothing to compare.
        """
        lineage = audit.checkpoint_at(piece.stop)
        slot = self._cache.slot_of(audit.token_ids[: piece.stop], audit.salt, lineage) if lineage else 0
        if not slot:
            return ""
        distances = self._run(self._runner.compare_states(slot, piece.slot_out))
        largest = max(distances)
        audit.state_distance = max(largest, audit.state_distance or 0.0)
        if largest <= self.bounds.states:
            return ""
        part, layer = divmod(distances.index(largest), len(distances) // 2)
        return f"{('state', 'window')[part]} of recurrent layer {layer}"

    def _compare_scores(self, audit: PendingAudit) -> None:
        """Compare the scores, and record the result."""
        distance, begin = worst_window(differences(audit.served.logprobs, audit.plain))
        if distance <= self.bounds.scores_of(len(audit.plain)):
            self._record(audit, audit.result("ok", bounds=self.bounds, distance=distance))
        else:
            suspect = audit.resumption_before(begin)
            self._diverge(audit, suspect.depth, suspect.lineage, "scores", distance)

    def _diverge(
        self,
        audit: PendingAudit,
        depth: int,
        lineage: Lineage | None,
        reason: str,
        distance: float | None = None,
    ) -> None:
        """Quarantine the checkpoint at `depth` and all that continue it, record it, and switch drafts off.

        Depth 0 means that no checkpoint caused the wrong answer. Then the quarantine begins at the end of the
        prompt's last whole page, because every checkpoint of the answer lies at that depth or behind it.
        """
        page_size = self._cache.capacity.page_size
        first = depth or max(1, audit.prompt_len // page_size) * page_size
        quarantined = self._cache.quarantine(audit.token_ids[:first], audit.salt)
        self.changes += 1
        self._withdraw(quarantined)
        result = audit.result("diverged", reason, bounds=self.bounds, distance=distance)
        self._record(audit, replace(result, depth=depth, lineage=lineage, quarantined=tuple(quarantined)))
        if self._drafts is not None:
            self._drafts.switch_off(f"an audit found a wrong answer: {reason} at depth {first}")
