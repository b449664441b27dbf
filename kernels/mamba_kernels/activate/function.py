"""The elementwise functions between two projections."""

from enum import StrEnum


class Function(StrEnum):
    """Function that `activate` applies to each element of its rows."""

    SQUARED_RELU = "squared_relu"
    """max(x, 0)^2"""
    RELU = "relu"
    """max(x, 0)"""
    SILU = "silu"
    """x sigmoid(x)"""
    SIGMOID = "sigmoid"
    """1 / (1 + exp(-x))"""
    GELU = "gelu"
    """x P(X < x) of the normal distribution"""
    GELU_TANH = "gelu_tanh"
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), Hendrycks and Gimpel 2016"""
