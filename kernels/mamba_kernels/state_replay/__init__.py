"""One token of the SSM recurrence for each decoding sequence; states are not written each time."""

from mamba_kernels.state_replay.reference import state_replay
from mamba_kernels.state_replay.ring import RingPlan, delta_width, scan_width

__all__ = ["RingPlan", "delta_width", "scan_width", "state_replay"]
