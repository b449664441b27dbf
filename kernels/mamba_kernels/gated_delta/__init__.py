"""The gated delta rule over the rows of a batch: prompts in chunks, decodes with one token each."""

from mamba_kernels.gated_delta.inputs import DeltaInputs
from mamba_kernels.gated_delta.reference import gated_delta_prefill, gated_delta_update

__all__ = ["DeltaInputs", "gated_delta_prefill", "gated_delta_update"]
