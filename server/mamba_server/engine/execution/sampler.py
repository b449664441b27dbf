"""Sampler: turns logits into tokens on the device, without a host sync.

Bias, penalties, truncation, choice and log-probabilities. The runner calls it after each forward. A row's
result depends on its own logits, parameters and position alone. It owns the token counts that penalties need:
the engine runs one step ahead and does not know the sampled token yet, so the sampler counts it.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.row_operations import RowArgmax
from mamba_kernels.dispatch.signatures import Sample
from mamba_kernels.precision import accumulator
from mamba_kernels.sample import PenaltyCounts, SampleParameters, TokenChoice
from mamba_kernels.sample.noise import gumbel, scatter_tokens
from mamba_kernels.sample.reference import is_finite, min_p, penalize, top_k, top_p
from mamba_kernels.transfer import to_device
from mamba_planner.workspace import LOGIT_ROWS
from mamba_server.cache import NO_TOKENS, Tokens
from mamba_server.engine.execution.sampling_batch import (
    Filter,
    Penalties,
    SamplingBatch,
    SamplingRow,
    TokenEntries,
    penalized,
)
from mamba_server.engine.execution.token_scores import block_rows, score_tokens
from mamba_server.engine.sequences.output_grammar import TokenMasks
from mamba_server.grammar_matcher import WORD
from mamba_server.wire import SamplingParams

Truncation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function (logits [r, vocab], parameter [r, 1]) -> mask of the tokens that stay."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens that one step sampled in its L rows, on the device.

    Log-probabilities are those before any processing of the logits.
    """

    ids: torch.Tensor
    """Ids of the tokens, [L] int32."""
    finite: torch.Tensor
    """[L] bool: whether the logits are neither NaN nor plus infinity; otherwise the token means nothing."""
    logprob: torch.Tensor | None
    """[L] log-probability of the sampled token; NaN in rows that do not request it; None if none does."""
    top_ids: torch.Tensor | None
    """[L, k] int32, best first, k = the most that any row requests; None when k is 0."""
    top_logprobs: torch.Tensor | None
    """Log-probabilities of `top_ids`, [L, k]; None when k is 0."""


@dataclass(frozen=True, slots=True)
class DraftedRow:
    """A row of a step that computes a draft of a sequence with penalties.

    It has a row of counts of its own, in which the drafted tokens before it count.
    """

    owner: int
    """Row of the counts of the sequence."""
    counts_row: int
    serial: int
    places: tuple[int, ...]
    """Numbers of the draft's tokens up to the row's own, among all drafted tokens of the step."""


class Sampler:
    """Turns logits into tokens. `admit` and `release` enclose a sequence; `sample` runs once per step.

    `admit`, `release` and `batch` belong to the thread that plans, `sample` to the forward stream. A row of
    the count tables may get a new owner while a step that still counts for its last one is in flight;
    therefore only `sample` writes to the tables, and it sets a row up when its new owner first samples.
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        eos_token_ids: Sequence[int] = (),
        operator: Sample | None = None,
        library: Library | None = None,
    ) -> None:
        """Create empty count tables.

        `operator`: chooses for all rows of a block, as `mamba_kernels.sample`; None = torch chooses by the
        features that rows use or, where they use none, the C++ kernels of `library` do.
        """
        self.vocab_size, self.device = vocab_size, device
        self._operator = operator
        self._largest = None if library is None else RowArgmax(library)
        self._eos = tuple(eos_token_ids)
        self._scattered = scatter_tokens(vocab_size, device)
        self._serial = itertools.count()
        self._rows = 0
        self._free: list[int] = []
        self._output_counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._owners: list[int] = []
        """Serial number of the sequence whose counts are in each row."""
        self._draft_rows: list[int] = []
        """Rows of the count tables for drafts."""

    def admit(
        self, params: SamplingParams, seed: int, prompt_len: int, token_ids: Tokens = NO_TOKENS
    ) -> SamplingRow:
        """Return the row of a sequence.

        `token_ids`: prompt and output so far (of a sequence that was preempted and comes back); only read
        with penalties, and must not change afterwards.
        """
        eos = () if params.ignore_eos else self._eos
        return SamplingRow(
            params=params,
            seed=seed,
            prompt_len=prompt_len,
            serial=next(self._serial),
            counts_row=self._take_row() if penalized(params) else -1,
            token_ids=token_ids,
            blocked=tuple(sorted({t for t in (*eos, *params.stop_token_ids) if 0 <= t < self.vocab_size})),
        )

    @property
    def tables(self) -> int:
        """Address of the count tables, which changes when they move to other memory."""
        return self._output_counts.data_ptr()

    def reserve(self, rows: int) -> None:
        """Allocate counts for `rows` sequences with penalties; `tables` stays the same while they suffice."""
        missing = rows - len(self._owners)
        for name in ("_output_counts", "_in_prompt"):
            table: torch.Tensor = getattr(self, name)
            setattr(self, name, torch.cat([table, table.new_zeros(missing, self.vocab_size)]))
        self._owners += [-1] * missing

    def choose(
        self, logits: torch.Tensor, parameters: SampleParameters, positions: torch.Tensor
    ) -> TokenChoice:
        """Let the operator choose for rows that need only a token; the counts of penalties are set up.

        `logits`: [r, vocab] float32, overwritten; `parameters` of r rows; `positions`: [r] as in `sample`.
        """
        assert self._operator is not None
        choice: TokenChoice = self._operator(
            logits, parameters, PenaltyCounts(self._output_counts, self._in_prompt), positions
        )
        return choice

    def try_out(self, logits: torch.Tensor, positions: torch.Tensor) -> None:
        """Sample with all features for rows without a sequence; arguments as in `sample`."""
        params = SamplingParams(
            max_tokens=1, temperature=1.0, top_k=1, top_p=0.5, min_p=0.1, logprobs=1, logit_bias={0: 0.0},
            repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1,
        )  # fmt: skip
        rows = [self.admit(params, 0, 0) for _ in range(len(logits))]
        self.sample(logits, self.batch(rows), positions)
        for row in rows:
            self.release(row)

    def release(self, row: SamplingRow) -> None:
        """Release the row of a sequence that ended or was preempted, so that `admit` can reuse its counts."""
        if row.counts_row >= 0:
            self._free.append(row.counts_row)

    def with_drafts(self, rows: Sequence[SamplingRow]) -> tuple[list[SamplingRow], list[DraftedRow]]:
        """Give the rows of drafts, in which a sequence occurs again, counts of their own.

        Return all rows, and the drafted rows of sequences with penalties.
        """
        changed: list[SamplingRow] = []
        drafted: list[DraftedRow] = []
        places: dict[int, tuple[int, ...]] = {}
        number = 0
        for row in rows:
            if row.serial not in places:
                places[row.serial] = ()
                changed.append(row)
                continue
            places[row.serial] += (number,)
            number += 1
            if row.counts_row < 0:
                changed.append(row)
                continue
            if len(drafted) == len(self._draft_rows):
                self._draft_rows.append(self._take_row())
            own = replace(row, counts_row=self._draft_rows[len(drafted)], serial=next(self._serial))
            drafted.append(DraftedRow(row.counts_row, own.counts_row, own.serial, places[row.serial]))
            changed.append(own)
        return changed, drafted

    def count_drafts(self, drafted: Sequence[DraftedRow], tokens: Tokens) -> None:
        """Fill the counts of rows of drafts: their sequences' counts, and the drafted tokens up to each row.

        Called before `sample`. `tokens` are all drafted tokens of the step, in the order of their rows.
        """
        if not drafted:
            return
        self._provide(max(row.counts_row for row in drafted))
        own, owners = ([getattr(row, name) for row in drafted] for name in ("counts_row", "owner"))
        self._output_counts[own] = self._output_counts[owners]
        self._in_prompt[own] = self._in_prompt[owners]
        self.count([(row.counts_row, tokens[list(row.places)]) for row in drafted])
        for row in drafted:
            self._owners[row.counts_row] = row.serial

    def count(self, tokens: Sequence[tuple[int, Tokens]]) -> None:
        """Count tokens that were not sampled in the row of their sequence: (row of the counts, tokens) each.

        Nothing is counted in row -1.
        """
        pairs = [
            (row, token)
            for row, some in tokens
            for token in some.tolist()
            if row >= 0 and 0 <= token < self.vocab_size
        ]
        if pairs:
            rows, ids = to_device(torch.tensor(pairs, dtype=torch.int64).T.contiguous(), self.device)
            one = self._output_counts.new_ones(())
            self._output_counts.index_put_((rows, ids), one, accumulate=True)

    def batch(self, rows: Sequence[SamplingRow]) -> list[SamplingBatch]:
        """Group the rows of a step into blocks; the result stays valid while the rows stay the same.

        An operator overwrites the logits, so its blocks are as large as the blocks in which the head computes
        logits. Log-probabilities keep a copy of the logits before the choice: where some row requests them,
        the blocks are the ones that are scored together.
        """
        in_place = self._operator is not None and all(row.params.logprobs < 0 for row in rows)
        size = LOGIT_ROWS if in_place else block_rows(self.vocab_size)
        return [
            SamplingBatch.build(
                rows[first : first + size],
                self.vocab_size,
                self.device,
                together=self._operator is not None,
            )
            for first in range(0, len(rows), size)
        ]

    def sample(
        self,
        logits: torch.Tensor,
        batches: Sequence[SamplingBatch],
        positions: torch.Tensor,
        masks: TokenMasks | None = None,
    ) -> SampledTokens:
        """Choose one token per row; the rows of `masks` choose among the tokens that they allow.

        Args:
            logits: [L, vocab] float32 or as the head returns them; overwritten.
            batches: sampling parameters of the rows, in blocks.
            positions: [L] int32, absolute position of the token to be chosen, which is the position of the
                row's last token plus one.
            masks: tokens that restricted rows may choose; None = no row is restricted.

        A row that holds NaN gets any token.
        """
        sizes = [batch.size for batch in batches]
        ends = list(itertools.accumulate(sizes))
        of_parts = [
            masks and masks.of_rows(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)
        ]
        parts = zip(logits.split(sizes), batches, positions.split(sizes), of_parts, strict=True)
        return joined([self._sample(*part) for part in parts])

    def _sample(
        self, logits: torch.Tensor, batch: SamplingBatch, positions: torch.Tensor, masks: TokenMasks | None
    ) -> SampledTokens:
        with torch.inference_mode():
            if batch.greedy and self._largest is not None and masks is None:
                ids, finite = self._largest(logits)
                return SampledTokens(ids.to(torch.int32), finite, None, None, None)
            logits = logits.to(accumulator(logits.dtype))
            raw = None if batch.logprobs is None else logits[batch.logprobs]
            if batch.bias is not None:
                logits.index_put_((batch.bias.rows, batch.bias.tokens), batch.bias.values, accumulate=True)
            if batch.minimum is not None:
                _block(logits, batch.minimum, positions)
            if masks is not None:
                _mask(logits, masks)
            ids, finite = self._choose(logits, batch, positions)
            if raw is None or batch.logprobs is None:
                return SampledTokens(ids.to(torch.int32), finite, None, None, None)
            return _with_logprobs(ids, finite, raw, batch.logprobs, batch.logprobs_max)

    def _choose(
        self, logits: torch.Tensor, batch: SamplingBatch, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and whether the logits are finite, both [L]; count the ids."""
        self.set_up_counts(batch.counted)
        if batch.parameters is not None:
            choice = self.choose(logits, batch.parameters, positions)
            return choice.ids, choice.finite
        if batch.penalties is None:
            # One pass over logits that do not fit into a CPU's cache; `argmax` alone takes three times as
            # long.
            best = logits.max(-1)
            finite, ids = best.values.isfinite(), best.indices
        else:
            finite = is_finite(logits)
            self._penalize(logits, batch.penalties)
            ids = logits.argmax(-1)
        if batch.random is not None:
            ids[batch.random] = self._draw(logits[batch.random], batch, positions[batch.random])
        if batch.penalties is not None:
            where = (batch.penalties.counts_rows, ids[batch.penalties.rows])
            self._output_counts[where] += 1
        return ids, finite

    def _draw(self, logits: torch.Tensor, batch: SamplingBatch, positions: torch.Tensor) -> torch.Tensor:
        """Draw ids [R] from `logits` [R, vocab], a copy of the random rows."""
        assert batch.temperature is not None
        assert batch.words is not None
        # Shifted by the maximum first: a tiny temperature then sharpens instead of overflowing.
        logits.sub_(logits.amax(-1, keepdim=True)).div_(batch.temperature)
        if batch.min_p is not None:
            _apply(logits, batch.min_p, min_p)
        if batch.top_k is not None:
            _apply(logits, batch.top_k, lambda part, k: top_k(part, k, batch.top_k_max))
        if batch.top_p is not None:
            _apply(logits, batch.top_p, top_p)
        return logits.add_(gumbel(batch.words, positions, self._scattered)).argmax(-1)

    def _penalize(self, logits: torch.Tensor, penalties: Penalties) -> None:
        logits[penalties.rows] = penalize(
            logits[penalties.rows],
            self._output_counts[penalties.counts_rows],
            self._in_prompt[penalties.counts_rows],
            penalties.repetition,
            penalties.presence,
            penalties.frequency,
        )

    def _histogram(self, token_ids: Tokens) -> torch.Tensor:
        valid = token_ids[(token_ids >= 0) & (token_ids < self.vocab_size)]
        counts = np.bincount(valid, minlength=self.vocab_size).astype(np.int32)
        return to_device(torch.from_numpy(counts), self.device)

    def _take_row(self) -> int:
        if self._free:
            return self._free.pop()
        self._rows += 1
        return self._rows - 1

    def _provide(self, row: int) -> None:
        """Grow the count tables until they have `row`."""
        if (missing := row + 1 - len(self._owners)) > 0:
            self.reserve(len(self._owners) + max(missing, len(self._owners), 4))

    def set_up_counts(self, owners: Sequence[SamplingRow]) -> None:
        """Set up the counts of sequences with penalties that sample for the first time."""
        for row in owners:
            self._provide(row.counts_row)
            if self._owners[row.counts_row] != row.serial:
                self._owners[row.counts_row] = row.serial
                self._in_prompt[row.counts_row] = self._histogram(row.token_ids[: row.prompt_len]) > 0
                self._output_counts[row.counts_row] = self._histogram(row.token_ids[row.prompt_len :])


def joined(parts: list[SampledTokens]) -> SampledTokens:
    """Join the results of a step's blocks; all get as many top tokens as the block with the most."""
    if len(parts) == 1:
        return parts[0]
    ids, finite = (torch.cat([getattr(part, name) for part in parts]) for name in ("ids", "finite"))
    if all(part.logprob is None for part in parts):
        return SampledTokens(ids, finite, None, None, None)
    none = ids.new_zeros(0, dtype=torch.float32)
    logprobs = [none.new_full((len(p.ids),), torch.nan) if p.logprob is None else p.logprob for p in parts]
    width = max(0 if part.top_ids is None else part.top_ids.shape[1] for part in parts)
    if not width:
        return SampledTokens(ids, finite, torch.cat(logprobs), None, None)
    top_ids = ids.new_zeros(len(ids), width)
    top_logprobs = none.new_full((len(ids), width), torch.nan)
    first = 0
    for part in parts:
        if part.top_ids is not None and part.top_logprobs is not None:
            where = slice(first, first + len(part.ids)), slice(part.top_ids.shape[1])
            top_ids[where], top_logprobs[where] = part.top_ids, part.top_logprobs
        first += len(part.ids)
    return SampledTokens(ids, finite, torch.cat(logprobs), top_ids, top_logprobs)


def _with_logprobs(
    ids: torch.Tensor, finite: torch.Tensor, raw: torch.Tensor, rows: torch.Tensor, top: int
) -> SampledTokens:
    scores = score_tokens(raw, ids[rows], top)
    logprob = raw.new_full((len(ids),), torch.nan)
    logprob[rows] = scores.logprob
    if top == 0:
        return SampledTokens(ids.to(torch.int32), finite, logprob, None, None)
    width = scores.top_ids.shape[1]
    top_ids = torch.zeros(len(ids), width, dtype=torch.int32, device=ids.device)
    top_logprobs = raw.new_full((len(ids), width), torch.nan)
    top_ids[rows], top_logprobs[rows] = scores.top_ids, scores.top_logprobs
    return SampledTokens(ids.to(torch.int32), finite, logprob, top_ids, top_logprobs)


def _block(logits: torch.Tensor, minimum: TokenEntries, positions: torch.Tensor) -> None:
    where = (minimum.rows, minimum.tokens)
    early = positions[minimum.rows] < minimum.values
    logits[where] = logits[where].masked_fill(early, -torch.inf)


def _mask(logits: torch.Tensor, masks: TokenMasks) -> None:
    """Exclude tokens that `masks` do not allow.

    Where no allowed token is left, because other features exclude them all, all allowed ones may come: the
    form wins.
    """
    rows = to_device(torch.from_numpy(masks.rows), logits.device)
    words = to_device(torch.from_numpy(masks.words), logits.device)
    bits = torch.arange(WORD, dtype=torch.int32, device=logits.device)
    size = block_rows(logits.shape[1])
    for block, block_words in zip(rows.split(size), words.split(size), strict=True):
        allowed = (block_words[:, :, None] >> bits & 1).bool().flatten(1)[:, : logits.shape[1]]
        masked = logits[block].masked_fill_(~allowed, -torch.inf)
        blocked = masked.amax(-1, keepdim=True) == -torch.inf
        logits[block] = masked.masked_fill_(blocked & allowed, 0.0)


def _apply(logits: torch.Tensor, users: Filter, keep: Truncation) -> None:
    """Truncate the rows of `users` to their `keep` mask."""
    if len(users.rows) == len(logits):
        logits.masked_fill_(~keep(logits, users.values), -torch.inf)
        return
    part = logits[users.rows]
    logits[users.rows] = part.masked_fill_(~keep(part, users.values), -torch.inf)
