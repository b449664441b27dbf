"""The eviction policies of the state cache, listed once for every process."""

from typing import Literal

Eviction = Literal["RecomputeCost", "LRU"]
"""Which checkpoint goes first: the one expected to save least, or the least recently used."""
