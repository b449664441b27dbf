"""Kernels whose result for a row has the same bits in every batch: `--batch-invariant`."""

from mamba_kernels.invariant.attention import attention_by_row
from mamba_kernels.invariant.convolution import convolution_by_tap
from mamba_kernels.invariant.gated_norm import gated_norm_by_row
from mamba_kernels.invariant.recurrence import recurrence_by_token
from mamba_kernels.invariant.row_tile import sound_row_tile

__all__ = [
    "attention_by_row",
    "convolution_by_tap",
    "gated_norm_by_row",
    "recurrence_by_token",
    "sound_row_tile",
]
