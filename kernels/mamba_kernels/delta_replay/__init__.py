"""One token of the gated delta rule for each decoding sequence, with states that are not written each time."""

from mamba_kernels.delta_replay.reference import gated_delta_replay

__all__ = ["gated_delta_replay"]
