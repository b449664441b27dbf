"""Sampling parameters of the rows of a step; rebuilt only when the rows change.

The runner gets a `SamplingRow` per sequence from the sampler (`Sampler.admit`) and builds a `SamplingBatch`
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
    """Return whether earlier tokens change the choice of the next one, so that they must be counted."""
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """States how one sequence samples: its parameters, its seed, and the row of its token counts."""

    params: SamplingParams
    seed: int
    prompt_len: int
    serial: int
    """Serial number, which distinguishes sequences that use one row of the count tables in turn."""
    counts_row: int
    """Row of the sampler's count tables; -1 without penalties."""
    token_ids: Tokens
    """Prompt, and output before the sequence was admitted (again); empty without penalties."""
    blocked: tuple[int, ...]
    """Token ids excluded until there are `min_tokens` outputs."""

    @property
    def plain(self) -> bool:
        """Whether the row needs only a token: neither log-probabilities nor changed logits."""
        return self.params.logprobs < 0 and not self.params.logit_bias and not self.params.min_tokens


@dataclass(frozen=True, slots=True)
class Penalties:
    """The rows of a batch that have any penalty, and how strong each penalty is."""

    rows: Rows
    counts_rows: torch.Tensor
    """Rows in the count tables, [r] int64."""
    repetition: torch.Tensor
    """Repetition penalty of each row, [r, 1]."""
    presence: torch.Tensor
    """Presence penalty of each row, [r, 1]."""
    frequency: torch.Tensor
    """Frequency penalty of each row, [r, 1]."""


@dataclass(frozen=True, slots=True)
class TokenEntries:
    """Numbers for single tokens of single rows: `values[i]` is for row `rows[i]` and token `tokens[i]`."""

    rows: Rows
    tokens: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Filter:
    """The rows of a batch that restrict the choice in one way, such as top-p, and the parameter of each."""

    rows: Rows
    values: torch.Tensor
    """Parameter of each row, [r, 1]."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """States how L rows sample, by feature, in tensors on the device.

    A feature that is None is used by no row.
    """

    size: int
    """Number L of rows that sample in the step."""
    bias: TokenEntries | None
    minimum: TokenEntries | None
    """Excluded tokens; `values` = first absolute position at which the token may come."""
    penalties: Penalties | None
    random: Rows | None
    """Rows with temperature > 0. The rows of `min_p`, `top_k` and `top_p` are positions in this list."""
    temperature: torch.Tensor | None
    """Temperature of each row that is drawn at random, [random, 1]."""
    words: torch.Tensor | None
    """Words of the seed of each row that is drawn at random, [random, 2] int32."""
    min_p: Filter | None
    top_k: Filter | None
    top_k_max: int
    top_p: Filter | None
    logprobs: Rows | None
    logprobs_max: int
    """Most alternatives that any row requests."""
    counted: list[SamplingRow] = field(default_factory=list)
    """Rows with any penalty, whose tokens are counted."""
    parameters: SampleParameters | None = None
    """Parameters of all rows where one operator chooses for all; the features that it implements are None
    then."""

    @property
    def greedy(self) -> bool:
        """Whether every row needs only the most likely token of the model."""
        features = (
            self.bias, self.minimum, self.penalties, self.random, self.logprobs, self.parameters,
        )  # fmt: skip
        return all(feature is None for feature in features)

    @classmethod
    def build(
        cls,
        rows: Sequence[SamplingRow],
        vocab_size: int,
        device: torch.device,
        *,
        together: bool = False,
    ) -> "SamplingBatch":
        """Group L rows, in the order of their logits.

        With `together` one operator samples all rows from `parameters`, and columns that it does not read are
        left out.
        """
        columns = _Columns(rows, vocab_size, device)
        # The operator reads its features from `parameters` and has no columns of its own.
        random = [] if together else columns.where(lambda row: row.params.temperature > 0)
        counted = columns.where(lambda row: row.counts_row >= 0)
        logprobs = columns.where(lambda row: row.params.logprobs >= 0)
        ks = [min(rows[i].params.top_k, vocab_size) for i in random if rows[i].params.top_k > 0]
        return cls(
            size=len(rows),
            bias=columns.bias(),
            minimum=columns.minimum(),
            penalties=None if together else columns.penalties(counted),
            random=_indices(random, device) if random else None,
            temperature=columns.values(random, lambda row: row.params.temperature) if random else None,
            words=columns.seed_words(random) if random else None,
            min_p=columns.filter(random, lambda params: params.min_p > 0, lambda params: params.min_p),
            top_k=columns.filter(
                random,
                lambda params: 0 < params.top_k < vocab_size,
                lambda params: min(params.top_k, vocab_size),
            ),
            top_k_max=max(ks, default=0),
            top_p=columns.filter(random, lambda params: params.top_p < 1, lambda params: params.top_p),
            logprobs=_indices(logprobs, device) if logprobs else None,
            logprobs_max=max((rows[i].params.logprobs for i in logprobs), default=0),
            counted=[rows[i] for i in counted],
            parameters=_parameters(rows, vocab_size, device) if together else None,
        )


@dataclass(frozen=True, slots=True)
class _Columns:
    """Copies the parameters of the rows of one batch to the device, one tensor for each feature."""

    rows: Sequence[SamplingRow]
    vocab_size: int
    device: torch.device

    def where(self, condition: Callable[[SamplingRow], bool]) -> list[int]:
        return [index for index, row in enumerate(self.rows) if condition(row)]

    def values(self, indices: list[int], value: Callable[[SamplingRow], float]) -> torch.Tensor:
        """Return [r, 1] values of the rows at `indices`."""
        column = torch.tensor([value(self.rows[i]) for i in indices], dtype=torch.float32)
        return to_device(column[:, None], self.device)

    def filter(
        self,
        indices: list[int],
        uses: Callable[[SamplingParams], bool],
        value: Callable[[SamplingParams], float],
    ) -> Filter | None:
        """Return the filter of those rows at `indices` that use it; None = no row does.

        The rows of the filter are positions in `indices`.
        """
        positions = [position for position, i in enumerate(indices) if uses(self.rows[i].params)]
        if not positions:
            return None
        users = [indices[position] for position in positions]
        return Filter(_indices(positions, self.device), self.values(users, lambda row: value(row.params)))

    def bias(self) -> TokenEntries | None:
        entries = [
            (index, token, value)
            for index, row in enumerate(self.rows)
            for token, value in row.params.logit_bias.items()
            if 0 <= token < self.vocab_size
        ]
        return _entries(entries, self.device)

    def minimum(self) -> TokenEntries | None:
        entries = [
            (index, token, float(row.prompt_len + row.params.min_tokens))
            for index, row in enumerate(self.rows)
            if row.params.min_tokens > 0
            for token in row.blocked
        ]
        return _entries(entries, self.device)

    def penalties(self, indices: list[int]) -> Penalties | None:
        if not indices:
            return None
        return Penalties(
            rows=_indices(indices, self.device),
            counts_rows=_indices([self.rows[i].counts_row for i in indices], self.device),
            repetition=self.values(indices, lambda row: row.params.repetition_penalty),
            presence=self.values(indices, lambda row: row.params.presence_penalty),
            frequency=self.values(indices, lambda row: row.params.frequency_penalty),
        )

    def seed_words(self, indices: list[int]) -> torch.Tensor:
        words = [seed_words(self.rows[i].seed) for i in indices]
        return to_device(torch.tensor(words, dtype=torch.int32), self.device)


def write_parameters(rows: Sequence[SamplingRow], vocab_size: int, to: SampleParameters) -> None:
    """Write the parameters of `rows` to the first rows of `to`, which is on the host."""
    params, n = [row.params for row in rows], len(rows)
    columns: dict[str, list[float]] = {
        "temperature": [max(0.0, row.temperature) for row in params],
        "top_k": [min(max(0, row.top_k), vocab_size) for row in params],
        "top_p": [row.top_p for row in params],
        "min_p": [row.min_p for row in params],
        "counts_row": [row.counts_row for row in rows],
        "repetition": [row.repetition_penalty for row in params],
        "presence": [row.presence_penalty for row in params],
        "frequency": [row.frequency_penalty for row in params],
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
