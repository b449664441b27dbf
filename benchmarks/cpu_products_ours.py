"""Products of the matrices of a 263M model by the C++ kernels, one answer for each line of standard input.

A line names a kind (`bf16`, `int8`, `int4`) and a number of rows; the answer is the processor time and the
wall time of all products once, in seconds. The argument is the number of threads. `benchmarks.cpu_products`
runs it.
"""

import sys
import time
from collections.abc import Callable

import torch

from mamba_kernels.cpu.library import library
from mamba_kernels.cpu.packed_linear import PackedLinear, PackedMatrix, PackedWeight
from mamba_kernels.cpu.quantized.int4_weight import Int4Weight
from mamba_kernels.cpu.quantized.int8_weight import QuantizedWeight

HEAD = 32_768
"""Outputs of the head, which computes one row of a prompt."""
SHAPES = ((768, 3376, 28), (1536, 768, 28), (768, 1280, 4), (768, 768, 4), (768, 2048, 32), (2048, 768, 32),
          (768, HEAD, 1))  # fmt: skip
"""Inputs, outputs and number of each kind of matrix, as in `cpu_products_ggml.c`."""
FORMS: dict[str, Callable[[torch.Tensor], PackedMatrix]] = {
    "bf16": PackedWeight, "int8": QuantizedWeight, "int4": Int4Weight,
}  # fmt: skip
LONGEST_DECODE = 32
"""Rows above which the rows are those of a prompt."""


def packed(kind: str, inputs: int, outputs: int) -> PackedMatrix:
    """Return a random matrix in the form of a kind; the head of int4 is int8."""
    form = QuantizedWeight if kind == "int4" and outputs == HEAD else FORMS[kind]
    return form((torch.randn(outputs, inputs) / 30).bfloat16())


def main() -> None:
    """Answer lines until the input ends."""
    torch.set_num_threads(1)
    kernels = library()
    assert kernels is not None, "the C++ kernels are not available here"
    kernels.set_threads(int(sys.argv[1]))
    products: dict[str, list[tuple[int, int, PackedLinear]]] = {}
    for kind in FORMS:
        products[kind] = [
            (inputs, outputs, PackedLinear(kernels, packed(kind, inputs, outputs), None))
            for inputs, outputs, count in SHAPES
            for _ in range(count)
        ]
    print("ready", flush=True)
    for line in sys.stdin:
        kind, rows = line.split()
        x = {inputs: torch.randn(int(rows), inputs).bfloat16() for inputs in (768, 1536, 2048)}
        last = x[768][:1] if int(rows) > LONGEST_DECODE else x[768]
        calls = [
            (product, last if outputs == HEAD else x[inputs]) for inputs, outputs, product in products[kind]
        ]
        for _ in range(2):  # the first time fills the caches
            processor, wall = time.process_time(), time.perf_counter()
            for product, values in calls:
                product(values)
            processor, wall = time.process_time() - processor, time.perf_counter() - wall
        print(f"{processor:.6f} {wall:.6f}", flush=True)


if __name__ == "__main__":
    main()
