"""Models with random weights whose operators can be watched, and steps on them."""

from dataclasses import dataclass

import torch
from benchmarks.gpu.models import published, shortened
from benchmarks.gpu.random_weights import RandomWeights
from benchmarks.gpu.step_inputs import StepArena, StepShape

from mamba_kernels.dispatch.backend import TRITON, Backend
from mamba_kernels.dispatch.operators import REFERENCE, Operators
from mamba_server.model.device_arena import DTYPES
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.step_plans import StepPlans


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model, and an arena with its slabs."""

    model: HybridModel
    arena: StepArena
    recurrent: bool
    attention: bool

    def step(self, shape: StepShape) -> torch.Tensor:
        """Compute a step whose plans both the kernels and the reference can follow: [T, d]."""
        batch = self.arena.batch(shape, self.model.config.vocab_size)
        plans = StepPlans.build(batch, recurrent=self.recurrent, attention=self.attention)
        return self.model.decode(batch.token_ids, plans, self.arena.views_of(shape))


def measured_model(
    name: str,
    shapes: list[StepShape],
    operators: Operators,
    device: torch.device,
    *,
    small: bool,
    blocks: int,
    dtype: str = "bfloat16",
    state_dtype: str = "float32",
    spare_slabs: int = 0,
) -> MeasuredModel:
    """Build the first `blocks` blocks of each kind of a published model, computed by `operators`."""
    whole = published(name, small=small)
    config = shortened(whole, blocks)
    backend = Backend("torch" if operators is REFERENCE else TRITON, operators)
    model = HybridModel(config, RandomWeights(), device=device, dtype=DTYPES[dtype], backend=backend)
    arena = StepArena(
        # Slabs as the whole model has them, so that neighbours there are neighbours here.
        config if small else whole,
        shapes,
        dtype=dtype,
        state_dtype=state_dtype,
        device=device,
        spare_slabs=spare_slabs,
    )
    return MeasuredModel(
        model, arena, recurrent=config.recurrent_layers > 0, attention=config.attention_layers > 0
    )
