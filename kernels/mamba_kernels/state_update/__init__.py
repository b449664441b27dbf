"""One token of the SSM recurrence for each decoding sequence."""

from mamba_kernels.state_update.reference import state_update

__all__ = ["state_update"]
