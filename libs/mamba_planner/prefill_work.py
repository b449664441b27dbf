"""Work of computing a prompt, in tokens as the first one costs. Pure arithmetic.

A token costs the same at every depth but for attention, which reads all tokens before it: the first part is
linear in the length, the second quadratic. The engine divides this work by the time it took, the gateway
multiplies it with the measured speed, so that both mean the same.
"""

from mamba_planner.arithmetic import active_parameters
from mamba_planner.model_config import ModelConfig


def attention_ratio(model: ModelConfig) -> float:
    """Arithmetic of attention for one token before, relative to all else of a token; 0 without attention.

    A token multiplies with each active parameter once (2 FLOPs), and in each attention layer with the key and
    the value of every token before it (2 FLOPs a channel each).
    """
    if (attention := model.attention) is None:
        return 0.0
    always, experts = active_parameters(model)
    share = model.moe.experts_per_token / model.moe.experts if model.moe is not None else 0.0
    linear = 2.0 * (always + share * experts)
    return 4.0 * model.attention_layers * attention.heads * attention.head_dim / max(linear, 1.0)


def prefill_work(start: int, stop: int, ratio: float) -> float:
    """Work of the tokens [start, stop) of a prompt: their number and what attention adds."""
    return (stop - start) + ratio * (stop * stop - start * start) / 2
