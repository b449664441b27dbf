"""Products with matrices whose weights are numbers of four bits, which stay packed in a GPU's memory."""

from mamba_kernels.four_bit.matrix import Code, FourBitMatrix
from mamba_kernels.four_bit.reference import four_bit_product

__all__ = ["Code", "FourBitMatrix", "four_bit_product"]
