"""Numbers that share bytes or 32-bit words of a tensor, and floating point numbers of four and eight bits.

`stored_matrix` reads matrices with these functions. Pure.
"""

import torch

from mamba_kernels.four_bit.matrix import E2M1, E8M0_BIAS

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output of each number of a word, from the lowest bits up, among the eight outputs of the word."""


def unpack_columns(words: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Return the numbers [rows, columns] of words [rows, n], uint8, the lowest bits first.

    `order` is the column of each number among the numbers of its word; None = ascending.
    """
    count = 32 // bits
    numbers = torch.empty(*words.shape, count, dtype=torch.uint8, device=words.device)
    for place in range(count):
        column = place if order is None else order[place]
        numbers[..., column] = ((words >> (bits * place)) & ((1 << bits) - 1)).to(torch.uint8)
    return numbers.flatten(-2)


def unpack_rows(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the numbers [rows, columns] of words [n, columns], which hold numbers of one column each."""
    return unpack_columns(words.t(), bits).t()


def nibbles(bytes_: torch.Tensor) -> torch.Tensor:
    """Return the numbers [..., 2 n] of bytes [..., n], the lower half first."""
    return torch.stack([bytes_ & 15, bytes_ >> 4], -1).flatten(-2)


def twice_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """Return the doubled values of FP4 numbers, which are integers in -12..12, as int8."""
    sizes = torch.tensor([2 * value for value in E2M1], dtype=torch.int8)
    return torch.cat([sizes, -sizes]).to(codes.device)[codes.long()]


def e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Return the powers of two that bytes stand for, in float64."""
    return torch.exp2(exponents.to(torch.float64) - E8M0_BIAS)
