"""Root mean square norm of the residual stream."""

from mamba_kernels.rms_norm.reference import rms_norm

__all__ = ["rms_norm"]
