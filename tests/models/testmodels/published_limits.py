"""Step sizes of Nemotron-H and Zamba2 as the code published with the models has them."""

from typing import Any


def follow_published_limits(reference: Any) -> None:
    """Let a model of transformers clamp step sizes by the limit of its configuration.

    Without this, its single pass uses the minimal step of the initialisation.
    """
    for module in reference.modules():
        if hasattr(module, "time_step_limit"):
            # Zamba2 has no such field, and no limit.
            limit = getattr(reference.config, "time_step_limit", None) or (0.0, float("inf"))
            module.time_step_limit = tuple(limit)
