"""Times of operators as the engine launches them: calls that a model's step made, replayed as a graph."""

from collections.abc import Iterator
from functools import partial

import torch
from benchmarks.gpu.case import Absent, Case, Job, Numbers
from benchmarks.gpu.device_facts import facts
from benchmarks.gpu.forecasts import beside
from benchmarks.gpu.four_bit_products import four_bit_cases
from benchmarks.gpu.measured_model import measured_model
from benchmarks.gpu.models import NANO, published
from benchmarks.gpu.operator_calls import OperatorCall, recorded
from benchmarks.gpu.operator_traffic import least_bytes, operations
from benchmarks.gpu.peers import peers_of
from benchmarks.gpu.sampled_rows import sample_seconds
from benchmarks.gpu.stages.correct import operators_of
from benchmarks.gpu.step_inputs import Piece, StepShape
from benchmarks.gpu.timing import seconds_of

from mamba_kernels.dispatch.operators import triton_operators

__all__ = ["cases", "facts"]
LAYERS = 8
"""Layers of each kind whose calls take turns: their states are far more than a cache holds."""
ROWS = (1, 8, 32, 64, 256, 2048)
PEERS = ("granite-4.0-h-tiny", "falcon-h1-7b", "qwen3-next-80b-a3b", "nemotron-h-8b")


def decodes(rows: int, context: int, tracked: int = 0, ring: int = 0) -> StepShape:
    """Return a step that only decodes."""
    return StepShape((context,) * rows, tracked=tracked, ring=ring)


def prompts(count: int, tokens: int, done: int = 0, track_every: int = 0) -> StepShape:
    """Return a step of equal pieces."""
    return StepShape(pieces=(Piece(tokens, done, track_every),) * count)


RAGGED = StepShape(pieces=tuple(Piece(tokens, track_every=256) for tokens in range(32, 993, 64)))
"""Sixteen prompts, 8,192 tokens in all."""


def steps_of(*, small: bool) -> list[tuple[str, str, StepShape, str]]:
    """Return (model, words for the step, step, type of states), the most important first."""
    if small:
        return [
            (NANO, "2 decodes at 20", decodes(2, 20, tracked=1), "float32"),
            ("qwen3-next-80b-a3b", "70 tokens", prompts(1, 70), "float32"),
            (NANO, "2 decodes at 20, written once in 2", decodes(2, 20, ring=2), "float32"),
        ]
    steps = [
        (NANO, f"{rows} decode{'s' * (rows > 1)} at 1024", decodes(rows, 1024), "float32")
        for rows in (64, 1, 256, 32, 8)
    ]
    steps += [
        (NANO, "2048 tokens", prompts(1, 2048), "float32"),
        (NANO, "8192 tokens", prompts(1, 8192), "float32"),
        (NANO, "16 ragged prompts of 8192", RAGGED, "float32"),
        (NANO, "64 decodes at 1024, float16", decodes(64, 1024), "float16"),
        (NANO, "256 decodes at 1024, float16", decodes(256, 1024), "float16"),
        (NANO, "64 decodes at 1024, 1 in 16 tracked", decodes(64, 1024, tracked=16), "float32"),
        (NANO, "64 decodes at 1024, all tracked", decodes(64, 1024, tracked=1), "float32"),
    ]
    steps += [
        (name, f"{rows} decodes at 1024, written once in 8", decodes(rows, 1024, ring=8), "float32")
        for name, rows in ((NANO, 128), (NANO, 256), ("qwen3-next-80b-a3b", 128))
    ]
    steps += [(name, "128 decodes at 1024", decodes(128, 1024), "float32") for name in (NANO, PEERS[2])]
    steps += [(name, "8192 tokens", prompts(1, 8192), "float32") for name in PEERS]
    steps += [(name, "64 decodes at 1024", decodes(64, 1024), "float32") for name in PEERS]
    steps += [
        (NANO, "64 decodes at 8192", decodes(64, 8192), "float32"),
        (NANO, "1 decode at 8192", decodes(1, 8192), "float32"),
        (NANO, "2048 tokens behind 14336", prompts(1, 2048, 14_336), "float32"),
    ]
    return steps


def cases(job: Job) -> Iterator[Case]:
    """Yield products of projections, choices of tokens, then operators step by step."""
    device = torch.device(job.device)
    for name, (outputs, inputs) in _projections(small=job.small).items():
        for rows in (2,) if job.small else ROWS:
            case = f"{name}, {rows} rows"
            yield Case(case, partial(_projection, case, rows, outputs, inputs, device))
    yield from four_bit_cases(_projections(small=job.small), device, small=job.small)
    for rows in (2,) if job.small else (1, 64, 256):
        for top_p in (1.0, 0.9):
            case = f"sample, {rows} rows" + (f", top-p {top_p:g}" if top_p < 1 else "")
            yield Case(case, partial(_sample, case, rows, top_p, device, small=job.small))
    for model, words, shape, state_dtype in steps_of(small=job.small):
        step = RecordedStep(model, shape, state_dtype, device, small=job.small)
        kinds = "both" if shape.decodes and shape.pieces else "decodes" if shape.decodes else "prompts"
        kinds = "replays" if shape.ring else kinds
        for operator in operators_of(model, kinds):
            if operator not in job.left_out:
                case = f"{model}, {words}, {operator}"
                yield Case(case, partial(_operator, case, step, operator, device), 40)
        step.close()


class RecordedStep:
    """A step of a model, computed once at the first case that asks for its calls."""

    def __init__(
        self, model: str, shape: StepShape, state_dtype: str, device: torch.device, *, small: bool
    ) -> None:
        self._of = model, shape, state_dtype, device, small
        self._calls: list[OperatorCall] | None = None

    def calls(self, operator: str) -> list[OperatorCall]:
        """Return the operator's calls, one for each layer that has it. Raises Absent where there is none."""
        if self._calls is None:
            model, shape, state_dtype, device, small = self._of
            operators, calls = recorded(triton_operators())
            measured = measured_model(
                model,
                [shape],
                operators,
                device,
                small=small,
                blocks=1 if small else LAYERS,
                state_dtype=state_dtype,
            )
            with torch.inference_mode():
                measured.step(shape)
            self._calls = calls
        selected = [call for call in self._calls if call.operator == operator]
        if not selected:
            raise Absent("the step does not call it")
        return selected

    def close(self) -> None:
        """Give the memory back."""
        self._calls = None


def _operator(case: str, step: RecordedStep, operator: str, device: torch.device) -> Numbers:
    calls = step.calls(operator)
    kernels = triton_operators()
    with torch.inference_mode():
        numbers: Numbers = dict(seconds_of([partial(call.run, kernels) for call in calls], device))
        seconds = float(numbers["seconds"])
        if moved := least_bytes(calls[0]):
            numbers["bytes_per_second"] = moved / seconds
        if flops := operations(calls[0]):
            numbers["flops"] = flops / seconds
        numbers["peers"] = {name: _peer(prepare, seconds, device) for name, prepare in peers_of(calls[0])}
    return {**numbers, **beside(case, seconds)}


def _peer(prepare, seconds: float, device: torch.device) -> Numbers:  # type: ignore[no-untyped-def]
    if device.type != "cuda":
        return {"absent": "peers need a card"}
    try:
        theirs = float(seconds_of([prepare()], device)["seconds"])
    except Exception as why:
        return {"absent": f"{type(why).__name__}: {why}"[:300]}
    return {"seconds": theirs, "times": theirs / seconds}


def _projections(*, small: bool) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of the products of the 9B."""
    config = published(NANO, small=small)
    mamba, attention, mlp, d = config.mamba, config.attention, config.mlp, config.hidden_size
    assert mamba is not None
    assert attention is not None
    assert mlp is not None
    return {
        "in_proj": (mamba.inner + mamba.conv_dim + mamba.heads, d),
        "out_proj": (d, mamba.inner),
        "up_proj": (mlp.intermediate, d),
        "down_proj": (d, mlp.intermediate),
        "qkv_proj": ((attention.heads + 2 * attention.kv_heads) * attention.head_dim, d),
        "head": (config.vocab_size, d),
    }


def _projection(case: str, rows: int, outputs: int, inputs: int, device: torch.device) -> Numbers:
    # Weights of several layers take turns, so that they come from memory.
    count = max(2, min(LAYERS, (1 << 30) // (2 * outputs * inputs)))
    weights = [torch.randn(outputs, inputs, device=device).bfloat16() for _ in range(count)]
    x = torch.randn(rows, inputs, device=device).bfloat16()
    calls = [partial(torch.nn.functional.linear, x, weight) for weight in weights]
    numbers: Numbers = dict(seconds_of(calls, device))
    seconds = float(numbers["seconds"])
    moved = 2 * (outputs * inputs + rows * (inputs + outputs))
    return {
        **numbers, "bytes_per_second": moved / seconds, "flops": 2 * rows * outputs * inputs / seconds,
        **beside(case, seconds),
    }  # fmt: skip


def _sample(case: str, rows: int, top_p: float, device: torch.device, *, small: bool) -> Numbers:
    numbers = sample_seconds(rows, top_p, published(NANO, small=small).vocab_size, device)
    return {**numbers, **beside(case, float(numbers["seconds"]))}
