"""One token of the gated delta rule for each decoding sequence; states are not written each time."""

from mamba_kernels.delta_replay.reference import gated_delta_replay

__all__ = ["gated_delta_replay"]
