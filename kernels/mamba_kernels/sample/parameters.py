"""Parameters and results of the choice of tokens for L rows of logits: device tensors, one entry per row."""

from dataclasses import dataclass, fields

import torch

from mamba_kernels.transfer import aligned


@dataclass(frozen=True, slots=True)
class SampleParameters:
    """Sampling parameters of L rows, which do not change from step to step."""

    temperature: torch.Tensor
    """Temperature of each row, [L] float32; 0 = the most likely token"""
    top_k: torch.Tensor
    """Number of most likely tokens to choose from, [L] int32; 0 = all tokens"""
    top_p: torch.Tensor
    """Share of the probability to choose from, [L] float32; 1 = all tokens"""
    min_p: torch.Tensor
    """Least probability relative to the best token's, [L] float32; 0 = all tokens"""
    words: torch.Tensor
    """Words of the seed of each row, [L, 2] int32 from `seed_words`"""
    counts_row: torch.Tensor
    """Row of the count tables, [L] int32; -1 = no penalties"""
    repetition: torch.Tensor
    """Repetition penalty, [L] float32; the three penalties are read for rows that have counts"""
    presence: torch.Tensor
    """Presence penalty, [L] float32"""
    frequency: torch.Tensor
    """Frequency penalty, [L] float32"""

    @classmethod
    def packed(cls, memory: torch.Tensor, rows: int) -> "SampleParameters":
        """Return views of the parameters of `rows` rows in `memory`, int32 `[packed_size(rows)]`."""
        width = aligned(rows)
        columns = dict(zip(_COLUMNS, memory[: len(_COLUMNS) * width].view(-1, width)[:, :rows], strict=True))
        narrow = {
            name: column if name in _INTEGERS else column.view(torch.float32)
            for name, column in columns.items()
        }
        return cls(**narrow, words=memory[len(_COLUMNS) * width :].view(-1, 2)[:rows])

    def of_rows(self, rows: slice) -> "SampleParameters":
        """Return the parameters of these rows."""
        return SampleParameters(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


_COLUMNS = ("temperature", "top_k", "top_p", "min_p", "counts_row", "repetition", "presence", "frequency")
_INTEGERS = ("top_k", "counts_row")


def packed_size(rows: int) -> int:
    """Return the number of int32 entries for the parameters of `rows` rows."""
    return (len(_COLUMNS) + 2) * aligned(rows)


@dataclass(frozen=True, slots=True)
class PenaltyCounts:
    """Counts of the tokens of sequences with penalties; the choice of a token increments its count."""

    output: torch.Tensor
    """[rows, vocabulary] int32: how often each token was generated; incremented by the choice"""
    prompt: torch.Tensor
    """[rows, vocabulary] bool: whether the prompt contains the token"""


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """Result of `sample`: the token chosen for each of L rows."""

    ids: torch.Tensor
    """Ids of the chosen tokens, [L] int64."""
    finite: torch.Tensor
    """[L] bool: whether the row has neither NaN nor plus infinity, and a token that may be chosen; otherwise
    its id is arbitrary."""
