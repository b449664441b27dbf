"""Defects of the kernels."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        "the convolution window is one token late", "kernels/mamba_kernels/conv1d_prefill/reference.py",
        "window[slot] = inputs[rows : rows + K - 1]",
        "window[slot] = inputs[max(0, rows - 1) : max(0, rows - 1) + K - 1]",
        ("tests/unit/kernels/test_conv1d.py",),
    ),
    Mutant(
        "the norm behind the delta rule is of what is gated", "kernels/mamba_kernels/gated_norm/reference.py",
        "if norm_first else parts",
        "if norm_first and groups == 1 else parts",
        ("tests/unit/kernels/test_norms.py",),
    ),
    Mutant(
        "of equal scores the last expert is chosen", "kernels/mamba_kernels/moe/routing.py",
        "experts = choice.sort(dim=-1, descending=True, stable=True)",
        "experts = choice.shape[-1] - 1 - choice.flip(-1).sort(dim=-1, descending=True, stable=True)",
        ("tests/unit/kernels/test_moe.py",),
    ),
)  # fmt: skip
