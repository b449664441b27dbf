"""Products of FP8 matrices with rows that are quantized to FP8."""

from mamba_kernels.fp8.matrix import Fp8Matrix, Fp8Rows
from mamba_kernels.fp8.reference import fp8_norm, fp8_product

__all__ = ["Fp8Matrix", "Fp8Rows", "fp8_norm", "fp8_product"]
