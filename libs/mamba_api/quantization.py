"""How an engine may hold the matrices of a model."""

from typing import Literal

Quantization = Literal["none", "int8"]
"""none = in the type of the weights; int8 = a byte each, with a scale for 32 inputs of an output, multiplied
by activations that are made int8 in the same way."""
