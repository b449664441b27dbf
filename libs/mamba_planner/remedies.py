"""`ways_to_fit`: changes of one setting that make an engine fit, each tried before it is named. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from mamba_api.choices import FP8_PAGES, Quantization
from mamba_planner.constraints import Constraints, Workload
from mamba_planner.errors import InsufficientMemory, UnusableInput
from mamba_planner.memory import Device
from mamba_planner.model_config import ModelConfig
from mamba_planner.planner import plan
from mamba_settings.byte_size import binary_size, exact_size

MIN_LENGTH_TOKENS = 1024
"""Shortest model length in tokens that is proposed."""
STEP_TOKENS = (512, 128)
MIB = 1 << 20
MAX_UTILIZATION = 0.95
MEMORY_FACTORS = (1, 1.1, 1.5, 2, 4)
"""Factors on the memory that is known to be needed. If the weights alone were too large, that number lacks
the memory of a sequence."""
_SMALLER_ON_CPUS: dict[Quantization, tuple[Quantization, ...]] = {
    "none": ("int8", "int4"),
    "int8": ("int4",),
    "int4": (),
    "fp8": ("int4",),
}
_SMALLER_ON_GPUS: dict[Quantization, tuple[Quantization, ...]] = {
    "none": ("fp8", "int4"),
    "int8": (),
    "int4": (),
    "fp8": ("int4",),
}
_QUANTIZED: dict[Quantization, str] = {"fp8": "quantization fp8 (on L4, H100 and later GPUs)"}


def ways_to_fit(
    model: ModelConfig,
    constraints: Constraints,
    device: Device,
    weights_bytes: int | None,
    workload: Workload,
    misfit: InsufficientMemory,
) -> tuple[str, ...]:
    """Return changes of the settings that would make the engine fit, in words; more memory comes last.

    `misfit` is the error that says by how much the present settings do not fit; the other parameters are
    those of `plan`.
    """

    def fits(changed: Constraints, weights: int | None = weights_bytes, target: Device = device) -> bool:
        try:
            plan(model, changed, target, weights, workload)
        except (InsufficientMemory, UnusableInput):
            return False
        return True

    ways = [
        next((description for changed, description in lever if fits(changed)), "")
        for lever in (
            _shorter(model, constraints),
            _leaner(constraints),
            _narrower_pages(constraints),
            _smaller_steps(constraints),
            _larger_share(constraints, device),
            _other_arena(constraints, misfit, device),
        )
    ]
    on_cpu = device.kind == "cpu"
    forms = (_SMALLER_ON_CPUS if on_cpu else _SMALLER_ON_GPUS)[constraints.quantization]
    # The size of the files in another form is unknown here, so the parameter count is used.
    smaller = [form for form in forms if fits(replace(constraints, quantization=form), None)]
    # A GPU without FP8 needs the next form, too; a CPU has them all.
    ways += [_QUANTIZED.get(form, f"quantization {form}") for form in smaller[: 1 if on_cpu else None]]
    if on_cpu and constraints.arena_bytes is None:
        for factor in MEMORY_FACTORS:
            memory = ceil(misfit.need * factor / constraints.utilization)
            if fits(constraints, target=device.resized(memory)):
                ways.append(f"a machine with {binary_size(memory)} of free memory")
                break
    return tuple(filter(None, ways))


Lever = Iterator[tuple[Constraints, str]]
"""Changes of one setting, the smallest first, each as constraints and in words."""


def _shorter(model: ModelConfig, constraints: Constraints) -> Lever:
    configured, model_limit = constraints.max_model_len, model.max_position
    why = f"the model's own is {model_limit:,}" if configured is None else f"{configured:,} is set"
    length = model_limit // 2 if configured is None else configured // 2
    if configured is not None and configured > model_limit:
        why, length = f"{why}, and the model was trained for {model_limit:,}", model_limit
    while length >= MIN_LENGTH_TOKENS:
        yield replace(constraints, max_model_len=length), f"max_model_len {length:,} or less ({why})"
        length //= 2


def _leaner(constraints: Constraints) -> Lever:
    if constraints.strategy not in (None, "NoBuffer"):
        yield replace(constraints, strategy="NoBuffer"), "strategy NoBuffer"
    if constraints.state_dtype == "float32":
        yield replace(constraints, state_dtype="float16"), "state_dtype float16"


def _narrower_pages(constraints: Constraints) -> Lever:
    # Smaller pages may leave what follows them misaligned.
    if constraints.kv_cache_dtype != FP8_PAGES and not constraints.page_size % 4:
        yield replace(constraints, kv_cache_dtype=FP8_PAGES), f"kv_cache_dtype {FP8_PAGES}"


def _smaller_steps(constraints: Constraints) -> Lever:
    current = constraints.chunked_prefill_tokens
    for tokens in STEP_TOKENS:
        if tokens < current:
            description = f"chunked_prefill_tokens {tokens} (now {current:,})"
            yield replace(constraints, chunked_prefill_tokens=tokens), description


def _larger_share(constraints: Constraints, device: Device) -> Lever:
    if constraints.utilization < MAX_UTILIZATION and device.free is None and constraints.arena_bytes is None:
        description = f"utilization {MAX_UTILIZATION} (now {constraints.utilization:g})"
        yield replace(constraints, utilization=MAX_UTILIZATION), description


def _other_arena(constraints: Constraints, misfit: InsufficientMemory, device: Device) -> Lever:
    if (arena := constraints.arena_bytes) is None:
        return
    # Both sizes are rounded in the direction that still fits.
    smaller = (arena - (misfit.need - misfit.have)) // MIB * MIB
    if device.kind == "cpu" and not device.declared and smaller > 0:
        yield replace(constraints, arena_bytes=smaller), f"arena_bytes of at most {exact_size(smaller)}"
    larger = ceil((arena + misfit.need - misfit.have) / MIB) * MIB
    yield replace(constraints, arena_bytes=larger), f"arena_bytes of at least {exact_size(larger)}"
