"""Defects of the kernels."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        "the convolution window is one token late", "kernels/mamba_kernels/conv1d_prefill/reference.py",
        "window[slot] = inputs[rows : rows + K - 1]",
        "window[slot] = inputs[max(0, rows - 1) : max(0, rows - 1) + K - 1]",
        ("tests/unit/kernels/test_conv1d.py",),
    ),
)  # fmt: skip
