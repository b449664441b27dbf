"""Pages whose keys and values are FP8: their numbers, their scales, and the rule by which rows are rounded.

`kv_write` rounds rows, and attention reads them back. A row, which is one head of one token's keys or values,
has a power of two as its scale, so that a number read back is exact in every type that the kernels compute
with, and all backends store the same bytes. A backend that computes by kernels follows the same rule by the
bits of float32; this module is its reference in torch.
"""

from dataclasses import dataclass

import torch

NUMBER = torch.float8_e4m3fn
"""Type of the numbers: four bits of exponent, three of mantissa, and no infinity."""
TOP = 0x1FFFFF
"""Number that is added to the bits of a row's largest absolute value: it carries into the exponent if the
mantissa exceeds 1.75, the mantissa of the largest number."""
LEAST_SCALE = 32
"""Smallest byte of a scale: below it, numbers would leave the normal range of float32."""
NOT_FINITE = 255
"""Byte of the scale of a row that is not finite, which is read back as NaN."""
SHIFT = 8
"""Exponent of the largest number, 448 = 1.75 * 2^8. Scales do not contain it; reading divides by 2^8."""
_BIAS, _MANTISSA = 127, 23
_MOST_HALF = torch.finfo(torch.float16).max


@dataclass(frozen=True, slots=True)
class Fp8Pages:
    """Keys and values of all pages of one layer, as bytes. A number is `numbers` * 2^(`scales` - 127 - 8)."""

    numbers: torch.Tensor
    """Numbers of type e4m3, [pages, 2 (key, value), page_size, kv_heads, head_dim] uint8, any strides."""
    scales: torch.Tensor
    """Exponent of the scale of each row, plus 127, [pages, 2, page_size, kv_heads] uint8, any strides."""

    @property
    def shape(self) -> torch.Size:
        """Shape of the numbers."""
        return self.numbers.shape

    @property
    def device(self) -> torch.device:
        return self.numbers.device


Pages = torch.Tensor | Fp8Pages
"""Keys and values of all pages of one layer, [pages, 2, page_size, kv_heads, head_dim]: in the type of the
activations, or in FP8."""


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers [..., head_dim] and the scales [...] of rows x [..., head_dim], as bytes.

    The largest absolute value of a row becomes a number between 224 and 448, so nothing is saturated.
    """
    wide = x.to(torch.float32)
    largest = wide.abs().amax(-1)
    scale = ((largest.view(torch.int32) + TOP) >> _MANTISSA).clamp_(min=LEAST_SCALE)
    # A NaN may have carried into the sign; all that is not finite has one scale, and no number.
    is_finite = largest.isfinite() & (scale < NOT_FINITE)
    scale = torch.where(is_finite, scale, NOT_FINITE)
    factor = ((2 * _BIAS + SHIFT - scale) << _MANTISSA).view(torch.float32)
    numbers = torch.where(is_finite[..., None], wide * factor[..., None], 0.0).to(NUMBER)
    return numbers.view(torch.uint8), scale.to(torch.uint8)


def written_back(numbers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return rows [..., head_dim] of type `dtype` for their numbers and scales, without a rounding."""
    wide = dtype if dtype != torch.float16 else torch.float32
    rows = numbers.view(NUMBER).to(wide)
    # In two steps, so that neither factor leaves the range of float32.
    factors = (scales.to(torch.int32) << _MANTISSA).view(torch.float32)
    rows.mul_(2.0**-SHIFT).mul_(factors.to(wide)[..., None])
    return rows if wide == dtype else rows.clamp_(-_MOST_HALF, _MOST_HALF).to(dtype)


def stored_rows(
    kv: Pages, half: int, page: torch.Tensor, offset: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Gather keys (`half` 0) or values (1) [..., kv_heads, head_dim] of type `dtype` at page and offset."""
    if isinstance(kv, torch.Tensor):
        return kv.select(1, half)[page, offset].to(dtype)
    numbers, scales = (part.select(1, half)[page, offset] for part in (kv.numbers, kv.scales))
    return written_back(numbers, scales, dtype)


def store_rows(kv: Pages, half: int, rows: torch.Tensor, page: torch.Tensor, offset: torch.Tensor) -> None:
    """Store keys (`half` 0) or values (1), [T, kv_heads, head_dim], at page and offset [T]."""
    if isinstance(kv, torch.Tensor):
        kv.select(1, half)[page, offset] = rows.to(kv.dtype)
        return
    numbers, scales = rounded(rows)
    kv.numbers.select(1, half)[page, offset] = numbers
    kv.scales.select(1, half)[page, offset] = scales
