"""One token of the causal convolution for each decoding sequence."""

from mamba_kernels.conv1d_update.reference import conv1d_update

__all__ = ["conv1d_update"]
