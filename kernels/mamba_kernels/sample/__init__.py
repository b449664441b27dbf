"""Chooses tokens: penalties, truncation and seeded noise over rows of logits."""

from mamba_kernels.sample.parameters import Choice, Counts, SampleParameters
from mamba_kernels.sample.reference import sample

__all__ = ["Choice", "Counts", "SampleParameters", "sample"]
