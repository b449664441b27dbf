"""Device side of a step: copies its arrays over, runs the model, samples, keeps the sampled tokens.

`prepare` runs on the loop's side and copies everything out of the persistent batch; the work that it returns
runs on the forward stream, the only place that touches sampler and model; the function that this returns
reads the results after the step's fence.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import torch

from mamba_kernels.cpu.whole_steps.head_steps import HeadSteps
from mamba_kernels.cpu.whole_steps.step_decoder import StepDecoder
from mamba_kernels.dispatch.backend import TRITON
from mamba_kernels.dispatch.signatures import Sample
from mamba_kernels.precision import accumulator
from mamba_kernels.sample.reference import is_finite
from mamba_kernels.stochastic_rounding import noise_words
from mamba_kernels.transfer import to_device
from mamba_planner.workspace import LOGIT_ROWS
from mamba_server.cache import NO_TOKENS, Ints, PersistentBatch, Tokens
from mamba_server.engine.execution.decode_step import DecodeStep
from mamba_server.engine.execution.decode_steps import DecodeSteps, Progress
from mamba_server.engine.execution.draft_runner import Sampling
from mamba_server.engine.execution.drafted_rows import by_sequence, rules_of_rows, with_drafts
from mamba_server.engine.execution.host_results import (
    PromptSpan,
    host_result,
    in_schedule_order,
    on_host,
    to_host,
)
from mamba_server.engine.execution.prepared_steps import PreparedSteps
from mamba_server.engine.execution.sampler import DraftedRow, SampledTokens, Sampler, joined
from mamba_server.engine.execution.sampling_batch import SamplingBatch, SamplingRow, penalized
from mamba_server.engine.execution.step_arrays import StepArrays, build
from mamba_server.engine.execution.step_graphs import StepGraphs
from mamba_server.engine.execution.token_scores import TokenScores, score_blocks
from mamba_server.engine.sequences.output_grammar import TokenMasks, token_masks
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.speculation.head_drafts import HeadRequest
from mamba_server.engine.stepping.step_result import StepResult
from mamba_server.model.adapters.step_adapters import BASE, StepAdapters
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.forward_batch import ForwardBatch, HostBatch
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layers.step_decoder import step_decoder
from mamba_server.model.page_table import PageTable
from mamba_server.model.replay import HostReplay, ReplayMemory, ReplayPlan
from mamba_server.model.step_plans import StepPlans
from mamba_server.model.trial_batch import trial_batch
from mamba_server.wire import SamplingParams

_FIELDS = tuple(field.name for field in fields(HostBatch) if field.name != "state_noise")


@dataclass(frozen=True, slots=True)
class _NewRow:
    """A sequence that samples for the first time since its admission, to be set up in its row."""

    row: int
    params: SamplingParams
    seed: int
    prompt_len: int
    token_ids: Ints
    """Prompt and output so far; empty without penalties."""


COUNTED = LOGIT_ROWS
"""Sequences with penalties, running and leaving, whose counts keep their place from the start: as many as the
planner reserves memory for. Drafts of such sequences have counts in addition."""

SMALLEST = 0.05
"""Part of a layer's largest number below which the numbers of a head count as small: their rounding errors
are as large as the layer's."""


class ModelRunner:
    """Computes the engine's steps on one device; row r decodes next the token in `last_token[r]`."""

    def __init__(
        self,
        model: HybridModel,
        cache: CacheViews,
        persistent: PersistentBatch,
        *,
        chunk: int,
        page_size: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        device: torch.device,
        sample: Sample | None = None,
        graphs: StepGraphs | None = None,
        longest_piece: int = 0,
        step_tokens: int = 0,
    ) -> None:
        """Allocate the tables and prepare nothing yet.

        `sample` is the `operator` of `Sampler`. `graphs` captures decode steps where only kernels compute;
        None = no step is captured. `longest_piece` is the most tokens of one prompt in a step, and
        `step_tokens` the most tokens of a step.
        """
        self._model = model
        self._cache = cache
        self._persistent = persistent
        self._chunk = chunk
        self._page_size = page_size
        self._prepared_steps = PreparedSteps(chunk, longest_piece, max(longest_piece, step_tokens))
        self._device = device
        self._places = np.full(persistent.rows, BASE, np.int32)
        """Place in the bank of the adapter of each row's sequence."""
        # One row more than there are sequences, for padding.
        self._last_token = torch.zeros(persistent.rows + 1, dtype=torch.int32, device=device)
        self._last_on_host = self._last_token.numpy() if device.type == "cpu" else None
        """Last tokens as an array of the same memory, on a CPU: its items are set sooner than a tensor's."""
        self._page_table = PageTable(persistent.rows, persistent.pages.shape[1], device)
        library = model.backend.library
        self._sampler = Sampler(vocab_size, device, eos_token_ids, sample, library)
        # Without conversion: the kernels find the best token of rows as the head returns them.
        self._logits = model.logits if library is None else model.head
        self._sampling: dict[int, SamplingRow] = {}
        self._batch_key = b""
        self._batch: list[SamplingBatch] | None = None
        self.head_reads: Callable[[], bool] = lambda: True
        """Whether the model's head for drafts, if any, reads the tokens of a step that only decodes."""
        self._drafted: list[DraftedRow] = []
        """Rows of drafts of the last batch."""
        self._segments: set[int] = set()
        """Numbers of segments into which layers have cut a long piece so far; later steps provide for
        them."""
        self._decode_steps: DecodeSteps | None = None
        self._step_decoder = step_decoder(
            model,
            cache,
            page_table=self._page_table.entries,
            last_token=self._last_token,
            most_rows=persistent.rows,
        )
        if sample is not None and model.decodes_resident:
            replay = cache.replay
            drafted = 0 if replay is None else (len(replay.conv) - 1) * replay.most
            self._sampler.reserve(2 * min(persistent.max_running, COUNTED) + drafted)
            self._decode_steps = DecodeSteps(self._decode_step, persistent.max_running, graphs)

    def warm_up(self, report: Progress) -> bool:
        """Compile and capture all work of kernels, so that none of this happens while serving.

        Called on the forward stream, before the first step, and again after a kernel that failed in it has
        been left out. Return False if there is nothing to prepare.
        """
        if self._model.backend.name != TRITON:
            return False
        if self._decode_steps is not None:
            self._decode_steps.warm_up(report)
        limits = self._prepared_steps
        counts = self._model.token_counts(limits.step_tokens)
        steps = [*limits.kinds(counts, self._model.alignments)]
        for done, (decodes, pieces) in enumerate(steps):
            report("preparing prompts", done, len(steps))
            self.try_out(trial_batch(decodes, pieces, chunk=self._chunk, spare_row=self._persistent.rows))
        report("preparing prompts", len(steps), len(steps))
        if self._cache.replay is not None:
            self._warm_up_drafts(self._cache.replay)
        return True

    def _warm_up_head(self, sequences: int) -> None:
        """Compute drafts of the model's head for padding, if there is one."""
        if self._cache.hidden is None:
            return
        rows, zeros = np.full(sequences, self._persistent.rows, np.int32), np.zeros(sequences, np.int32)
        plans = [self._head_plan(rows, zeros, zeros)]
        with torch.inference_mode():
            hidden = self._cache.hidden.kept[:sequences].clone()
            self._model.draft(_to(zeros, self._device), hidden, plans, self._cache)

    def _warm_up_drafts(self, memory: ReplayMemory) -> None:
        """Compute steps in which one, two and many sequences have drafts, or accepted ones from before."""
        for sequences in {1, 2, min(len(memory.conv) - 1, self._persistent.max_running)}:
            zeros, ones = np.zeros(sequences, np.int32), np.ones(sequences, np.int32)
            replay = HostReplay(zeros, zeros, ones, zeros[:, None], zeros, zeros, ones)
            rows = trial_batch([1] * (2 * sequences), (), chunk=self._chunk, spare_row=self._persistent.rows)
            self.try_out(replace(rows, replay=replay))
            self._warm_up_head(sequences)

    @property
    def decode_step_counts(self) -> dict[str, int]:
        """Value of `DecodeSteps.counts`; empty where no decode step is prepared."""
        return {} if self._decode_steps is None else self._decode_steps.counts

    def try_out(self, host: HostBatch, *, scored: bool = False) -> None:
        """Compute a step without sequences, on the forward stream or before there is one.

        Its rows are scored as a prompt's are, or sampled with all features.
        """
        if self._rounds:
            noise = noise_words(np.zeros(len(host.positions), np.int32), host.positions + 1)
            host = replace(host, state_noise=noise)
        if self._cache.rings:
            none = np.zeros(len(host.decode_track), np.int32)
            host = replace(host, ring=np.array([none - 1, none, none]))
        with torch.inference_mode():
            ids = self._last_token.new_zeros(len(host.positions))
            hidden = self._hidden(self._batch_of(host, ids))
            if scored:
                follow = np.zeros(len(hidden), np.int32)
                self._score(hidden, PromptSpan(0, 0, len(hidden), follow, top=1))
            else:
                # At most as many as run at once: the counts of penalties have a fixed place for that number.
                rows = hidden[: min(LOGIT_ROWS, self._persistent.max_running)]
                positions = _to(host.context_len[: len(rows)], self._device)
                self._sampler.try_out(self._model.logits(rows), positions)

    @property
    def _rounds(self) -> bool:
        """Whether states are float16, which are rounded stochastically."""
        return bool(self._cache.ssm) and self._cache.ssm[0].dtype == torch.float16

    def prepare(self, schedule: Schedule) -> Callable[[], Callable[[], StepResult]]:
        """Copy what the step needs; return the work to launch, whose result reads the step's results."""
        arrays = build(schedule, self._persistent, self._chunk, self._page_size)
        adapters = self._places_of(schedule, arrays)
        newcomers = [
            _NewRow(
                sequence.row,
                sequence.scored_params,
                sequence.seed,
                sequence.prompt_len,
                sequence.known_token_ids().copy() if penalized(sequence.params) else NO_TOKENS,
            )
            for sequence in (piece.sequence for piece in schedule.pieces if piece.final)
        ]
        spans = [
            PromptSpan(piece, first, stop, follow, schedule.pieces[piece].sequence.params.prompt_logprobs)
            for piece, (first, stop, follow) in arrays.prompt_spans.items()
        ]
        pages = self._persistent.unsent_pages(arrays.table_row)
        accepted = {
            int(schedule.decode_rows[each.index]): schedule.decodes[each.index].last_tokens(each.count)
            for each in schedule.absorbed
        }
        noise = self._state_noise(arrays)
        masks = token_masks(rules_of_rows(schedule), self._sampler.vocab_size)
        work = partial(
            self._run, arrays, noise, pages, newcomers, spans, masks, accepted, adapters, self.head_reads()
        )
        if not schedule.drafts:
            return work
        return lambda: partial(with_drafts, schedule, work())

    def _places_of(self, schedule: Schedule, arrays: StepArrays) -> Ints | None:
        """Return the place of the adapter of each sequence of a step; None = the model has no adapters.

        A sequence begins in its row with a piece of its prompt, also after a preemption.
        """
        if (bank := self._model.adapters) is None:
            return None
        for piece in schedule.pieces:
            self._places[piece.sequence.row] = bank.place_of(piece.sequence.adapter)
        return self._places[arrays.table_row]

    def prepare_absorption(self, row: int, lane: int, count: int) -> Callable[[], object]:
        """Return work that computes the first `count` inputs in the lane `lane` into the state of `row`."""
        memory, batch = self._cache.replay, self._persistent
        assert memory is not None
        only, turns = np.array([row]), np.arange(1, count + 1, dtype=np.int32)
        host = HostReplay(
            absorbed_slot=batch.live[only],
            absorbed_lane=np.array([lane], np.int32),
            absorbed_count=np.array([count], np.int32),
            absorbed_noise=noise_words(batch.state_seed[only][:, None], batch.depth[only] - count + turns),
            draft_slot=NO_TOKENS,
            draft_lane=NO_TOKENS,
            draft_len=NO_TOKENS,
        )

        def work() -> bool:
            self._model.absorb(ReplayPlan.build(host, memory, 0, NO_TOKENS, self._device), self._cache)
            return True

        return work

    def prepare_drafts(self, request: HeadRequest) -> Callable[[], Callable[[], list[Tokens]]]:
        """Return the work that drafts with the model's head, whose result reads the drafts afterwards."""
        memory, batch = self._cache.hidden, self._persistent
        assert memory is not None
        rows, depth = request.rows, batch.depth[request.rows]
        # Copied, like everything else of the batch that the work needs.
        places = memory.place(rows, batch.lane[rows], batch.waiting[rows])
        pages = batch.unsent_pages(rows)
        if self._step_decoder is not None and (head := self._step_decoder.head) is not None:
            return partial(self._draft_in_one_call, head, request, places, depth, pages)
        reached = []
        for turn in range(int(request.counts.max())):
            more = request.counts > turn
            position = depth[more] + turn
            page = batch.pages[rows[more], position // self._page_size]
            reached.append((rows[more], position, page))

        def work() -> Callable[[], list[Tokens]]:
            with torch.inference_mode():
                self._page_table.write(*pages)
                plans = [self._head_plan(*each) for each in reached]
                last = _to(request.last_tokens, self._device)
                preceding = memory.kept[_to(places.astype(np.int64), self._device)]
                drafts = self._model.draft(last, preceding, plans, self._cache)
                landed = to_host(torch.cat(drafts))
            sizes = [plan.tokens for plan in plans]
            return lambda: by_sequence(landed.numpy(), sizes, request.counts)

        return work

    def _draft_in_one_call(
        self, head: HeadSteps, request: HeadRequest, places: Ints, depth: Ints, pages: tuple[Ints, Ints]
    ) -> Callable[[], list[Tokens]]:
        """Do the work of `prepare_drafts` in one call of the C++ kernels.

        `places` are the rows of memory with the hidden states before the last tokens, `depth` the positions
        of these tokens, and `pages` the entries to set in the page table and their page ids.
        """
        self._page_table.write(*pages)
        drafted = head.draft(request.last_tokens, places, request.counts, request.rows, depth)
        return lambda: [row[:count] for row, count in zip(drafted, request.counts.tolist(), strict=True)]

    def _head_plan(self, rows: Ints, positions: Ints, pages: Ints) -> StepPlans:
        return StepPlans.of_head(
            rows, positions, pages, page_table=self._page_table.entries, page_size=self._page_size,
            gathered=self._model.head_gathers,
        )  # fmt: skip

    @property
    def sampling(self) -> Sampling:
        """Sampler and parameters of the engine's rows, for a draft model.

        Used on the forward stream alone.
        """
        return Sampling(self._sampler, self._sampling.__getitem__)

    def compare_states(self, slot: int, truth: int) -> Callable[[], Callable[[], list[float]]]:
        """Return the work that computes the `state_distances` of two slots."""

        def work() -> Callable[[], list[float]]:
            with torch.inference_mode():
                distances = to_host(state_distances(self._cache, slot, truth))
            return lambda: [float(distance) for distance in distances.tolist()]

        return work

    def _state_noise(self, arrays: StepArrays) -> Ints:
        """Return `HostBatch.state_noise`: the words by which float16 states are rounded, or none."""
        if not self._rounds:
            return NO_TOKENS
        rows = arrays.table_row[arrays.token_sequence]
        return noise_words(self._persistent.state_seed[rows], arrays.positions + 1)

    def _run(
        self,
        arrays: StepArrays,
        noise: Ints,
        pages: tuple[Ints, Ints],
        newcomers: list[_NewRow],
        spans: list[PromptSpan],
        masks: TokenMasks | None,
        accepted: dict[int, Tokens],
        places: Ints | None,
        head_reads: bool,
    ) -> Callable[[], StepResult]:
        decodes = len(arrays.decode_track)
        drafts = 0 if arrays.replay is None else arrays.replay.rows
        adapters = self._adapters_of(places, arrays)
        with torch.inference_mode(), self._computing(adapters):
            # First, because the next step names these pages, too, whatever becomes of this one.
            self._page_table.write(*pages)
            self._admit(newcomers)
            if accepted:
                self._go_on_behind(accepted)
            sampling_rows = arrays.table_row[arrays.sampling]
            host = HostBatch(**{name: getattr(arrays, name) for name in _FIELDS}, state_noise=noise)
            if (step := self._prepared(host, adapters)) is not None:
                return self._decode(step, host, masks)
            extra = {"rows": sampling_rows, "positions": arrays.context_len[arrays.sampling]}
            if (decoder := self._whole_decoder(host)) is not None:
                drafted = arrays.token_ids[decodes - drafts : decodes]
                of_rows = None if adapters is None else adapters.decode_places
                hidden = decoder(host, of_rows, drafted, head_reads=head_reads)
                rows, positions = (_to(values, self._device) for values in extra.values())
            else:
                batch = self._batch_of(host, arrays.token_ids, extra)
                rows, positions = batch.extras["rows"], batch.extras["positions"]
                if certain := decodes - drafts:
                    batch.token_ids[:certain] = self._last_token[rows[:certain]]
                hidden = self._hidden(batch)
            scores = [self._score(hidden, span) for span in spans]
            pooled = {
                piece: to_host(hidden[rows].to(torch.float32).sum(0))
                for piece, rows in arrays.pooled_rows.items()
            }
            samples = len(arrays.sampling)
            probes = hidden[samples : len(arrays.checked)]
            if not samples:
                finite = to_host(is_finite(probes))
                return lambda: host_result(
                    None, spans, scores, [], in_schedule_order(finite, arrays.checked), pooled
                )
            batches = self._sampling_batch(sampling_rows)
            self._sampler.count_drafts(self._drafted, arrays.token_ids[decodes - drafts : decodes])
            sampled = self._sample(hidden[:samples], batches, positions, masks)
            checked = torch.cat([sampled.finite, is_finite(probes)]) if len(probes) else sampled.finite
            finite = to_host(checked)
            ids = sampled.ids
            if drafts:
                # The tokens behind drafts count once they are accepted, and the next step corrects them.
                own = decodes - drafts
                if samples == decodes:
                    rows, ids = rows[:own], ids[:own]
                else:
                    kept = [*range(own), *range(decodes, samples)]
                    rows, ids = rows[kept], ids[kept]
            self._last_token.index_copy_(0, rows.long(), ids)
            tops = [self._sampling[row].params.logprobs for row in sampling_rows.tolist()]
            landed = on_host(sampled)
            return lambda: host_result(
                landed, spans, scores, tops, in_schedule_order(finite, arrays.checked), pooled
            )

    def _computing(self, adapters: StepAdapters | None) -> AbstractContextManager[None]:
        """Return a context in which the layers compute with these adapters; None = no row has one."""
        bank = self._model.adapters
        return nullcontext() if bank is None else bank.computing(adapters)

    def _go_on_behind(self, accepted: dict[int, Tokens]) -> None:
        """Let each row go on from the last token sampled behind its accepted drafts; count all of these."""
        last = {row: int(tokens[-1]) for row, tokens in accepted.items()}
        if self._last_on_host is not None:
            self._last_on_host[[*last]] = [*last.values()]
        else:
            rows, tokens = _to(np.array([*last.items()], np.int64).T, self._device)
            self._last_token.index_copy_(0, rows, tokens.to(torch.int32))
        self._sampler.count([(self._sampling[row].counts_row, tokens) for row, tokens in accepted.items()])

    def _hidden(self, batch: ForwardBatch) -> torch.Tensor:
        """Run the layers; return the normed hidden states of the rows `batch.logits_rows`."""
        hidden = self._model.hidden(batch, self._cache)
        if batch.pieces is not None:
            # All layers cut alike in every step.
            self._segments.update(batch.pieces.cuts)
        return hidden

    def _follow(self, host: HostBatch, hidden: torch.Tensor, rows: Ints) -> None:
        """Let the model's head, if it drafts, read the tokens of a step that only decodes `rows`."""
        if self._cache.hidden is not None:
            token_ids = self._last_token.index_select(0, _to(rows, self._device))
            self._model.follow(hidden, token_ids, host, self._cache, self._page_table.entries)

    def _batch_of(
        self, host: HostBatch, token_ids: torch.Tensor | Ints, extra: Mapping[str, Ints] | None = None
    ) -> ForwardBatch:
        return ForwardBatch.from_host(
            host,
            token_ids=token_ids,
            page_table=self._page_table.entries,
            chunk_size=self._chunk,
            page_size=self._page_size,
            device=self._device,
            segments=self._segments,
            extras=extra,
        )

    def _decode_step(self, rows: int) -> DecodeStep:
        return DecodeStep(
            rows, self._model, self._cache, self._sampler, self._page_table.entries, self._last_token,
            self._page_size,
        )  # fmt: skip

    def _whole_decoder(self, host: HostBatch) -> StepDecoder | None:
        """Return the C++ decoder for `host`, if it only decodes."""
        if (bank := self._model.adapters) is not None and bank.changes_experts:
            return None  # the C++ decoder computes experts without adapters
        return self._step_decoder if len(host.decode_track) == len(host.context_len) else None

    def _adapters_of(self, places: Ints | None, arrays: StepArrays) -> StepAdapters | None:
        """Return the adapters of a step; None = no sequence has one."""
        if places is None:
            return None
        return StepAdapters.build(places, arrays.query_start, len(arrays.decode_track), self._device)

    def _prepared(self, host: HostBatch, adapters: StepAdapters | None) -> DecodeStep | None:
        """Return the prepared step that can compute `host`; None = its kernels are launched one by one.

        Only a step that decodes alone, without adapters and drafts, can be a prepared one.
        """
        sequences = len(host.context_len)
        if adapters is not None:
            return None
        if self._decode_steps is None or len(host.decode_track) < sequences or host.replay is not None:
            return None
        return self._decode_steps.step_for(sequences)

    def _decode(
        self, step: DecodeStep, host: HostBatch, masks: TokenMasks | None
    ) -> Callable[[], StepResult]:
        hidden = step.forward(host)
        self._follow(host, hidden, host.table_row)
        rows = [self._sampling[row] for row in host.table_row.tolist()]
        if masks is None and all(row.plain for row in rows):
            self._sampler.set_up_counts([row for row in rows if row.counts_row >= 0])
            choice = step.choose(rows)
            sampled = SampledTokens(choice.ids, choice.finite, None, None, None)
        else:
            positions = _to(host.context_len, self._device)
            batches = self._sampling_batch(host.table_row)
            sampled = self._sample(hidden, batches, positions, masks)
            self._last_token[_to(host.table_row.astype(np.int64), self._device)] = sampled.ids
        landed = on_host(sampled, reused=True)
        tops = [row.params.logprobs for row in rows]
        return lambda: host_result(landed, [], [], tops, landed.finite.numpy())

    def _sample(
        self,
        hidden: torch.Tensor,
        batches: list[SamplingBatch],
        positions: torch.Tensor,
        masks: TokenMasks | None,
    ) -> SampledTokens:
        """Sample tokens for the rows of `hidden`, at most `LOGIT_ROWS` at a time."""
        parts, first = [], 0
        together = max(1, LOGIT_ROWS // max(batch.size for batch in batches))
        for number in range(0, len(batches), together):
            group = batches[number : number + together]
            rows = slice(first, first + sum(batch.size for batch in group))
            of_rows = masks.of_rows(rows) if masks is not None else None
            parts.append(self._sampler.sample(self._logits(hidden[rows]), group, positions[rows], of_rows))
            first = rows.stop
        return joined(parts)

    def _admit(self, newcomers: list[_NewRow]) -> None:
        if newcomers:
            self._batch = None
        for new in newcomers:
            previous = self._sampling.pop(new.row, None)
            if previous is not None:
                self._sampler.release(previous)
            self._sampling[new.row] = self._sampler.admit(new.params, new.seed, new.prompt_len, new.token_ids)

    def _sampling_batch(self, rows: Ints) -> list[SamplingBatch]:
        """Return how the rows sample, as one batch for each block of rows.

        The list is built anew only if the rows have changed, or requests were admitted, since the last call.
        """
        key = rows.tobytes()
        if key != self._batch_key or self._batch is None:
            of_rows = [self._sampling[row] for row in rows.tolist()]
            of_rows, self._drafted = self._sampler.with_drafts(of_rows)
            self._batch = self._sampler.batch(of_rows)
            self._batch_key = key
        return self._batch

    def _score(self, hidden: torch.Tensor, span: PromptSpan) -> TokenScores:
        """Score a prompt in blocks, because the logits of all its rows may be larger than the model."""
        rows = hidden[span.first : span.stop]
        scores = score_blocks(
            lambda block: self._model.logits(rows[block]),
            _to(span.follow.astype(np.int64), self._device),
            max(1, span.top),
            self._sampler.vocab_size,
            accumulator(hidden.dtype),
        )
        return TokenScores(
            to_host(scores.logprob),
            to_host(scores.rank),
            to_host(scores.top_ids),
            to_host(scores.top_logprobs),
        )


def _to(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)


def state_distances(views: CacheViews, slot: int, truth: int) -> torch.Tensor:
    """Return [2 * layers] distances: of the SSM parts of all recurrent layers, then of their windows.

    A distance is the largest difference of two numbers in a head, relative to the largest number that the
    head has in `truth`; infinity if a number is not finite.
    """
    parts = [*views.ssm, *views.conv]
    return torch.stack([_distance(part[slot].double(), part[truth].double()) for part in parts])


def _distance(state: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the distance of one layer's part; its first axis counts heads, or the inputs of a window."""
    heads = len(state)
    differences = (state - truth).abs().reshape(heads, -1).amax(1)
    sizes = truth.abs().reshape(heads, -1).amax(1)
    scale = torch.maximum(sizes, SMALLEST * sizes.amax()).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.nan_to_num((differences / scale).amax(), nan=torch.inf, posinf=torch.inf)
