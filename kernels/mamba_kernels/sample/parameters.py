"""What decides the choice of L rows of logits: tensors on the device, one entry a row."""

from dataclasses import dataclass, fields

import torch

from mamba_kernels.transfer import aligned


@dataclass(frozen=True, slots=True)
class SampleParameters:
    """Parameters of L rows. Nothing here changes from one step to the next."""

    temperature: torch.Tensor
    """[L] float32; 0 = the most likely token"""
    top_k: torch.Tensor
    """[L] int32; 0 = all tokens"""
    top_p: torch.Tensor
    """[L] float32; 1 = all tokens"""
    min_p: torch.Tensor
    """[L] float32; 0 = all tokens"""
    words: torch.Tensor
    """[L, 2] int32 from `seed_words`"""
    counts_row: torch.Tensor
    """[L] int32 row of the count tables; -1 = no penalties"""
    repetition: torch.Tensor
    """[L] float32; the three penalties, read where there is a row of counts"""
    presence: torch.Tensor
    frequency: torch.Tensor

    @classmethod
    def packed(cls, memory: torch.Tensor, rows: int) -> "SampleParameters":
        """Views of the parameters of `rows` rows in `memory`, int32 `[packed_size(rows)]`."""
        width = aligned(rows)
        columns = dict(zip(_COLUMNS, memory[: len(_COLUMNS) * width].view(-1, width)[:, :rows], strict=True))
        narrow = {
            name: column if name in _INTEGERS else column.view(torch.float32)
            for name, column in columns.items()
        }
        return cls(**narrow, words=memory[len(_COLUMNS) * width :].view(-1, 2)[:rows])

    def of_rows(self, rows: slice) -> "SampleParameters":
        """Those of some rows."""
        return SampleParameters(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


_COLUMNS = ("temperature", "top_k", "top_p", "min_p", "counts_row", "repetition", "presence", "frequency")
_INTEGERS = ("top_k", "counts_row")


def packed_size(rows: int) -> int:
    """int32 entries that the parameters of `rows` rows take."""
    return (len(_COLUMNS) + 2) * aligned(rows)


@dataclass(frozen=True, slots=True)
class PenaltyCounts:
    """Tokens of the sequences with penalties."""

    output: torch.Tensor
    """[rows, vocabulary] int32: how often a token was generated; counted on by the choice"""
    prompt: torch.Tensor
    """[rows, vocabulary] bool: whether it is in the prompt"""


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """The result for L rows."""

    ids: torch.Tensor
    """[L] int64"""
    finite: torch.Tensor
    """[L] bool: the row has neither NaN nor plus infinity, and some token can come; else its id is any."""
