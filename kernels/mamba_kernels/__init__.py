"""Numerical kernels: one folder per operator, with a plain torch reference. Imports torch and triton only."""
