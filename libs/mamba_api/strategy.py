"""The state cache strategies, listed once for every process.

The CRD offers `StrategyChoice`; the planner turns `Auto` into a `Strategy`, which the engine runs.
"""

from typing import Literal

Strategy = Literal["NoBuffer", "ExtraBuffer", "ExtraBufferLazy"]
"""How a running sequence writes checkpoints."""

StrategyChoice = Literal["Auto", Strategy]
"""What a user may ask for: a strategy, or the planner's choice."""
