"""`ways_to_fit`: changes of one setting that make an engine fit, each tried before it is named. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from mamba_planner.constraints import Constraints, Workload
from mamba_planner.errors import InsufficientMemory, UnusableInput
from mamba_planner.memory import Device
from mamba_planner.model_config import ModelConfig
from mamba_planner.planner import plan
from mamba_settings.byte_size import binary_size, exact_size

LEAST_LENGTH = 1024
"""No shorter model length is proposed."""
CHUNKS = (512, 128)
MIB = 1 << 20
UTILIZATION = 0.95
MORE = (1, 1.1, 1.5, 2, 4)
"""Times what is known to be needed: a sequence comes on top where the weights alone were too much."""


def ways_to_fit(
    model: ModelConfig,
    constraints: Constraints,
    device: Device,
    weights_bytes: int | None,
    workload: Workload,
    misfit: InsufficientMemory,
) -> tuple[str, ...]:
    """Return the changes, for people, by the names of the settings; the last resort is memory."""

    def fits(changed: Constraints, weights: int | None = weights_bytes, there: Device = device) -> bool:
        try:
            plan(model, changed, there, weights, workload)
        except (InsufficientMemory, UnusableInput):
            return False
        return True

    ways = [
        next((words for changed, words in lever if fits(changed)), "")
        for lever in (
            _shorter(model, constraints),
            _leaner(constraints),
            _smaller_steps(constraints),
            _larger_share(constraints, device),
            _other_arena(constraints, misfit, device),
        )
    ]
    if device.kind == "cpu" and constraints.quantization == "none":
        # What the files would take as int8 is not known here.
        ways.append("quantization int8" if fits(replace(constraints, quantization="int8"), None) else "")
    if device.kind == "cpu" and constraints.arena_bytes is None:
        for part in MORE:
            memory = ceil(misfit.need * part / constraints.utilization)
            if fits(constraints, there=device.resized(memory)):
                ways.append(f"a machine with {binary_size(memory)} of free memory")
                break
    return tuple(filter(None, ways))


Lever = Iterator[tuple[Constraints, str]]
"""Changes of one setting with their words, the smallest first."""


def _shorter(model: ModelConfig, constraints: Constraints) -> Lever:
    asked, own = constraints.max_model_len, model.max_position
    why = f"the model's own is {own:,}" if asked is None else f"{asked:,} is set"
    length = own // 2 if asked is None else asked // 2
    if asked is not None and asked > own:
        why, length = f"{why}, and the model was made for {own:,}", own
    while length >= LEAST_LENGTH:
        yield replace(constraints, max_model_len=length), f"max_model_len {length:,} or less ({why})"
        length //= 2


def _leaner(constraints: Constraints) -> Lever:
    if constraints.strategy not in (None, "NoBuffer"):
        yield replace(constraints, strategy="NoBuffer"), "strategy NoBuffer"
    if constraints.state_dtype == "float32":
        yield replace(constraints, state_dtype="float16"), "state_dtype float16"


def _smaller_steps(constraints: Constraints) -> Lever:
    now = constraints.chunked_prefill_tokens
    for tokens in CHUNKS:
        if tokens < now:
            words = f"chunked_prefill_tokens {tokens} (now {now:,})"
            yield replace(constraints, chunked_prefill_tokens=tokens), words


def _larger_share(constraints: Constraints, device: Device) -> Lever:
    if constraints.utilization < UTILIZATION and device.free is None and constraints.arena_bytes is None:
        words = f"utilization {UTILIZATION} (now {constraints.utilization:g})"
        yield replace(constraints, utilization=UTILIZATION), words


def _other_arena(constraints: Constraints, misfit: InsufficientMemory, device: Device) -> Lever:
    if (arena := constraints.arena_bytes) is None:
        return
    # Rounded to what also fits.
    smaller = (arena - (misfit.need - misfit.have)) // MIB * MIB
    if device.kind == "cpu" and not device.told and smaller > 0:
        yield replace(constraints, arena_bytes=smaller), f"arena_bytes of at most {exact_size(smaller)}"
    larger = ceil((arena + misfit.need - misfit.have) / MIB) * MIB
    yield replace(constraints, arena_bytes=larger), f"arena_bytes of at least {exact_size(larger)}"
