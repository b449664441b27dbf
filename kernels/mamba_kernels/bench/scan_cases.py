"""Cases of the recurrence and its convolution: one long prompt and many; decodes, tracked and not."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

from mamba_kernels.bench import peers
from mamba_kernels.bench.case import Case, Inputs
from mamba_kernels.bench.model_shape import ModelShape
from mamba_kernels.dispatch.operators import Operators
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ChunkPlan

CHUNK = 64
LIMIT = (0.0, float("inf"))
STATE = torch.float32


def scan_cases(name: str, shape: ModelShape, device: torch.device, *, small: bool) -> list[Case]:
    """Return the cases at the shapes of a model; `small` ones are for a machine without a GPU."""
    batches = (1, 8) if small else (1, 8, 64, 256)
    prompts = ((512, 1),) if small else ((4096, 1), (16384, 1), (8192, 16))
    cases = [_decode(name, shape, device, rows, tracked=False) for rows in batches]
    cases.append(_decode(name, shape, device, batches[-1], tracked=True))
    cases += [_prefill(name, shape, device, tokens, pieces) for tokens, pieces in prompts]
    cases += [_window_update(name, shape, device, rows) for rows in batches]
    cases += [_window_prefill(name, shape, device, tokens, pieces) for tokens, pieces in prompts]
    return cases


def _random(device: torch.device) -> Callable[..., torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)

    def random(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, device=device).to(dtype)

    return random


def _mixer(shape: ModelShape, rows: int, device: torch.device) -> Inputs:
    """Return inputs of a mixer with x, B and C side by side in one row, as the convolution stores them."""
    random = _random(device)
    mixed = random(rows, shape.channels)
    return {
        "mixed": mixed,
        "dt": random(rows, shape.H),
        "A": -torch.exp(random(shape.H, dtype=torch.float32)),
        "D": random(shape.H, dtype=torch.float32),
        "dt_bias": random(shape.H, dtype=torch.float32),
        "out": torch.empty(rows, shape.H, shape.P, dtype=torch.bfloat16, device=device),
    }


def _scan(shape: ModelShape, arguments: Inputs) -> ScanInputs:
    shared = shape.G * shape.N
    x, B, C = arguments["mixed"].split([shape.inner, shared, shared], 1)
    return ScanInputs(
        x=x.unflatten(1, (shape.H, shape.P)),
        dt=arguments["dt"],
        A=arguments["A"],
        B=B.unflatten(1, (shape.G, shape.N)),
        C=C.unflatten(1, (shape.G, shape.N)),
        D=arguments["D"],
        dt_bias=arguments["dt_bias"],
        dt_limit=LIMIT,
    )


def _routes(rows: int, device: torch.device, *, tracked: bool = False) -> SlotPlan:
    slots = np.arange(1, rows + 1, dtype=np.int32)
    return SlotPlan.build(slots, slots, slots + rows if tracked else np.full_like(slots, -1), device)


def _decode(name: str, shape: ModelShape, device: torch.device, rows: int, *, tracked: bool) -> Case:
    def inputs(size: int) -> Inputs:
        random = _random(device)
        slots = 1 + size * (2 if tracked else 1)
        state = random(slots, shape.H, shape.P, shape.N, dtype=STATE)
        return {**_mixer(shape, size, device), "state": state, "plan": _routes(size, device, tracked=tracked)}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        operators.state_update(
            arguments["state"], _scan(shape, arguments), arguments["plan"], arguments["out"]
        )
        return arguments["out"], arguments["state"]

    state = shape.inner * shape.N * STATE.itemsize
    return Case(
        "state_update",
        f"{name}, {rows} rows{', all tracked' if tracked else ''}",
        rows,
        min(rows, 4),
        inputs,
        run,
        rows * ((3 if tracked else 2) * state + 2 * (2 * shape.inner + 2 * shape.G * shape.N + shape.H)),
        peer=None
        if tracked
        else lambda arguments: peers.state_update(arguments["state"][1:], _scan(shape, arguments)),
    )


def _pieces(tokens: int, pieces: int, device: torch.device) -> ChunkPlan:
    """Plan pieces of equal length, each of which starts from the zero state."""
    length = tokens // pieces
    starts = [piece * length for piece in range(pieces)] + [tokens]
    chunks = [
        (first, min(CHUNK, end - first), piece, rank)
        for piece, (start, end) in enumerate(pairwise(starts))
        for rank, first in enumerate(range(start, end, CHUNK))
    ]
    columns = [np.array(column, np.int32) for column in zip(*chunks, strict=True)]
    slots = np.arange(1, pieces + 1, dtype=np.int32)
    return ChunkPlan.build(
        chunk_start=columns[0],
        chunk_len=columns[1],
        chunk_sequence=columns[2],
        chunk_rank=columns[3],
        chunk_track=np.full(len(chunks), -1, np.int32),
        slot_in=np.full(pieces, -1, np.int32),
        slot_out=slots,
        piece_start=np.array(starts, np.int32),
        chunk_size=CHUNK,
        device=device,
    )


def _prefill(name: str, shape: ModelShape, device: torch.device, tokens: int, pieces: int) -> Case:
    def inputs(size: int) -> Inputs:
        state = torch.zeros(pieces + 1, shape.H, shape.P, shape.N, dtype=STATE, device=device)
        return {**_mixer(shape, size, device), "state": state, "plan": _pieces(size, pieces, device)}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        operators.ssd_prefill(
            arguments["state"], _scan(shape, arguments), arguments["plan"], arguments["out"]
        )
        return arguments["out"], arguments["state"][1:]

    token = 2 * (2 * shape.inner + 2 * shape.G * shape.N + shape.H)
    work = 2 * CHUNK * (shape.G * shape.N + shape.inner) + 4 * shape.inner * shape.N
    return Case(
        "ssd_prefill",
        f"{name}, {tokens} tokens in {pieces}",
        tokens,
        max(pieces, 256 // pieces * pieces),
        inputs,
        run,
        tokens * token + pieces * shape.inner * shape.N * STATE.itemsize,
        tokens * work,
        peer=lambda arguments: peers.ssd_prefill(_scan(shape, arguments), pieces),
    )


def _window(shape: ModelShape, slots: int, device: torch.device) -> Inputs:
    random = _random(device)
    return {
        "weight": random(shape.taps, shape.channels),
        "bias": random(shape.channels),
        "window": random(slots, shape.taps - 1, shape.channels),
    }


def _window_update(name: str, shape: ModelShape, device: torch.device, rows: int) -> Case:
    def inputs(size: int) -> Inputs:
        x = _random(device)(size, shape.channels)
        return {**_window(shape, size + 1, device), "x": x, "plan": _routes(size, device)}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        parts = (arguments[key] for key in ("x", "weight", "bias", "window", "plan"))
        return operators.conv1d_update(*parts), arguments["window"]

    least = rows * shape.channels * 2 * shape.taps * 2
    return Case(
        "conv1d_update", f"{name}, {rows} rows", rows, min(rows, 4), inputs, run, least,
    )  # fmt: skip


def _window_prefill(name: str, shape: ModelShape, device: torch.device, tokens: int, pieces: int) -> Case:
    def inputs(size: int) -> Inputs:
        x = _random(device)(size, shape.channels)
        return {**_window(shape, pieces + 1, device), "x": x, "plan": _pieces(size, pieces, device)}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        parts = (arguments[key] for key in ("x", "weight", "bias", "window", "plan"))
        return operators.conv1d_prefill(*parts), arguments["window"][1:]

    return Case(
        "conv1d_prefill",
        f"{name}, {tokens} tokens in {pieces}",
        tokens,
        max(pieces, 256 // pieces * pieces),
        inputs,
        run,
        2 * shape.channels * 2 * tokens,
    )
