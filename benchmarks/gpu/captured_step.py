"""A decode step as a CUDA graph does what the same step does when it is issued, bit for bit."""

import numpy as np
import torch
from benchmarks.gpu.case import Absent, Numbers, Wrong
from benchmarks.gpu.measured_model import measured_model
from benchmarks.gpu.models import NANO
from benchmarks.gpu.step_inputs import PAGE, StepArena, StepShape

from mamba_kernels.dispatch.operators import triton_operators
from mamba_server.engine.execution.decode_step import DecodeStep
from mamba_server.engine.execution.sampler import Sampler
from mamba_server.engine.execution.sampling_batch import SamplingRow
from mamba_server.engine.execution.step_graphs import StepGraphs
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.wire import SamplingParams

NO_RING = StepShape()
REPEATS = 3
KINDS = (
    SamplingParams(max_tokens=8, temperature=0.0),
    SamplingParams(max_tokens=8, temperature=1.0, top_p=0.9, top_k=40),
    SamplingParams(max_tokens=8, temperature=0.7, min_p=0.02),
)


def decode_step(
    model: HybridModel, arena: StepArena, table: torch.Tensor, rows: int, shape: StepShape = NO_RING
) -> tuple[DecodeStep, Sampler]:
    """Build a step of `rows` rows over the arena; `table`: its pages, with a last row that is nobody's.

    `shape`: one of the shapes that are to be computed, which have a ring all or none.
    """
    sampler = Sampler(model.config.vocab_size, arena.device, (), triton_operators().sample)
    last_token = torch.zeros(len(table), dtype=torch.int32, device=arena.device)
    views = arena.views_of(shape)
    return DecodeStep(rows, model, views, sampler, table, last_token, PAGE), sampler


def sampling_rows(sampler: Sampler, count: int) -> list[SamplingRow]:
    """Return parameters of so many sequences, of all kinds that need no counts."""
    return [sampler.admit(KINDS[row % len(KINDS)], row, 3, np.zeros(0, np.int32)) for row in range(count)]


def check(rows: int, device: torch.device, *, small: bool) -> Numbers:
    """Decode with changing inputs, captured and issued, from one and the same arena. Raises Wrong."""
    if device.type != "cuda":
        raise Absent("no graphs without a card; tests repeat recorded work in their place")
    from mamba_server.engine.execution.cuda_graphs import CudaGraphs
    from mamba_server.engine.execution.cuda_stream import CudaStream

    stream = CudaStream(device)
    stream.stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream.stream):
        numbers = compare(rows, device, CudaGraphs(stream, 0), small=small)
        stream.stream.synchronize()
    return numbers


def compare(rows: int, device: torch.device, graphs: StepGraphs, *, small: bool) -> Numbers:
    """Compare steps that `graphs` captures with the same steps issued. Raises Wrong."""
    with torch.inference_mode():
        return _compare(rows, device, graphs, small=small)


def _compare(rows: int, device: torch.device, graphs: StepGraphs, *, small: bool) -> Numbers:
    # Fewer sequences than rows: the others are padding.
    counts = [rows, max(1, rows - 1), rows]
    shapes = [
        StepShape(tuple((7 * row + 11 * turn) % 90 + 1 for row in range(count)), tracked=2)
        for turn, count in enumerate(counts)
    ]
    results = []
    for capture in (False, True):
        model = measured_model(NANO, shapes, triton_operators(), device, small=small, blocks=1)
        batches = [model.arena.host_batch(shape) for shape in shapes]
        table = torch.zeros(
            rows + 1, max(len(pages[0]) for _, pages in batches), dtype=torch.int32, device=device
        )
        step, sampler = decode_step(model.model, model.arena, table, rows)
        step.warm_up()
        if capture:
            step.capture(graphs)
        tokens = []
        for host, pages in batches:
            table[: len(pages) - 1, : pages.shape[1]] = torch.from_numpy(pages[:-1]).to(device)
            hidden = step.forward(host).clone()
            choice = step.choose(sampling_rows(sampler, len(host.context_len)))
            tokens.append((hidden, choice.ids.clone(), choice.finite.clone()))
        # Slot 0 is padding, where anything may lie.
        memory = [
            view[1:].clone()
            for views in (model.arena.views.ssm, model.arena.views.conv)
            for view in views[:1]
        ]
        results.append((tokens, memory))
    (issued, left), (captured, right) = results
    for turn, (ours, theirs) in enumerate(zip(captured, issued, strict=True)):
        for name, mine, other in zip(("hidden states", "tokens", "finite"), ours, theirs, strict=True):
            if not _same(mine, other):
                raise Wrong(f"{name} of repetition {turn} differ")
    if not all(_same(mine, other) for mine, other in zip(left, right, strict=True)):
        raise Wrong("the states differ")
    return {"repetitions": len(captured)}


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether all bits are equal, NaN being equal to NaN."""
    if not left.is_floating_point():
        return torch.equal(left, right)
    return bool(((left == right) | (left.isnan() & right.isnan())).all())
