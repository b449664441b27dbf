"""Choice of tokens by penalties, truncation and seeded noise over rows of logits."""

from mamba_kernels.sample.parameters import PenaltyCounts, SampleParameters, TokenChoice
from mamba_kernels.sample.reference import sample

__all__ = ["PenaltyCounts", "SampleParameters", "TokenChoice", "sample"]
