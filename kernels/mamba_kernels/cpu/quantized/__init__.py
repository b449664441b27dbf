"""Weights of fewer bits, packed for the C++ kernels."""
