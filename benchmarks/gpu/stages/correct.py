"""Every operator against its reference in float32, with the arguments that a model's step gives it."""

from collections.abc import Iterator
from functools import cache, partial

import torch
from benchmarks.gpu import captured_step
from benchmarks.gpu.case import Absent, Case, Job, Numbers, Wrong
from benchmarks.gpu.device_facts import facts
from benchmarks.gpu.measured_model import MeasuredModel, measured_model
from benchmarks.gpu.models import FAMILIES, NANO
from benchmarks.gpu.operator_calls import Operator, OperatorCall, differences, intercepted, recorded
from benchmarks.gpu.scan_depth import error_by_depth
from benchmarks.gpu.step_inputs import Piece, StepShape
from benchmarks.gpu.tolerances import complaint

from mamba_kernels.dispatch.kernel_or_reference import KernelOrReference
from mamba_kernels.dispatch.operators import REFERENCE, triton_operators

__all__ = ["cases", "facts"]
DTYPE = "bfloat16"
FAR_SLABS = 70
"""Spare slabs of an arena, so that slots of a model of 143 MB a slab lie beyond 2^31 elements."""


def shapes(*, small: bool) -> dict[str, StepShape]:
    """Return ragged steps: contexts and pieces of awkward lengths, resumed or not, tracked or not."""
    if small:
        few = (Piece(1, done=5), Piece(67, track_every=64), Piece(17, done=64), Piece(3))
        return {
            "decodes": StepShape((1, 17, 70), tracked=2),
            "replays": StepShape((1, 17, 70), tracked=2, ring=2),
            "prompts": StepShape(pieces=few),
        }
    pieces = (
        Piece(1),
        Piece(63, done=1),
        Piece(100, done=257, track_every=256),
        Piece(257),
        Piece(2000, track_every=256),
        Piece(2, done=2046),
        Piece(257, done=63, track_every=64),
    )
    return {
        "decodes": StepShape((1, 63, 100, 257, 2000, 2, 1025), tracked=3),
        "replays": StepShape((1, 63, 100, 257, 2000, 2, 1025), tracked=3, ring=4),
        "prompts": StepShape(pieces=pieces),
        "both": StepShape((5, 700, 64), pieces[:4], tracked=2),
    }


def cases(job: Job) -> Iterator[Case]:
    """Yield a case for each model, step and operator; then what whole steps have to be."""
    device = torch.device(job.device)
    families = (NANO, "qwen3-next-80b-a3b") if job.small else FAMILIES
    for name in families:
        watched = WatchedModel(name, device, small=job.small)
        for step, shape in shapes(small=job.small).items():
            for operator in operators_of(name, step):
                yield Case(f"{name}, {step}, {operator}", partial(watched.check, operator, shape))
        watched.close()
    for tokens in (128,) if job.small else (1024, 4096, 16_384, 65_536):
        yield Case(f"scan of {tokens} tokens", partial(_depth, tokens, device, small=job.small))
    for rows in (1, 3) if job.small else (1, 8, 20, 64):
        yield Case(
            f"captured = issued, {rows} rows", partial(captured_step.check, rows, device, small=job.small)
        )
    yield Case("no step waits for the device", partial(_no_waits, device, small=job.small))


@cache
def operators_of(name: str, step: str) -> tuple[str, ...]:
    """Return the operators that such a step of a model calls, as a small model's step shows on a CPU.

    step: "decodes", "replays" (decodes with a ring), "prompts", or "both".
    """
    pieces = (Piece(3), Piece(2, done=5))
    shape = {
        "decodes": StepShape((3, 5)),
        "replays": StepShape((3, 5), ring=2),
        "prompts": StepShape(pieces=pieces),
        "both": StepShape((3,), pieces),
    }[step]
    operators, calls = recorded(REFERENCE)
    model = measured_model(name, [shape], operators, torch.device("cpu"), small=True, blocks=1)
    with torch.inference_mode():
        model.step(shape)
    return tuple(sorted({call.operator for call in calls}))


class WatchedModel:
    """One model, built at the first case, whose operators are the references but for the one in question."""

    def __init__(self, name: str, device: torch.device, *, small: bool) -> None:
        self._name, self._device, self._small = name, device, small
        self._model: MeasuredModel | None = None
        self._kernels = triton_operators()
        self._asked, self._found = "", list[dict[str, float]]()

    def check(self, operator: str, shape: StepShape) -> Numbers:
        """Compute the step, comparing each call of the operator with its reference. Raises Wrong, Absent."""
        self._asked, self._found = operator, []
        with torch.inference_mode():
            self._built().step(shape)
        if not self._found:
            raise Absent("the step does not call it")
        numbers: Numbers = {key: max(each[key] for each in self._found) for key in self._found[0]}
        if why := complaint(numbers, torch.bfloat16):
            raise Wrong(why, {**numbers, "leave_out": [operator]})
        return {**numbers, "calls": len(self._found)}

    def close(self) -> None:
        """Give the memory back."""
        self._model = None

    def _built(self) -> MeasuredModel:
        if self._model is None:
            steps = list(shapes(small=self._small).values())
            watched = intercepted(REFERENCE, self._compared)
            self._model = measured_model(
                self._name, steps, watched, self._device, small=self._small, blocks=1, dtype=DTYPE,
                spare_slabs=1 if self._small else FAR_SLABS,
            )  # fmt: skip
        return self._model

    def _compared(self, call: OperatorCall, reference: Operator) -> object:
        if call.operator == self._asked:
            both: KernelOrReference[..., object] = getattr(self._kernels, call.operator)
            # The kernel itself: what it cannot take is no result of it.
            kernel = both.kernel
            self._found.append(differences(call, kernel, torch.float32))
        return reference(*call.arguments, **call.named)


def _depth(tokens: int, device: torch.device, *, small: bool) -> Numbers:
    numbers = error_by_depth(tokens, device, small=small)
    if not numbers["relative_rms"] <= 0.02:
        raise Wrong(f"relative_rms is {numbers['relative_rms']:.3g} after {tokens} tokens", numbers)
    return numbers


def _no_waits(device: torch.device, *, small: bool) -> Numbers:
    if device.type != "cuda":
        raise Absent("no device to wait for; tests show that such a step reads no tensor")
    shape = StepShape((70, 5), (Piece(64), Piece(65)))
    model = measured_model(NANO, [shape], triton_operators(), device, small=small, blocks=2)
    with torch.inference_mode():
        model.step(shape)
        torch.cuda.synchronize()
        batch = model.arena.batch(shape, model.model.config.vocab_size)
        torch.cuda.set_sync_debug_mode("error")
        try:
            model.model.hidden(batch, model.arena.views)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return {}
