"""The device side of a step: moves its integers over, runs the model, samples, keeps the sampled tokens.

`prepare` runs on the loop's side and copies everything out of the persistent batch; the work it returns runs
on the forward stream, where alone sampler and model are touched; what that returns reads the results after
the step's fence.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch

from mamba_kernels.dispatch.operators import Operator
from mamba_kernels.sample.reference import is_finite
from mamba_kernels.stochastic_rounding import noise_words
from mamba_kernels.transfer import to_device
from mamba_planner.workspace import LOGIT_ROWS
from mamba_server.cache.node import NO_TOKENS
from mamba_server.cache.persistent_batch import Ints, PersistentBatch
from mamba_server.engine.core import StepResult
from mamba_server.engine.sampler import SampledTokens, Sampler, TokenScores, block_rows, joined, score_tokens
from mamba_server.engine.sampling_batch import SamplingBatch, SamplingRow, penalized
from mamba_server.engine.schedule import Schedule
from mamba_server.engine.step_arrays import StepArrays, build
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.forward_batch import ForwardBatch, HostBatch
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.page_table import PageTable
from mamba_server.wire import SamplingParams, TokenLogprobs

_FIELDS = tuple(field.name for field in fields(HostBatch) if field.name != "state_noise")


@dataclass(frozen=True, slots=True)
class _Newcomer:
    """A row that samples for the first time in this step (or for the first time after a preemption)."""

    row: int
    params: SamplingParams
    seed: int
    prompt_len: int
    token_ids: Ints
    """Prompt and output so far; empty unless a penalty asks for them."""


@dataclass(frozen=True, slots=True)
class _PromptSpan:
    piece: int
    first: int
    stop: int
    follow: Ints
    top: int


class ModelRunner:
    """One model on one device. `last_token[row]`: the token each row sampled last, for its next decode."""

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
        sample: Operator | None = None,
    ) -> None:
        """`sample`: as of `Sampler`."""
        self._model = model
        self._cache = cache
        self._persistent = persistent
        self._chunk = chunk
        self._page_size = page_size
        self._device = device
        self._last_token = torch.zeros(persistent.rows, dtype=torch.int32, device=device)
        self._page_table = PageTable(persistent.rows, persistent.pages.shape[1], device)
        self._sampler = Sampler(vocab_size, device, eos_token_ids, sample)
        self._sampling: dict[int, SamplingRow] = {}
        self._batch_key = b""
        self._batch: list[SamplingBatch] | None = None

    def prepare(self, schedule: Schedule) -> Callable[[], Callable[[], StepResult]]:
        """Everything the step needs, taken now; the work to launch."""
        arrays = build(schedule, self._persistent, self._chunk, self._page_size)
        newcomers = [
            _Newcomer(
                sequence.row,
                sequence.params,
                sequence.seed,
                sequence.prompt_len,
                sequence.known_token_ids().copy() if penalized(sequence.params) else NO_TOKENS,
            )
            for sequence in (piece.sequence for piece in schedule.pieces if piece.final)
        ]
        spans = [
            _PromptSpan(piece, first, stop, follow, schedule.pieces[piece].sequence.params.prompt_logprobs)
            for piece, (first, stop, follow) in arrays.prompt_spans.items()
        ]
        pages = self._persistent.unsent_pages(arrays.table_row)
        noise = self._state_noise(arrays)
        return lambda: self._run(arrays, noise, pages, len(schedule.decodes), newcomers, spans)

    def _state_noise(self, arrays: StepArrays) -> Ints:
        """As of `HostBatch`."""
        if not (self._cache.ssm and self._cache.ssm[0].dtype == torch.float16):
            return NO_TOKENS
        rows = arrays.table_row[arrays.token_sequence]
        return noise_words(self._persistent.state_seed[rows], arrays.positions + 1)

    def _run(
        self,
        arrays: StepArrays,
        noise: Ints,
        pages: tuple[Ints, Ints],
        decodes: int,
        newcomers: list[_Newcomer],
        spans: list[_PromptSpan],
    ) -> Callable[[], StepResult]:
        with torch.inference_mode():
            # First of all: the next step names them too, whatever becomes of this one.
            self._page_table.write(*pages)
            self._admit(newcomers)
            sampling_rows = arrays.table_row[arrays.sampling]
            batch = ForwardBatch.from_host(
                HostBatch(**{name: getattr(arrays, name) for name in _FIELDS}, state_noise=noise),
                token_ids=arrays.token_ids,
                page_table=self._page_table.entries,
                chunk_size=self._chunk,
                page_size=self._page_size,
                device=self._device,
            )
            rows = _to(sampling_rows.astype(np.int64), self._device)
            if decodes:
                batch.token_ids[:decodes] = self._last_token[rows[:decodes]]
            hidden = self._model.hidden(batch, self._cache)
            scores = [self._score(hidden, span) for span in spans]
            wanted = len(arrays.sampling)
            probes = hidden[wanted : len(arrays.checked)]
            if not wanted:
                finite = _to_host(is_finite(probes))
                return lambda: _land(None, spans, scores, [], _of_members(finite, arrays.checked))
            positions = _to(arrays.context_len[arrays.sampling], self._device)
            sampled = self._sample(hidden[:wanted], self._sampling_batch(sampling_rows), positions)
            finite = _to_host(torch.cat([sampled.finite, is_finite(probes)]))
            self._last_token[rows] = sampled.ids
            tops = [self._sampling[row].params.logprobs for row in sampling_rows.tolist()]
            landed = _on_host(sampled)
            return lambda: _land(landed, spans, scores, tops, _of_members(finite, arrays.checked))

    def _sample(
        self, hidden: torch.Tensor, batches: list[SamplingBatch], positions: torch.Tensor
    ) -> SampledTokens:
        """Tokens of the rows of `hidden`; at most `LOGIT_ROWS` at a time."""
        parts, first = [], 0
        together = max(1, LOGIT_ROWS // max(batch.size for batch in batches))
        for number in range(0, len(batches), together):
            some = batches[number : number + together]
            rows = slice(first, first + sum(batch.size for batch in some))
            parts.append(self._sampler.sample(self._model.logits(hidden[rows]), some, positions[rows]))
            first = rows.stop
        return joined(parts)

    def _admit(self, newcomers: list[_Newcomer]) -> None:
        if newcomers:
            self._batch = None
        for each in newcomers:
            before = self._sampling.pop(each.row, None)
            if before is not None:
                self._sampler.release(before)
            self._sampling[each.row] = self._sampler.admit(
                each.params, each.seed, each.prompt_len, each.token_ids
            )

    def _sampling_batch(self, rows: Ints) -> list[SamplingBatch]:
        """Parameters of the sampling rows; the same object while the rows stay the same."""
        key = rows.tobytes()
        if key != self._batch_key or self._batch is None:
            self._batch = self._sampler.batch([self._sampling[row] for row in rows.tolist()])
            self._batch_key = key
        return self._batch

    def _score(self, hidden: torch.Tensor, span: _PromptSpan) -> TokenScores:
        """Block by block: the logits of all rows of a prompt may be larger than the model."""
        size = block_rows(self._sampler.vocab_size)
        follow = _to(span.follow.astype(np.int64), self._device)
        blocks = zip(hidden[span.first : span.stop].split(size), follow.split(size), strict=True)
        parts = [score_tokens(self._model.logits(rows), ids, max(1, span.top)) for rows, ids in blocks]
        return TokenScores(
            _to_host(torch.cat([part.logprob for part in parts])),
            _to_host(torch.cat([part.rank for part in parts])),
            _to_host(torch.cat([part.top_ids for part in parts])),
            _to_host(torch.cat([part.top_logprobs for part in parts])),
        )


def _to(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Start the copy; it is complete when the step's fence has passed."""
    if tensor.device.type != "cuda":
        return tensor
    out = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return out.copy_(tensor, non_blocking=True)


def _on_host(sampled: SampledTokens) -> SampledTokens:
    def copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else _to_host(tensor)

    return SampledTokens(
        _to_host(sampled.ids),
        _to_host(sampled.finite),
        copy(sampled.logprob),
        copy(sampled.top_ids),
        copy(sampled.top_logprobs),
    )


def _of_members(finite: torch.Tensor, checked: list[int]) -> npt.NDArray[np.bool_]:
    """From the order of the logits to that of the schedule."""
    out = np.ones(len(checked), np.bool_)
    out[checked] = finite.numpy()
    return out


def _land(
    sampled: SampledTokens | None,
    spans: list[_PromptSpan],
    scores: list[TokenScores],
    tops: list[int],
    finite: npt.NDArray[np.bool_],
) -> StepResult:
    """The step's numbers on the host. Runs after the fence."""
    tokens = np.empty(0, np.int32) if sampled is None else sampled.ids.numpy()
    prompt: dict[int, list[TokenLogprobs]] = {}
    for span, score in zip(spans, scores, strict=True):
        follow = span.follow.tolist()
        prompt[span.piece] = [
            TokenLogprobs(token, logprob, ids[: span.top], values[: span.top], rank)
            for token, logprob, rank, ids, values in zip(
                follow,
                score.logprob.tolist(),
                score.rank.tolist(),
                score.top_ids.tolist(),
                score.top_logprobs.tolist(),
                strict=True,
            )
        ]
    return StepResult(tokens, _row_logprobs(sampled, tops), prompt, finite)


def _row_logprobs(sampled: SampledTokens | None, tops: list[int]) -> dict[int, TokenLogprobs]:
    if sampled is None or sampled.logprob is None:
        return {}
    out = {}
    logprobs, ids = sampled.logprob.tolist(), sampled.ids.tolist()
    top_ids = sampled.top_ids.tolist() if sampled.top_ids is not None else None
    top_logprobs = sampled.top_logprobs.tolist() if sampled.top_logprobs is not None else None
    for index, top in enumerate(tops):
        if top < 0:
            continue
        best = (top_ids[index][:top], top_logprobs[index][:top]) if top_ids and top_logprobs else ([], [])
        out[index] = TokenLogprobs(ids[index], logprobs[index], *best)
    return out
