"""Largest accepted differences between a kernel's results and the float32 reference."""

import torch

RELATIVE_RMS = {torch.bfloat16: 0.01, torch.float16: 0.002, torch.float32: 1e-4}
"""By the type of activations: some roundings of each operand, relative to the size of the result."""
GREATEST = {torch.bfloat16: 0.06, torch.float16: 0.01, torch.float32: 1e-3}
"""Limit for any single number, relative to the largest."""


def complaint(numbers: dict[str, float], dtype: torch.dtype) -> str:
    """Return what is wrong with the numbers of `operator_calls.differences`; empty if nothing is."""
    if numbers["touched"]:
        return f"{numbers['touched']:.0f} rows changed that should not"
    for name, most in (("relative_rms", RELATIVE_RMS[dtype]), ("greatest", GREATEST[dtype])):
        if not numbers[name] <= most:
            return f"{name} is {numbers[name]:.3g}, at most {most:g} is right"
    return ""
