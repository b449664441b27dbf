"""How fast an engine is, as it measured itself: what turns tokens into seconds. Pure."""

from dataclasses import dataclass

from mamba_planner.arithmetic import prefill_work


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """One engine's speed. `attention_ratio` is what attention adds to a token's work for each before it."""

    tokens_per_second: float
    attention_ratio: float = 0.0
    decode_seconds: float = 0.0
    """Of a step that only decodes; 0 = not measured yet."""
    error: float = 0.0
    """Standard error of `tokens_per_second`, by that; 0 = it does not say, and is believed."""

    def work(self, start: int, stop: int) -> float:
        """Of the prompt tokens [start, stop), in tokens as the first one costs."""
        return prefill_work(start, stop, self.attention_ratio)

    def seconds(self, start: int, stop: int) -> float:
        """Time to compute the prompt tokens [start, stop)."""
        return prefill_work(start, stop, self.attention_ratio) / self.tokens_per_second


NOMINAL = EngineSpeed(10_000.0)
"""Where no engine has measured itself. High, so that load decides unless the difference is long."""
