"""`EngineCore`: admit, schedule, run, commit; one iteration per call of `step`.

Owns the sequences and the two launched steps that may be in flight; knows nothing of processes, sockets or
text. The runner does the device work behind `StepRunner`; the clock is a parameter.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from mamba_kernels.device_errors import ends_the_device
from mamba_planner.strategy import reservation
from mamba_server.cache import ManagedStateCache, Refusal, SequenceAllocation
from mamba_server.engine.scheduling.scheduler import Scheduler
from mamba_server.engine.sequences.output_grammar import NextTokens
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Phase, Sequence
from mamba_server.engine.sequences.timeline import Timeline
from mamba_server.engine.stepping.answer_audits import AnswerAudits, NoAudits
from mamba_server.engine.stepping.cost_account import CostAccount
from mamba_server.engine.stepping.forward_stream import ForwardStream, Ticket
from mamba_server.engine.stepping.held_adapters import NO_ADAPTERS, HeldAdapters, unknown_adapter
from mamba_server.engine.stepping.pinned_prefixes import PinnedPrefixes
from mamba_server.engine.stepping.prefill_speed import PrefillSpeed
from mamba_server.engine.stepping.request_limits import hand_over_depth, pinned_depths, rejection
from mamba_server.engine.stepping.speculation import Speculation
from mamba_server.engine.stepping.state_transfers import NO_HAND_OVER, StateTransfers
from mamba_server.engine.stepping.step_pace import StepPace
from mamba_server.engine.stepping.step_result import StepResult, StepRunner, StepTimes, VerifiedDraft
from mamba_server.engine.stepping.tree_changes import TreeChanges
from mamba_server.wire import (
    AbortRequest,
    AddRequest,
    FinishReason,
    HandOver,
    RequestRejected,
    SequenceDelta,
    StopSequence,
    TokenLogprobs,
)


@dataclass(slots=True)
class _LaunchedStep:
    schedule: Schedule
    ticket: Ticket[Callable[[], StepResult]]
    schedule_seconds: float
    started: float
    """Time of the launch, in seconds of the engine's clock."""
    allocations: list[SequenceAllocation | None]
    """Allocations of the schedule's members at launch: a member may have lost its allocation since."""


FAILURES_IN_A_ROW = 3
"""Consecutive failed steps after which the device counts as lost."""


class EngineCore:
    """The sequences of one engine, and the loop that admits, schedules, runs and commits them.

    `overlap`: plan step n+1 while step n runs, never further ahead (O6 in docs/explanation/state-cache.md).
    `pace` keeps steps near a target time; None = as large as the limits allow. `attention_ratio`: `ratio` of
    `PrefillSpeed`. `pin_share`: `share` of `PinnedPrefixes`. `speculation`: drafts; None = there are none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: ManagedStateCache,
        stream: ForwardStream,
        runner: StepRunner,
        *,
        overlap: bool,
        eos_token_ids: frozenset[int],
        seed: int = 0,
        max_waiting: int = 4096,
        pace: StepPace | None = None,
        attention_ratio: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        pin_share: float = 0.0,
        speculation: Speculation | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.cache = cache
        self.tree_changes = TreeChanges(cache.capacity.page_size, cache.settings.fingerprint)
        cache.listen(self.tree_changes)
        self.overlap = overlap
        self.step_number = 0
        self.sequences: dict[str, list[Sequence]] = {}
        self.times = StepTimes()
        self.speed = PrefillSpeed(attention_ratio)
        self.costs = CostAccount(self.speed)
        self.finished: Counter[str] = Counter()
        self.generated_tokens = 0
        self.failed_steps = 0
        self.last_error = ""
        self.device_error = ""
        """Reason why the device can run no further step, "" = it can. All requests have ended then, and the
        process must end."""
        self._failures = 0
        self._stream = stream
        self._runner = runner
        self._eos = eos_token_ids
        self.seed = seed
        """Seed of requests that have none."""
        self._max_waiting = max_waiting
        self.transfers: StateTransfers | None = None
        """Transfers of states; None = states stay in this engine."""
        self.audits: AnswerAudits = NoAudits()
        self.adapters: HeldAdapters = NO_ADAPTERS
        self.pins = PinnedPrefixes(cache, pin_share)
        self.clock = clock
        scheduler.on_leave.append(lambda sequence: self.costs.leave(sequence, self.clock()))
        self.speculation = speculation
        if speculation is not None:
            scheduler.absorb = self._absorb
        self._pace = pace
        self._last_step_end = 0.0
        """End of the step committed last, by `clock`."""
        self._next_order = 0
        self._launched: deque[_LaunchedStep] = deque()
        self._deltas: list[SequenceDelta] = []
        """Deltas that the next `step` returns."""

    # --- requests ------------------------------------------------------------------------------------

    def add(self, request: AddRequest, grammar: NextTokens | None = None) -> RequestRejected | None:
        """Queue the sequences of `request` and return None, or return why it can never run here.

        `grammar` restricts the tokens of the answer, and is at its beginning.
        """
        rejected = rejection(
            request, self.cache.capacity, runs_already=request.request_id in self.sequences,
            most_tokens=self.scheduler.limits.max_model_len, waiting=self.scheduler.waiting_count,
            most_waiting=self._max_waiting,
        )  # fmt: skip
        if rejected is None and not self.adapters.holds(request.adapter):
            rejected = unknown_adapter(request)
        if rejected is not None:
            return rejected
        if request.hand_over:
            self._begin_hand_over(request)
            return None
        group = self._sequences_of(request, grammar)
        self.sequences[request.request_id] = group
        arrives = self.transfers is not None and self.transfers.expect(group, request.fetch)
        for sequence in group:
            if arrives:
                self.scheduler.hold(sequence)
            else:
                self.scheduler.add(sequence)
        return None

    def _begin_hand_over(self, request: AddRequest) -> None:
        """Queue the part of the prompt that another engine gets, unless its state is cached already."""
        prompt = np.array(request.token_ids, np.int32)
        depth = hand_over_depth(request, self.cache.capacity.page_size)
        sequence = Sequence(
            request.request_id, 0, prompt[:depth], msgspec.structs.replace(request.params, max_tokens=0),
            order=self._next_order, priority=request.priority, salt=request.salt, adapter=request.adapter,
            client=request.client, turn_boundary=request.turn_boundary, arrival=request.arrival,
            timeline=Timeline(request.traceparent) if request.traceparent else None,
            scores_prompt=False, whole_prompt=prompt, pins=self._pins_of(request), account=request.account,
        )  # fmt: skip
        self._next_order += 1
        self.sequences[request.request_id] = [sequence]
        self.scheduler.add(sequence)
        if self.cache.match(prompt, sequence.salt, self.step_number + 1).resumable == depth:
            # Nothing is left to compute, or there is no whole page.
            sequence.cached_tokens = depth
            self._hand_over(sequence)

    def _sequences_of(self, request: AddRequest, grammar: NextTokens | None) -> list[Sequence]:
        """Return the `n` sequences of `request`; all but the first resume from the prompt of the first."""
        params = request.params
        token_ids = np.array(request.token_ids, np.int32)
        shares_prompt = self.cache.settings.prefix_caching or params.prompt_logprobs >= 0
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        base = params.seed if params.seed is not None else self.seed * 1_000_003 + self._next_order
        group: list[Sequence] = []
        for index in range(request.n):
            sequence = Sequence(
                request.request_id, index, token_ids, params,
                order=self._next_order, priority=request.priority, salt=request.salt,
                adapter=request.adapter, client=request.client,
                turn_boundary=request.turn_boundary, arrival=request.arrival,
                seed=base + index, stop_token_ids=stops,
                leader=group[0] if group and shares_prompt else None,
                timeline=Timeline(request.traceparent) if request.traceparent else None,
                grammar=grammar.fork(stops) if grammar is not None else None,
                # The first sequence scores the prompt, and the others resume from its states.
                scores_prompt=index == 0,
                pins=self._pins_of(request) if index == 0 else (), account=request.account,
                explains=request.explain and index == 0, reports_cost=request.reports_cost,
            )  # fmt: skip
            self._next_order += 1
            group.append(sequence)
        return group

    def _pins_of(self, request: AddRequest) -> tuple[tuple[int, float], ...]:
        settings = self.cache.settings
        return pinned_depths(request, self.cache.capacity.page_size, settings.min_checkpoint_depth)

    def stop(self, message: StopSequence) -> None:
        """End the sequence after `keep` output tokens, where a stop string ended."""
        self._deltas = [
            delta
            for delta in self._deltas
            if (delta.request_id, delta.index) != (message.request_id, message.index)
        ]
        for sequence in self.sequences.get(message.request_id, ()):
            if sequence.index == message.index and sequence.phase is not Phase.FINISHED:
                self._finish(sequence, "stop", keep=sequence.prompt_len + message.keep)

    def abort(self, message: AbortRequest) -> None:
        """End the sequences of a client that is gone; their states may still serve others."""
        self._deltas = [delta for delta in self._deltas if delta.request_id != message.request_id]
        for sequence in self.sequences.get(message.request_id, ()):
            if sequence.phase is not Phase.FINISHED:
                self._finish(sequence, "abort")

    def flush_cache(self) -> int:
        """Forget every checkpoint that no sequence is reading; return their number."""
        return self.cache.flush()

    def sequences_with(self, adapter: str) -> int:
        """Return the number of unfinished sequences whose adapter has the fingerprint `adapter`."""
        return sum(
            sequence.adapter == adapter and sequence.phase is not Phase.FINISHED
            for group in self.sequences.values()
            for sequence in group
        )

    def on_device(self, work: Callable[[], object]) -> None:
        """Do `work` on the forward stream, behind all launched steps, and wait for it."""
        self._stream.wait(self._stream.launch(lambda: (work(), True)))

    def change_strategy(self, name: str) -> Refusal | None:
        """Run under strategy `name` from the next step on, or return why not.

        If memory is too short for all running sequences, the youngest are preempted and recomputed.
        """
        strategy, capacity = reservation(name, overlap=self.overlap), self.cache.capacity
        for group in self.sequences.values():
            longest = group[0].longest
            if capacity.never_fits(longest, strategy.slots_per_sequence):
                return Refusal(
                    f"request {group[0].request_id} may grow to {longest} tokens, which with "
                    f"{strategy.slots_per_sequence} slots a sequence do not fit {capacity.slabs} slabs"
                )
        refusal = self.cache.change_strategy(strategy)
        if refusal is not None:
            self._commit_launched(0)
            while (refusal := self.cache.change_strategy(strategy)) and self.scheduler.preempt_youngest():
                pass
        return refusal

    # --- one step ------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no sequence runs or waits, no step is in flight, no delta pends, and no audit computes."""
        is_busy = self._launched or self._deltas or self.cache.capacity.retiring or self.audits.holding
        return self.scheduler.idle and not is_busy

    @property
    def awaits_states(self) -> bool:
        """Whether there is nothing to do before the state of a prompt has come."""
        scheduler = self.scheduler
        return bool(scheduler.arriving) and not (
            scheduler.running or len(scheduler.waiting) or self._launched or self._deltas
        )

    @property
    def other_changes(self) -> int:
        """Number of changes of the cache's memory that no request caused: by transfers and audits."""
        return self.audits.changes + (self.transfers.changes if self.transfers is not None else 0)

    def step(self) -> list[SequenceDelta]:
        """Launch the next step if there is one, then commit completed steps; return the deltas in order."""
        began = self.clock()
        self.pins.expire(began)
        self._interrupt_audit()
        if self.transfers is not None:
            for group in self.transfers.arrived():
                for sequence in group:
                    if sequence.phase is Phase.ARRIVING:
                        sequence.arrived = True
                        self.scheduler.add(sequence)
        if self.speculation is not None:
            self.speculation.step_began()
            if self._launched and self.speculation.drafts.wanted():
                # A draft begins with the last token, which the host has only after the commit.
                self._commit_launched(0)
        tokens = self._pace.tokens(len(self.scheduler.decoding)) if self._pace is not None else None
        schedule = self.scheduler.schedule(self.step_number + 1, tokens)
        for piece in schedule.pieces:
            piece.sequence.started = piece.sequence.started or began
            self.costs.begin(piece.sequence, began)
        if not schedule.empty:
            self.step_number += 1
            self.audits.observe(schedule)
            work = self._runner.prepare(schedule)
            planned = self.clock()
            ticket = self._stream.launch(work)
            allocations = [sequence.allocation for sequence in schedule.members]
            self._launched.append(_LaunchedStep(schedule, ticket, planned - began, planned, allocations))
        overlaps = self.overlap and not schedule.empty and not schedule.drafts
        self._commit_launched(1 if overlaps else 0)
        self._compute_audit()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _interrupt_audit(self) -> None:
        if not self.scheduler.idle:
            self.audits.interrupt()

    def _compute_audit(self) -> None:
        if self.scheduler.idle and not self._launched and not self._deltas:
            self.step_number += self.audits.compute(self.step_number + 1, self._fail)

    def _commit_launched(self, keep: int) -> None:
        """Commit all launched steps but the last `keep`."""
        while len(self._launched) > keep:
            self._commit(self._launched.popleft())
        if self.device_error:
            self._end_all()

    def _commit(self, launched: _LaunchedStep) -> None:
        schedule = launched.schedule
        try:
            result = self._stream.wait(launched.ticket)()
        except Exception as error:
            self._charge(launched, self.clock())  # the device was busy all the same
            self._fail(schedule, error)
            return
        step_before, step_end = self._last_step_end, self.clock()
        self._failures = 0
        seconds = self._observe_duration(launched, step_end)
        if result.finite is not None and not result.finite.all():
            self._end_nonfinite(launched, result.finite)
        self.cache.advance(schedule.step)
        tokens = result.tokens.tolist()
        numbers = [draft.index for draft in schedule.drafts]
        drafts = dict(zip(numbers, result.drafts, strict=True)) if numbers else {}
        for index, sequence in enumerate(schedule.decodes):
            sequence.in_flight -= 1
            self._take_token(sequence, tokens[index], result.logprobs.get(index), schedule.step)
            if index in drafts:
                self._take_draft(sequence, tokens[index], drafts[index], schedule.step)
        if self.speculation is not None:
            # Planning counts where nothing ran meanwhile.
            begun = max(launched.started - launched.schedule_seconds, step_before)
            self.speculation.step_ended(schedule, step_end - begun)
        self._commit_pieces(schedule, result, tokens, step_end - seconds, step_end)
        self.cache.release_retired()
        self.times.seconds.append(
            (launched.schedule_seconds, step_end - launched.started, self.clock() - step_end)
        )
        self.times.batch_sizes.append(len(schedule.decodes) + len(schedule.pieces))

    def _observe_duration(self, launched: _LaunchedStep, step_end: float) -> float:
        """Return the seconds of the step that ended at `step_end`, and update speed and pace."""
        schedule = launched.schedule
        seconds = self._charge(launched, step_end)
        if not schedule.drafts:
            self.speed.observe(schedule, seconds, step_end)
        if self._pace is not None:
            self._pace.observe(len(schedule.decodes), schedule.tokens - schedule.decode_tokens, seconds)
        return seconds

    def _charge(self, launched: _LaunchedStep, step_end: float) -> float:
        """Return the seconds that the device was busy with a step, and charge its members for them."""
        # Under overlap the step was launched while the one before it ran.
        seconds = step_end - max(launched.started, self._last_step_end)
        self._last_step_end = step_end
        self.costs.step_ended(launched.schedule, seconds, step_end)
        return seconds

    def _commit_pieces(
        self, schedule: Schedule, result: StepResult, tokens: list[int], began: float, ended: float
    ) -> None:
        """Commit the prompts of a step; `tokens` are all sampled tokens, the decodes' tokens first."""
        sampled = len(schedule.decodes)
        for number, piece in enumerate(schedule.pieces):
            sequence = piece.sequence
            sequence.in_flight -= 1
            if sequence.timeline is not None:
                sequence.timeline.piece(schedule.timing(number, began, ended))
            if number in result.prompt_logprobs:
                sequence.add_scores(piece.start, result.prompt_logprobs[number])
            if number in result.pooled:
                sequence.add_pooled(piece.start, result.pooled[number])
            if piece.final:
                sequence.prompt_done = True
                self._take_token(sequence, tokens[sampled], result.logprobs.get(sampled), schedule.step)
                sampled += 1
                if sequence.pins:
                    self.pins.hold(sequence, self.step_number + 1, ended)
            else:
                self._commit_cache(sequence, schedule.step)

    def _take_token(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None, step: int) -> None:
        """Append a sampled token to `sequence`, report it, and end the sequence if it is the last."""
        if sequence.phase is Phase.FINISHED:
            # The sequence ended one step earlier: the extra token is discarded.
            return
        if not sequence.params.max_tokens:
            # The step that ends a prompt samples a token that was not requested and has no place in the
            # array.
            self._commit_cache(sequence, step)
            if sequence.whole_prompt is not None:
                self._hand_over(sequence)
                return
            self._emit(sequence, [], None, "length", embedding=sequence.embedding)
            self._finish(sequence, "length")
            return
        grammar = sequence.grammar
        if grammar is not None:
            grammar.consume(token)
            if grammar.error:
                self._end_with_error(sequence, grammar.error, form_failed=True)
                return
        sequence.token_ids[sequence.known_tokens] = token
        sequence.known_tokens += 1
        self.generated_tokens += 1
        self._commit_cache(sequence, step)
        outputs = sequence.known_tokens - sequence.prompt_len
        reason: FinishReason | None = None
        stop_token: int | None = None
        if token in sequence.stop_token_ids and outputs >= sequence.params.min_tokens:
            reason, stop_token = "stop", token
        elif grammar is not None and grammar.complete:
            reason = "stop"
        elif outputs >= sequence.params.max_tokens:
            reason = "length"
        if sequence.served is not None:
            logprobs = sequence.served.take(logprobs, requested=sequence.params.logprobs >= 0)
        self._emit(sequence, [token], logprobs, reason, stop_token)
        if reason is not None:
            self._finish(sequence, reason)

    def _take_draft(self, sequence: Sequence, token: int, draft: VerifiedDraft, step: int) -> None:
        """Append to `sequence` the tokens behind `token` for as long as each is the one that was drafted."""
        accepted = 0
        for foreseen, sampled, logprobs in draft.rows:
            allocation = sequence.allocation
            if foreseen != token or sequence.phase is Phase.FINISHED or allocation is None:
                break
            self.cache.replay.accept(allocation)
            self._take_token(sequence, sampled, logprobs, step)
            token, accepted = sampled, accepted + 1
        if sequence.served is not None:
            sequence.served.accepted += accepted
        if self.speculation is not None:
            self.speculation.drafts.checked(sequence, draft.drafted, accepted)

    def _absorb(self, sequence: Sequence) -> None:
        """Compute accepted drafts into the live slot of a sequence that leaves, so that others can resume."""
        allocation = sequence.allocation
        if self.speculation is None or allocation is None:
            return
        work = self.speculation.absorb(allocation.row, allocation.lane, allocation.waiting)
        try:
            self._stream.wait(self._stream.launch(work))
        except Exception as error:
            # The sequence leaves without its last state; the next step meets the same device.
            self.last_error = f"{type(error).__name__}: {error}"
            return
        self.cache.replay.materialised(allocation)

    def _hand_over(self, sequence: Sequence) -> None:
        """End a sequence whose prompt is computed, and keep its state for another engine.

        The end gives the live slot to the tree: so there is a checkpoint at exactly this depth under every
        strategy, also when no other slot was free.
        """
        salt, token_ids = sequence.salt, sequence.known_token_ids()
        self._finish(sequence, "length")
        hand_over = NO_HAND_OVER
        if self.transfers is not None and len(token_ids):
            hand_over = self.transfers.export(token_ids, salt)
        self._emit(sequence, [], None, "length", hand_over=hand_over)

    def _commit_cache(self, sequence: Sequence, step: int) -> None:
        allocation = sequence.allocation
        if allocation is not None and allocation.awaits_commit:
            self.cache.commit(allocation, sequence.known_token_ids(), step)

    def _emit(
        self,
        sequence: Sequence,
        tokens: list[int],
        logprobs: TokenLogprobs | None,
        reason: FinishReason | None,
        stop_token: int | None = None,
        *,
        hand_over: HandOver | None = None,
        embedding: bytes = b"",
    ) -> None:
        first = not sequence.reported
        sequence.reported = True
        self._deltas.append(
            SequenceDelta(
                sequence.request_id,
                sequence.index,
                tokens,
                logprobs=[logprobs] if logprobs is not None else None,
                finish_reason=reason,
                stop_token_id=stop_token,
                cached_tokens=sequence.cached_tokens if first else 0,
                prompt_logprobs=sequence.prompt_logprobs if first else None,
                at=self._last_step_end,
                started=sequence.started if first else 0.0,
                first_at=self._last_step_end if first else 0.0,
                timeline=sequence.timeline.take() if sequence.timeline is not None else None,
                hand_over=hand_over,
                embedding=embedding,
                explanation=sequence.explanation if first else None,
                cost=self.costs.reported(sequence, self._last_step_end),
            )
        )

    def _finish(self, sequence: Sequence, reason: FinishReason, keep: int | None = None) -> None:
        if sequence.phase is Phase.ARRIVING and self.transfers is not None:
            self.transfers.cancel(sequence.request_id)
        self.scheduler.finish(sequence, keep)
        sequence.finish_reason = reason
        self.finished[reason] += 1
        if sequence.served is not None and reason != "error":
            self.audits.ended(sequence, keep)
        group = self.sequences.get(sequence.request_id, [])
        if all(sibling.phase is Phase.FINISHED for sibling in group):
            self.sequences.pop(sequence.request_id, None)

    def _fail(self, schedule: Schedule, error: BaseException) -> None:
        """End the sequences of a step whose device work failed; nothing of them is cached."""
        self.failed_steps += 1
        self._failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        if ends_the_device(error):
            self.device_error = f"the device failed for good: {self.last_error}"
        elif self._failures >= FAILURES_IN_A_ROW:
            self.device_error = (
                f"the device failed {self._failures} steps in a row, at last with {self.last_error}"
            )
        for sequence in schedule.members:
            sequence.in_flight -= 1
            self._end_with_error(sequence, "the engine failed while it generated this answer; try again")
        self.cache.advance(schedule.step, failed=True)
        self.cache.release_retired()

    def _end_nonfinite(self, launched: _LaunchedStep, finite: npt.NDArray[np.bool_]) -> None:
        """End only the sequences whose results are NaN or infinity, before the tree gets any of their states.

        That includes results of the next step, which may be in flight.
        """
        members = launched.schedule.members
        for index in np.flatnonzero(~finite).tolist():
            allocation = launched.allocations[index]
            if allocation is not None:
                self.cache.discard_results(allocation)
            self._end_with_error(
                members[index],
                "the model computed NaN or infinity for this request: it was ended and nothing of it was "
                "cached; if it happens again, serve with --dtype float32 and --state-dtype float32",
            )

    def _end_with_error(self, sequence: Sequence, message: str, *, form_failed: bool = False) -> None:
        if sequence.phase is not Phase.FINISHED:
            self._deltas.append(
                SequenceDelta(
                    sequence.request_id,
                    sequence.index,
                    [],
                    finish_reason="error",
                    error=message,
                    form_failed=form_failed,
                    timeline=sequence.timeline.take() if sequence.timeline is not None else None,
                )
            )
            self._finish(sequence, "error", keep=0)

    def _end_all(self) -> None:
        """End every request with an error before the process ends."""
        for group in list(self.sequences.values()):
            for sequence in group:
                self._end_with_error(
                    sequence, f"{self.device_error}; the engine is being restarted, try again"
                )

    def drain_step_times(self) -> StepTimes:
        """Return and clear the times since the last call."""
        times, self.times = self.times, StepTimes()
        return times
