"""Step sizes of Nemotron-H as the code published with the models has them."""

from typing import Any


def follow_published_limits(reference: Any) -> None:
    """Let a model of transformers clamp step sizes by its configuration's limit: its single pass takes the
    least step of initialisation for a limit."""
    for module in reference.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = tuple(reference.config.time_step_limit)
