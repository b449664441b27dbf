"""A causal convolution of few taps between two gates: prompts in pieces, decodes with one token each."""

from mamba_kernels.short_conv.reference import short_conv_prefill, short_conv_update

__all__ = ["short_conv_prefill", "short_conv_update"]
