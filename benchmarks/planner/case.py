"""Random cases: a published model, a GPU's memory and traffic, drawn by a seed. Pure."""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.planner.step_time import Gpu
from benchmarks.planner.traffic import Shape, declared

from mamba_planner.candidates import slab_geometry
from mamba_planner.constraints import Constraints, Workload
from mamba_planner.families.registry import model_config_from_hf
from mamba_planner.memory import Device, MemoryBudget
from mamba_planner.model_config import ModelConfig

CONFIGS = Path(__file__).parents[2] / "tests" / "golden" / "configs"
ROOMY = 1 << 50


@dataclass(frozen=True, slots=True)
class Case:
    """One question to the planner, and all that the engine's answer takes."""

    number: int
    name: str
    """Name of the model."""
    model: ModelConfig
    constraints: Constraints
    device: Device
    gpu: Gpu
    shape: Shape
    workload: Workload
    longest: int
    """Tokens of a sequence at most."""


@cache
def _models() -> dict[str, ModelConfig]:
    return {
        path.stem: model_config_from_hf(json.loads(path.read_text()), path.name)
        for path in sorted(CONFIGS.glob("*.json"))
    }


def cases(count: int, seed: int) -> Iterator[Case]:
    """Yield `count` cases."""
    return (drawn(number, seed) for number in range(count))


def drawn(number: int, seed: int) -> Case:
    """Draw the case of that number; it does not depend on the other cases."""
    models = _models()
    rng = random.Random(f"{seed} {number}")

    def between(low: float, high: float) -> int:
        return round(low * math.pow(high / low, rng.random()))

    name = rng.choice(list(models))
    model = models[name]
    shape = Shape(
        concurrency=between(1, 24),
        instructions=rng.choice((0, between(100, 2000))),
        sets=between(1, 8),
        turns=1 + 5 * rng.random(),
        asked=between(16, 1500),
        answered=between(12, 150),
        spread=rng.choice((0.0, 0.3, 0.6)),
    )
    longest = shape.instructions + 12 * (shape.asked + shape.answered)
    workload = declared(shape, seed + number, longest)
    constraints = Constraints(max_model_len=longest)
    # From what barely runs, through what runs them all, to room for a large cache.
    sized = slab_geometry(model, constraints, "float32")
    whole = sized.slabs(shape.concurrency, 1, workload.tokens)
    slabs = max(2 + sized.slabs(1, 3, longest), round(whole * 0.6 * 20 ** rng.random()) + 1)
    budget = MemoryBudget.of(model, constraints, Device("cuda", ROOMY))
    used_bytes = budget.weights + budget.workspace + slabs * sized.slab
    memory = int(used_bytes / constraints.utilization) + 1
    gpu = Gpu.with_memory(memory, operations_per_byte=150 + 150 * rng.random())
    return Case(number, name, model, constraints, Device("cuda", memory), gpu, shape, workload, longest)
