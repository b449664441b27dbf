"""What the sampler needs to know about the rows of a step; rebuilt only when the rows change.

The engine asks the sampler for a `SamplingRow` per sequence (`Sampler.admit`) and builds a `SamplingBatch`
from the rows in the order of their logits. Nothing here changes from one step to the next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mamba_kernels.sample import SampleParameters
from mamba_kernels.sample.noise import seed_words
from mamba_kernels.sample.parameters import packed_size
from mamba_kernels.transfer import to_device
from mamba_server.cache import Tokens
from mamba_server.wire import SamplingParams

Rows = torch.Tensor
"""[r] int64 indices into the rows of the logits."""


def penalized(params: SamplingParams) -> bool:
    """Whether the tokens seen so far change what comes next: then they have to be counted."""
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One sequence's sampling: its parameters and where its token counts live."""

    params: SamplingParams
    seed: int
    prompt_len: int
    serial: int
    """Tells apart the sequences that use one row of the count tables after each other."""
    counts_row: int
    """Row of the sampler's count tables; -1 when no penalty is asked for."""
    token_ids: Tokens
    """Prompt and what was generated before it was admitted (again); empty unless there are penalties."""
    blocked: tuple[int, ...]
    """Token ids that may not come before `min_tokens` outputs."""

    @property
    def plain(self) -> bool:
        """Whether it wants a token and no more: neither log-probabilities nor entries of its own in the
        logits."""
        return self.params.logprobs < 0 and not self.params.logit_bias and not self.params.min_tokens


@dataclass(frozen=True, slots=True)
class Penalties:
    """Rows with any penalty, and its strengths [r, 1]."""

    rows: Rows
    counts_rows: torch.Tensor
    """[r] int64"""
    repetition: torch.Tensor
    """[r, 1]"""
    presence: torch.Tensor
    frequency: torch.Tensor


@dataclass(frozen=True, slots=True)
class TokenEntries:
    """Single entries of the logits: `values[i]` belongs to row `rows[i]`, token `tokens[i]`."""

    rows: Rows
    tokens: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Filter:
    """Rows with one truncation, and its parameter [r, 1]."""

    rows: Rows
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Parameters of L rows on the device, grouped by feature; None = no row uses it."""

    size: int
    """L: rows that sample in the step."""
    bias: TokenEntries | None
    minimum: TokenEntries | None
    """Blocked tokens; `values` = first absolute position at which the token may come."""
    penalties: Penalties | None
    random: Rows | None
    """Rows with temperature > 0; the other filters hold positions in this list."""
    temperature: torch.Tensor | None
    """[random, 1]"""
    words: torch.Tensor | None
    """[random, 2] int32 seed words"""
    min_p: Filter | None
    top_k: Filter | None
    top_k_max: int
    top_p: Filter | None
    logprobs: Rows | None
    logprobs_max: int
    """Most alternatives any row asks for."""
    counted: list[SamplingRow] = field(default_factory=list)
    """Rows with any penalty: their tokens are counted."""
    parameters: SampleParameters | None = None
    """All rows' parameters where one operator chooses for all; the features that it knows are None then."""

    @property
    def greedy(self) -> bool:
        """Whether every row wants its most likely token as the model has it, and no more."""
        features = (
            self.bias, self.minimum, self.penalties, self.random, self.logprobs, self.parameters,
        )  # fmt: skip
        return all(each is None for each in features)

    @classmethod
    def build(
        cls,
        rows: Sequence[SamplingRow],
        vocab_size: int,
        device: torch.device,
        *,
        together: bool = False,
    ) -> "SamplingBatch":
        """Group L rows, in the order of their logits. `together`: for an operator that takes all rows."""

        def where(condition: Callable[[SamplingRow], bool]) -> list[int]:
            return [index for index, row in enumerate(rows) if condition(row)]

        def column(indices: list[int], value: Callable[[SamplingRow], float]) -> torch.Tensor:
            return to_device(
                torch.tensor([value(rows[i]) for i in indices], dtype=torch.float32)[:, None], device
            )

        def filter_of(
            uses: Callable[[SamplingParams], bool], value: Callable[[SamplingParams], float]
        ) -> Filter | None:
            places = [place for place, i in enumerate(random) if uses(rows[i].params)]
            if not places:
                return None
            return Filter(
                _indices(places, device),
                column([random[place] for place in places], lambda r: value(r.params)),
            )

        # What the operator does has no copies of its own on the device.
        random = [] if together else where(lambda row: row.params.temperature > 0)
        counted = where(lambda row: row.counts_row >= 0)
        penalized = [] if together else counted
        logprobs = where(lambda row: row.params.logprobs >= 0)
        bias = [
            (index, token, value)
            for index, row in enumerate(rows)
            for token, value in row.params.logit_bias.items()
            if 0 <= token < vocab_size
        ]
        minimum = [
            (index, token, float(row.prompt_len + row.params.min_tokens))
            for index, row in enumerate(rows)
            if row.params.min_tokens > 0
            for token in row.blocked
        ]
        ks = [min(rows[i].params.top_k, vocab_size) for i in random if rows[i].params.top_k > 0]
        return cls(
            size=len(rows),
            bias=_entries(bias, device),
            minimum=_entries(minimum, device),
            penalties=Penalties(
                rows=_indices(penalized, device),
                counts_rows=_indices([rows[i].counts_row for i in penalized], device),
                repetition=column(penalized, lambda row: row.params.repetition_penalty),
                presence=column(penalized, lambda row: row.params.presence_penalty),
                frequency=column(penalized, lambda row: row.params.frequency_penalty),
            )
            if penalized
            else None,
            random=_indices(random, device) if random else None,
            temperature=column(random, lambda row: row.params.temperature) if random else None,
            words=to_device(
                torch.tensor([seed_words(rows[i].seed) for i in random], dtype=torch.int32), device
            )
            if random
            else None,
            min_p=filter_of(lambda params: params.min_p > 0, lambda params: params.min_p),
            top_k=filter_of(
                lambda params: 0 < params.top_k < vocab_size, lambda params: min(params.top_k, vocab_size)
            ),
            top_k_max=max(ks, default=0),
            top_p=filter_of(lambda params: params.top_p < 1, lambda params: params.top_p),
            logprobs=_indices(logprobs, device) if logprobs else None,
            logprobs_max=max((rows[i].params.logprobs for i in logprobs), default=0),
            counted=[rows[i] for i in counted],
            parameters=_parameters(rows, vocab_size, device) if together else None,
        )


def write_parameters(rows: Sequence[SamplingRow], vocab_size: int, to: SampleParameters) -> None:
    """Write the parameters of `rows` to the first rows of `to`, which is on the host."""
    asked, n = [row.params for row in rows], len(rows)
    columns: dict[str, list[float]] = {
        "temperature": [max(0.0, each.temperature) for each in asked],
        "top_k": [min(max(0, each.top_k), vocab_size) for each in asked],
        "top_p": [each.top_p for each in asked],
        "min_p": [each.min_p for each in asked],
        "counts_row": [row.counts_row for row in rows],
        "repetition": [each.repetition_penalty for each in asked],
        "presence": [each.presence_penalty for each in asked],
        "frequency": [each.frequency_penalty for each in asked],
    }
    for name, values in columns.items():
        getattr(to, name).numpy()[:n] = values
    to.words.numpy()[:n] = np.array([seed_words(row.seed) for row in rows], np.int32).reshape(n, 2)


def _parameters(rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> SampleParameters:
    memory = torch.zeros(packed_size(len(rows)), dtype=torch.int32)
    write_parameters(rows, vocab_size, SampleParameters.packed(memory, len(rows)))
    return SampleParameters.packed(to_device(memory, device), len(rows))


def _indices(values: list[int], device: torch.device) -> torch.Tensor:
    return to_device(torch.tensor(values, dtype=torch.int64), device)


def _entries(triples: list[tuple[int, int, float]], device: torch.device) -> TokenEntries | None:
    if not triples:
        return None
    rows, tokens, values = zip(*triples, strict=True)
    return TokenEntries(
        _indices(list(rows), device),
        _indices(list(tokens), device),
        to_device(torch.tensor(values, dtype=torch.float32), device),
    )
