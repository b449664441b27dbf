"""The split other engines use, for comparison: a fixed share of memory for states, the rest for KV.

Only documentation and tests call this; our plan shares one arena instead. It shows where the static split
starves one pool while the other idles.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StaticSplit:
    """Capacity of the two fixed pools."""

    slots: int
    """Usable state slots: one more is allocated as padding."""
    kv_tokens: int


def static_split(rest: int, slot_bytes: int, kv_bytes_per_token: int, ratio: float = 0.9) -> StaticSplit:
    """Capacity when `rest` bytes (budget less weights) are cut once and for all.

    States get `rest * ratio / (1 + ratio)`, less one slot of padding; KV gets the other `rest / (1 + ratio)`.
    """
    states = rest * ratio / (1 + ratio)
    slots = int((states - slot_bytes) // slot_bytes)
    tokens = int(rest / (1 + ratio) // kv_bytes_per_token) if kv_bytes_per_token else 0
    return StaticSplit(max(slots, 0), tokens)


def balanced_tokens(
    slots_per_sequence: int, slot_bytes: int, kv_bytes_per_token: int, ratio: float = 0.9
) -> float:
    """T* = s*S / (r*k): the one mean sequence length at which both pools of the static split fill together.

    Shorter sequences run out of states while KV idles; longer ones the reverse. Infinite without attention.
    """
    if not kv_bytes_per_token:
        return float("inf")
    return slots_per_sequence * slot_bytes / (ratio * kv_bytes_per_token)
