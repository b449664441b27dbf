"""Products with matrices of four bits beside the same products in bfloat16 by cuBLAS.

The stage of kernels runs these cases. A result that is not near float32 gets no time.
"""

from collections.abc import Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from benchmarks.gpu.case import Case, Numbers, Wrong
from benchmarks.gpu.timing import seconds_of
from benchmarks.gpu.tolerances import RELATIVE_RMS

from mamba_kernels.four_bit.matrix import FourBitMatrix, mxfp4_matrix, nvfp4_matrix
from mamba_kernels.four_bit.triton import four_bit_product

ROWS = (1, 16, 64, 2048)
PROJECTIONS = ("in_proj", "down_proj")
CODES = ("integer", "nvfp4", "mxfp4")
MOST_MATRICES = 8
BYTES = 1 << 29
"""Bytes of the matrices that take turns, so that they come from memory."""


def four_bit_cases(
    projections: Mapping[str, tuple[int, int]], device: torch.device, *, small: bool
) -> Iterator[Case]:
    """Yield the cases; `projections`: (outputs, inputs) by name."""
    for code in CODES:
        for name in PROJECTIONS:
            for rows in (2,) if small else ROWS:
                run = partial(_measure, code, rows, *projections[name], device)
                yield Case(f"{name} of {code}, {rows} rows", run)


def random_matrix(code: str, outputs: int, inputs: int, device: torch.device, seed: int) -> FourBitMatrix:
    """Draw a matrix of four bits whose weights are about 1 / sqrt(inputs)."""
    g = torch.Generator(device).manual_seed(seed)
    if code == "integer":
        weight = torch.randn(outputs, inputs, generator=g, device=device) * inputs**-0.5
        return FourBitMatrix.fit(weight.bfloat16())
    codes = torch.randint(0, 16, (outputs, inputs), generator=g, device=device).byte()
    if code == "nvfp4":
        scales = torch.rand(outputs, inputs // 16, generator=g, device=device).to(torch.float8_e4m3fn)
        matrix = nvfp4_matrix(codes, scales, inputs**-0.5)
    else:
        exponents = torch.randint(118, 123, (outputs, inputs // 32), generator=g, device=device).byte()
        matrix = mxfp4_matrix(codes, exponents)
    assert isinstance(matrix, FourBitMatrix)
    return matrix


def _measure(code: str, rows: int, outputs: int, inputs: int, device: torch.device) -> Numbers:
    count = max(2, min(MOST_MATRICES, BYTES // (outputs * inputs // 2)))
    matrices = [random_matrix(code, outputs, inputs, device, seed) for seed in range(count)]
    g = torch.Generator(device).manual_seed(count)
    x = torch.randn(rows, inputs, generator=g, device=device).bfloat16()
    out = x.new_empty(rows, outputs)
    with torch.inference_mode():
        four_bit_product(x, matrices[0], None, out)
        expected = F.linear(x.float(), matrices[0].plain(torch.float32))
        far = (out.float() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        if not far <= RELATIVE_RMS[torch.bfloat16]:
            raise Wrong(f"relative_rms is {far:.3g}", {"relative_rms": float(far)})
        calls = [partial(four_bit_product, x, matrix, None, out) for matrix in matrices]
        numbers: Numbers = dict(seconds_of(calls, device))
        seconds = float(numbers["seconds"])
        plain = [matrix.plain(torch.bfloat16) for matrix in matrices]
        beside = float(seconds_of([partial(F.linear, x, weight) for weight in plain], device)["seconds"])
    moved = matrices[0].nbytes + 2 * rows * (inputs + outputs)
    return {
        **numbers,
        "bytes_per_second": moved / seconds,
        "flops": 2 * rows * outputs * inputs / seconds,
        "relative_rms": float(far),
        "peers": {"torch linear, bfloat16": {"seconds": beside, "times": beside / seconds}},
    }
