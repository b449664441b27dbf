"""Cases of norms, activations, and the choice of tokens."""

import torch

from mamba_kernels.activate import Function
from mamba_kernels.bench.case import Case, Inputs
from mamba_kernels.bench.model_shape import ModelShape
from mamba_kernels.dispatch.operators import Operators
from mamba_kernels.sample import PenaltyCounts, SampleParameters, sample
from mamba_kernels.sample.parameters import packed_size

EPS = 1e-5
WIDENED = 3
"""Width of a feed-forward layer as a multiple of the hidden size, roughly."""


def row_cases(name: str, shape: ModelShape, device: torch.device, *, small: bool) -> list[Case]:
    """Return the cases at the shapes of a model; `small` ones are for a machine without a GPU."""
    rows = (8,) if small else (64, 4096)
    cases = [norm(name, shape, device, n) for n in rows for norm in (_rms_norm, _gated, _activation)]
    choices = ((4, 1.0), (4, 0.9)) if small else ((1, 1.0), (64, 1.0), (256, 1.0), (64, 0.9))
    return cases + [_sample(name, shape, device, n, top_p) for n, top_p in choices]


def _random(device: torch.device, *sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator(device).manual_seed(0), device=device)


def _rms_norm(name: str, shape: ModelShape, device: torch.device, rows: int) -> Case:
    def inputs(size: int) -> Inputs:
        x = _random(device, size, shape.d)
        return {"x": x, "weight": torch.ones(shape.d, device=device).bfloat16(), "added": x.bfloat16()}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        return operators.rms_norm(arguments["x"], arguments["weight"], EPS, arguments["added"]), arguments[
            "x"
        ]

    # The float32 residual stream is read and written; the added rows and the result have 16 bits.
    return Case(
        "rms_norm", f"{name}, {rows} rows", rows, min(rows, 8), inputs, run, rows * shape.d * (2 * 4 + 2 * 2)
    )


def _gated(name: str, shape: ModelShape, device: torch.device, rows: int) -> Case:
    def inputs(size: int) -> Inputs:
        y = _random(device, size, shape.inner)
        weight = torch.ones(shape.inner, device=device).bfloat16()
        return {"y": y.bfloat16(), "gate": y.flip(0).bfloat16(), "weight": weight}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        return (operators.gated_norm(arguments["y"], arguments["gate"], arguments["weight"], EPS, shape.G),)

    return Case(
        "gated_norm", f"{name}, {rows} rows", rows, min(rows, 8), inputs, run, rows * shape.inner * 3 * 2
    )


def _activation(name: str, shape: ModelShape, device: torch.device, rows: int) -> Case:
    """Return the case of SiLU of one half of a product, times the other half, in place."""
    width = WIDENED * shape.d

    def inputs(size: int) -> Inputs:
        return {"product": _random(device, size, 2 * width).bfloat16()}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        gate, up = arguments["product"].chunk(2, 1)
        operators.activate(gate, Function.SILU, up)
        return (gate,)

    return Case("activate", f"{name}, {rows} rows", rows, min(rows, 8), inputs, run, rows * width * 3 * 2)


def _sample(name: str, shape: ModelShape, device: torch.device, rows: int, top_p: float) -> Case:
    def inputs(size: int) -> Inputs:
        parameters = SampleParameters.packed(
            torch.zeros(packed_size(size), dtype=torch.int32, device=device), size
        )
        for tensor in (parameters.temperature, parameters.repetition):
            tensor.fill_(1.0)
        parameters.top_p.fill_(top_p)
        parameters.counts_row.fill_(-1)
        parameters.words.copy_(torch.arange(2 * size, device=device).view(size, 2))
        return {
            "logits": _random(device, size, shape.vocabulary).mul_(4),
            "parameters": parameters,
            "counts": PenaltyCounts(
                torch.zeros(1, shape.vocabulary, dtype=torch.int32, device=device),
                torch.zeros(1, shape.vocabulary, dtype=torch.bool, device=device),
            ),
            "positions": torch.arange(size, dtype=torch.int32, device=device),
        }

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        choose = operators.sample or sample
        choice = choose(
            arguments["logits"].float(), arguments["parameters"], arguments["counts"], arguments["positions"]
        )
        return choice.ids, choice.finite

    return Case(
        "sample",
        f"{name}, {rows} rows, top-p {top_p:g}",
        rows,
        min(rows, 4),
        inputs,
        run,
        4 * rows * shape.vocabulary,
    )
