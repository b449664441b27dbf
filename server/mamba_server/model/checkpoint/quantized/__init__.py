"""Weights that are stored quantized, in the forms in which models are published."""
