"""Cases of experts and of the gated delta rule, at the shapes of models that use them."""

import numpy as np
import torch

from mamba_kernels.bench.case import Case, Inputs
from mamba_kernels.dispatch.operators import Operators
from mamba_kernels.gated_delta import DeltaInputs
from mamba_kernels.moe import Activation, Routing, route
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ChunkPlan

QWEN3_NEXT = (32, 16, 128, 128)
"""Value heads H, key heads G, V, K."""
EXPERTS = {"granite-4.0-h-small": (4096, 768, 72, 10, True), "nemotron-3-nano": (2688, 1856, 128, 6, False)}
"""Width d, inner width of an expert, number of experts, experts per row, and whether they have gates."""
CHOICES = {
    "granite-4.0-h-small": (72, Routing(10, "softmax", renormalise=True)),
    "nemotron-3-nano": (128, Routing(6, "sigmoid", renormalise=True, scale=2.5)),
    "qwen3-next": (512, Routing(10, "softmax", renormalise=True)),
}
"""Number of experts, and the routing rule."""
CHUNK = 64


def moe_and_delta_cases(device: torch.device, *, small: bool) -> list[Case]:
    """Return the cases; `small` ones, for a machine without a GPU, have an eighth of the heads and widths."""
    H, G, V, K = QWEN3_NEXT
    shape = (H // 8, G // 8, V, K) if small else QWEN3_NEXT
    cases = [_update(shape, device, rows) for rows in ((4,) if small else (1, 64, 256))]
    cases += [_prefill(shape, device, tokens) for tokens in ((128,) if small else (4096, 16_384))]
    cases += [_delta_gate(shape, device, rows) for rows in ((4,) if small else (64, 4096))]
    for name, (experts, routing) in CHOICES.items():
        cases += [_route(name, experts, routing, device, rows) for rows in ((4,) if small else (1, 64, 4096))]
    for name, (d, inner, experts, k, gated) in EXPERTS.items():
        sizes = (d // 8, inner // 8, experts // 4, k, gated) if small else (d, inner, experts, k, gated)
        cases += [_moe(name, sizes, device, rows) for rows in ((4,) if small else (1, 64, 4096))]
    return cases


def _delta(shape: tuple[int, int, int, int], rows: int, device: torch.device, slots: int) -> Inputs:
    H, G, V, K = shape
    generator = torch.Generator(device).manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, device=device)

    return {
        "state": random(slots + 1, H, V, K) / 8,
        "mixed": random(rows, 2 * G * K + H * V).bfloat16(),
        "gates": random(rows, 2 * H).bfloat16(),
        "A": -torch.exp(random(H)),
        "dt_bias": random(H),
        "out": torch.empty(rows, H, V, dtype=torch.bfloat16, device=device),
    }


def _rows(shape: tuple[int, int, int, int], arguments: Inputs) -> DeltaInputs:
    H, G, V, K = shape
    q, k, v = arguments["mixed"].split([G * K, G * K, H * V], 1)
    a, b = arguments["gates"].chunk(2, 1)
    keys = (G, K)
    return DeltaInputs(
        q.unflatten(1, keys),
        k.unflatten(1, keys),
        v.unflatten(1, (H, V)),
        a,
        b,
        arguments["A"],
        arguments["dt_bias"],
    )


def _row_bytes(shape: tuple[int, int, int, int]) -> int:
    H, G, V, K = shape
    return 2 * (2 * G * K + 2 * H * V + 2 * H)


def _update(shape: tuple[int, int, int, int], device: torch.device, rows: int) -> Case:
    H, _, V, K = shape

    def inputs(size: int) -> Inputs:
        slots = np.arange(1, size + 1, dtype=np.int32)
        plan = SlotPlan.build(slots, slots, np.full_like(slots, -1), device)
        return {**_delta(shape, size, device, size), "plan": plan}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        operators.gated_delta_update(
            arguments["state"], _rows(shape, arguments), arguments["plan"], arguments["out"]
        )
        return arguments["out"], arguments["state"][1:]

    least = rows * (2 * H * V * K * 4 + _row_bytes(shape))
    return Case("gated_delta_update", f"qwen3-next, {rows} rows", rows, min(rows, 4), inputs, run, least)


def _prefill(shape: tuple[int, int, int, int], device: torch.device, tokens: int) -> Case:
    H, _, V, K = shape

    def inputs(size: int) -> Inputs:
        starts = np.arange(0, size, CHUNK, dtype=np.int32)
        zeros = np.zeros_like(starts)
        plan = ChunkPlan.build(
            chunk_start=starts,
            chunk_len=np.minimum(CHUNK, size - starts).astype(np.int32),
            chunk_sequence=zeros,
            chunk_rank=np.arange(len(starts), dtype=np.int32),
            chunk_track=zeros - 1,
            slot_in=np.array([-1], np.int32),
            slot_out=np.array([1], np.int32),
            piece_start=np.array([0, size], np.int32),
            chunk_size=CHUNK,
            device=device,
        )
        return {**_delta(shape, size, device, 1), "plan": plan}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        operators.gated_delta_prefill(
            arguments["state"], _rows(shape, arguments), arguments["plan"], arguments["out"]
        )
        return arguments["out"], arguments["state"][1:]

    return Case(
        "gated_delta_prefill",
        f"qwen3-next, {tokens} tokens in 1",
        tokens,
        min(tokens, 256),
        inputs,
        run,
        tokens * _row_bytes(shape) + H * V * K * 4,
        tokens * H * (2 * V * (2 * K + 2 * CHUNK) + 4 * CHUNK * K),
    )


def _delta_gate(shape: tuple[int, int, int, int], device: torch.device, rows: int) -> Case:
    """Return the case of the norm of each head and the gate, which is part of the mixer's projection."""
    H, G, V, K = shape
    width, before = H * V, 2 * G * K + H * V

    def inputs(size: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(0)
        projected = torch.randn(size, before + width + 2 * H, generator=generator, device=device).bfloat16()
        y = torch.randn(size, width, generator=generator, device=device).bfloat16()
        return {"y": y, "projected": projected, "weight": torch.ones(V, device=device).bfloat16()}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        gate = arguments["projected"][:, before : before + width]
        return (operators.gated_norm(arguments["y"], gate, arguments["weight"], 1e-6, H, True),)

    return Case(
        "gated_norm", f"qwen3-next, {rows} rows", rows, min(rows, 8), inputs, run, rows * width * 3 * 2
    )


def _route(name: str, experts: int, routing: Routing, device: torch.device, rows: int) -> Case:
    def inputs(size: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(0)
        # Logits differ by more than the rounding of a sigmoid, so that float32 and float64 agree.
        steps = torch.rand(size, experts, generator=generator, device=device).argsort(1)
        logits = (steps - experts / 2) / (experts / 8)
        corrected = routing.scores == "sigmoid"
        return {"logits": logits, "correction": torch.zeros(experts, device=device) if corrected else None}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        experts, weights = operators.route(arguments["logits"], routing, arguments["correction"])
        return experts, weights

    least = rows * (4 * experts + 8 * routing.top_k)
    return Case("route", f"{name}, {rows} rows", rows, min(rows, 64), inputs, run, least)


def _moe(name: str, sizes: tuple[int, int, int, int, bool], device: torch.device, rows: int) -> Case:
    d, inner, count, k, gated = sizes

    def inputs(size: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device).mul_(shape[-1] ** -0.5).bfloat16()

        x = random(size, d) * d**0.5
        logits = torch.randn(size, count, generator=generator, device=device)
        chosen, weights = route(logits, Routing(k, "softmax", renormalise=True))
        weights_of = {
            "gate_up": random(count, inner * (2 if gated else 1), d),
            "down": random(count, d, inner),
        }
        return {"x": x, "chosen": chosen, "weights": weights, **weights_of, "out": torch.empty_like(x)}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        activation = Activation.GATED_SILU if gated else Activation.SQUARED_RELU
        operators.moe(
            arguments["x"], arguments["chosen"], arguments["weights"], arguments["gate_up"],
            arguments["down"], activation, arguments["out"],
        )  # fmt: skip
        return (arguments["out"],)

    # With enough rows all experts are hit; with few rows each pair hits at most one expert of its own.
    hit = min(count, rows * k)
    expert_weights = d * inner * (3 if gated else 2)
    return Case(
        "moe",
        f"{name}, {rows} rows",
        rows,
        min(rows, 8),
        inputs,
        run,
        hit * expert_weights * 2 + rows * d * 4,
        2 * rows * k * expert_weights,
    )
