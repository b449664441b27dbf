"""The numbers that the tensors of a quantized matrix stand for, as integers with scales.

`Weights` reads them here, and hands out the integers for the C++ kernels or the weights that they stand for.
`BlockNumbers`, the numbers that kernels take, have one scale for each group of inputs. The layout follows
from names, types and shapes; only the zeros of GPTQ need the configuration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from mamba_kernels.cpu.quantized.block_numbers import BLOCK, BlockNumbers
from mamba_kernels.four_bit.fit import SMALLEST
from mamba_kernels.four_bit.matrix import (
    RUN,
    Code,
    FourBitMatrix,
    fits_runs,
    mxfp4_matrix,
    nvfp4_matrix,
    packed,
)
from mamba_planner.families.quantization import Layout
from mamba_server.model.checkpoint.quantized.bit_fields import (
    AWQ_ORDER,
    e8m0,
    nibbles,
    twice_e2m1,
    unpack_columns,
    unpack_rows,
)
from mamba_server.model.checkpoint.quantized.stored_names import StoredMatrix

Read = Callable[[str], torch.Tensor]
"""Function that returns the tensor of a name."""
_ROWS = 1024
"""Rows that are converted at once."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A matrix whose weights are scale * (number - zero)."""

    numbers: torch.Tensor
    """[outputs, inputs] uint8 or int8"""
    scales: torch.Tensor
    """[outputs, groups], or [1, 1]"""
    zeros: torch.Tensor | None
    """[outputs, groups] of the type of the numbers; None = zero stands for itself."""
    bits: int
    groups: torch.Tensor | None = None
    """[inputs] group of each input; None = they are in order."""


def read_matrix(matrix: StoredMatrix, shape: tuple[int, ...], read: Read, zero_offset: int) -> Numbers:
    """Return the numbers of a matrix of the shape `shape`, with all dimensions but the last made one.

    `read` returns the tensor of a name. `zero_offset` is the number that is added to zeros of GPTQ. Raises
    ValueError, whose message says which tensor does not fit.
    """
    parts = {part: read(name) for part, name in matrix.tensors.items()}
    if 0 in parts["scale"].shape:
        raise ValueError(f"scales of the shape {list(parts['scale'].shape)}")
    match matrix.layout:
        case "gptq" | "awq":
            return _words_by_output(matrix.layout, parts, shape, zero_offset)
        case "packed":
            return _words_by_input(parts, shape)
        case "int8":
            return _bytes(parts, shape)
        case _:
            return _fp4(matrix.layout, parts, shape)


def _expect(what: str, tensor: torch.Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(tensor.shape) not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"{what} of the shape {list(tensor.shape)}, and it should have {expected}")


def _words_by_output(
    layout: Layout, parts: Mapping[str, torch.Tensor], shape: tuple[int, ...], zero_offset: int
) -> Numbers:
    """Read GPTQ, whose words hold inputs of one output, or AWQ, whose words hold outputs of one input.

    Raises ValueError.
    """
    outputs, inputs = shape
    words, scale = parts["words"], parts["scale"]
    groups = len(scale) if scale.dim() else 1
    _expect("scales", scale, (groups, outputs))
    if layout == "awq":
        _expect("qweight", words, (inputs, outputs // 8))
        bits, numbers = 4, unpack_columns(words, 4, AWQ_ORDER)
    else:
        bits = 32 * words.shape[0] // inputs
        if bits not in (4, 8):
            raise ValueError(f"qweight of {bits} bits, and this version reads 4 and 8")
        _expect("qweight", words, (inputs * bits // 32, outputs))
        numbers = unpack_rows(words, bits)
    if "zeros" in parts:
        _expect("qzeros", parts["zeros"], (groups, outputs * bits // 32))
        zeros = unpack_columns(parts["zeros"], bits, AWQ_ORDER if layout == "awq" else None)
        # The first version of GPTQ's format stores zeros less one, modulo the range of a number.
        zeros = zeros + zero_offset & (1 << bits) - 1 if layout == "gptq" else zeros
    else:
        zeros = torch.full((groups, outputs), 1 << (bits - 1), dtype=torch.uint8, device=scale.device)
    places = _places(parts, inputs, groups)
    return Numbers(numbers.t().contiguous(), scale.t().contiguous(), zeros.t().contiguous(), bits, places)


def _places(parts: Mapping[str, torch.Tensor], inputs: int, groups: int) -> torch.Tensor | None:
    """Return the group of each input, from the checkpoint; None = groups of inputs follow one another.

    Raises ValueError.
    """
    if (places := parts.get("groups")) is None:
        return None
    _expect("g_idx", places, (inputs,))
    if not 0 <= int(places.min()) <= int(places.max()) < groups:
        raise ValueError(f"g_idx that names other groups than the {groups} of the scales")
    return places


def _words_by_input(parts: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> Numbers:
    """Read packed numbers of compressed-tensors, which are stored plus half of their range.

    Raises ValueError.
    """
    outputs, inputs = shape
    words, scale = parts["words"], parts["scale"]
    bits = next((bits for bits in (4, 8) if words.shape == (outputs, -(-inputs * bits // 32))), 0)
    if not bits:
        raise ValueError(f"weight_packed of the shape {list(words.shape)} for the matrix {list(shape)}")
    numbers = unpack_columns(words, bits)[:, :inputs].contiguous()
    scale = scale.reshape(-1, 1) if scale.dim() < 2 else scale
    _expect("weight_scale", scale, (outputs, scale.shape[-1]), (1, 1))
    zeros = torch.full(scale.shape, 1 << (bits - 1), dtype=torch.uint8, device=scale.device)
    if "zeros" in parts:
        zeros = unpack_rows(parts["zeros"], bits)[:outputs]
        _expect("weight_zero_point", zeros, tuple(scale.shape))
    return Numbers(numbers, scale, zeros, bits, _places(parts, inputs, scale.shape[1]))


def _bytes(parts: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> Numbers:
    numbers, scale = parts["bytes"], parts["scale"]
    scale = scale.reshape(-1, 1) if scale.dim() < 2 else scale
    _expect("weight", numbers, shape)
    _expect("weight_scale", scale, (*shape[:-1], scale.shape[-1]), (1, 1))
    zeros = parts.get("zeros")
    if zeros is not None:
        zeros = zeros.reshape(scale.shape).to(torch.int16)
    return Numbers(numbers.flatten(0, -2), scale.flatten(0, -2), zeros, 8)


def _fp4(layout: Layout, parts: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> Numbers:
    """Read FP4 as integers: twice the value of a number times half of its scale."""
    codes, scale = _fp4_tensors(layout, parts, shape)
    groups = scale.shape[-1]
    if layout == "mxfp4":
        factors = e8m0(scale.view(torch.uint8)) / 2
        # Groups of zeros have the least scale, which is no float16 number.
        empty = (codes & 0x77).unflatten(-1, (groups, -1)).amax(-1) == 0
        factors = factors.masked_fill(empty, 0.0)
    else:
        factors = scale.to(torch.float64) / 2
        if "factor" in parts:
            factors = factors * parts["factor"].to(torch.float64)
        if "divisor" in parts:
            factors = factors / parts["divisor"].to(torch.float64)
    return Numbers(twice_e2m1(nibbles(codes.flatten(0, -2))), factors.flatten(0, -2), None, 8)


def _fp4_tensors(
    layout: Layout, parts: Mapping[str, torch.Tensor], shape: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes with two codes each, and the scales of groups, of a matrix or of all experts."""
    groups = -(-shape[-1] // (16 if layout == "nvfp4" else 32))
    codes, scale = parts["codes"], parts["scale"]
    codes = codes.flatten(-2) if codes.dim() == len(shape) + 1 else codes
    _expect("the packed weight", codes, (*shape[:-1], shape[-1] // 2))
    _expect("its scale", scale, (*shape[:-1], groups))
    return codes, scale


def four_bits(
    matrix: StoredMatrix, shape: tuple[int, ...], read: Read, zero_offset: int, dtype: torch.dtype
) -> FourBitMatrix | str | None:
    """Return a matrix as the codes of four bits that a GPU multiplies by, or why it cannot.

    None means that the checkpoint stores other bits. Arguments and errors are as in `read_matrix`; the result
    is on the device of the tensors.
    """
    if len(shape) != 2:
        return "one tensor has the matrices of all experts"
    if not fits_runs(shape[1]):
        return f"its {shape[1]} inputs are no multiple of {RUN}"
    if matrix.layout not in ("nvfp4", "mxfp4"):
        stored = read_matrix(matrix, shape, read, zero_offset)
        if stored.bits != 4:
            return None
        numbers = blocks(stored, dtype)
        return numbers if isinstance(numbers, str) else _codes(numbers)
    parts = {part: read(name) for part, name in matrix.tensors.items()}
    codes, scale = _fp4_tensors(matrix.layout, parts, shape)
    if matrix.layout == "mxfp4":
        return mxfp4_matrix(nibbles(codes), scale.view(torch.uint8))
    factor = 1.0
    if "factor" in parts:
        factor *= float(parts["factor"].double())
    if "divisor" in parts:
        factor /= float(parts["divisor"].double())
    return nvfp4_matrix(nibbles(codes), scale, factor)


def _codes(stored: BlockNumbers) -> FourBitMatrix:
    """Return four-bit numbers as the codes by which a GPU multiplies; no weight is rounded once more."""
    scales, order = stored.scales.contiguous(), stored.order
    if stored.zeros is None:
        codes = packed((stored.numbers - SMALLEST).to(torch.uint8))
        return FourBitMatrix(Code.INTEGER, codes, scales, stored.group, order=order)
    zeros = stored.zeros.to(torch.uint8).contiguous()
    codes = packed(stored.numbers)
    return FourBitMatrix(Code.INTEGER_ZEROS, codes, scales, stored.group, zeros, order=order)


def plain(stored: Numbers, dtype: torch.dtype) -> torch.Tensor:
    """Return the weights [outputs, inputs], rounded once to `dtype`."""
    outputs, inputs = stored.numbers.shape
    wide = torch.float64 if torch.float64 in (dtype, stored.scales.dtype) else torch.float32
    place = _group_of_inputs(stored)
    values = torch.empty(outputs, inputs, dtype=dtype, device=stored.numbers.device)
    for first in range(0, outputs, _ROWS):
        rows = slice(first, first + _ROWS)
        numbers = stored.numbers[rows].to(wide)
        scales = stored.scales[rows] if len(stored.scales) > 1 else stored.scales
        if stored.zeros is not None:
            zeros = stored.zeros[rows] if len(stored.zeros) > 1 else stored.zeros
            numbers -= zeros.to(wide)[:, place]
        values[rows] = (numbers * scales.to(wide)[:, place]).to(dtype)
    return values


def _group_of_inputs(stored: Numbers) -> torch.Tensor:
    """Return the group of each input."""
    inputs, groups = stored.numbers.shape[1], stored.scales.shape[1]
    if stored.groups is not None:
        return stored.groups.long()
    return torch.arange(inputs, device=stored.numbers.device) // _group(inputs, groups)


def _group(inputs: int, groups: int) -> int:
    """Return the number of inputs of a group.

    Where the groups cannot be equal, it is the usual size with which the last of `groups` is smaller.
    """
    if inputs % groups == 0:
        return inputs // groups
    return next((size for size in (16, 32, 64, 128, 256, 512, 1024) if -(-inputs // size) == groups), inputs)


def blocks(stored: Numbers, dtype: torch.dtype) -> BlockNumbers | str:
    """Return the same numbers for the kernels, or why no kernel computes with them."""
    outputs, inputs = stored.numbers.shape
    groups = stored.scales.shape[1]
    group = _group(inputs, groups)
    if groups > 1 and group % BLOCK:
        return f"groups of {group} inputs are no multiple of {BLOCK}"
    order = None
    if stored.groups is not None and groups > 1:
        order = torch.argsort(stored.groups, stable=True).to(torch.int32)
        places = torch.arange(inputs, device=order.device)
        if not torch.equal(stored.groups[order.long()].long(), places // group):
            return "its groups have different sizes"
        if torch.equal(order.long(), places):
            order = None
    # Inputs of a group lie side by side in the kernels' blocks.
    ordered = stored.numbers if order is None else stored.numbers[:, order.long()]
    scales = stored.scales.to(torch.float16)
    if not torch.equal(scales.to(stored.scales.dtype), stored.scales):
        return "its scales are no float16 numbers"
    scales = scales.expand(outputs, groups).contiguous()
    if (zeros := stored.zeros) is None:
        return BlockNumbers(ordered.to(torch.int8), scales, group, stored.bits, dtype, None, order)
    half = 1 << (stored.bits - 1)
    if bool((zeros == half).all()) and stored.numbers.dtype is torch.uint8:
        numbers = (ordered.to(torch.int16) - half).to(torch.int8)
        return BlockNumbers(numbers, scales, group, stored.bits, dtype, None, order)
    if stored.bits == 4:
        zeros = zeros.expand(outputs, groups).contiguous()
        return BlockNumbers(ordered, scales, group, 4, dtype, zeros, order)
    if not bool(zeros.any()):
        return BlockNumbers(ordered.to(torch.int8), scales, group, 8, dtype, None, order)
    return "its zeros lie apart from its numbers of eight bits"
