"""One small valid call of every operator that has a kernel, and what its arguments say of each other."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mamba_kernels.activate import Function
from mamba_kernels.four_bit import Code
from mamba_kernels.fp8 import Fp8Matrix
from mamba_kernels.fp8.matrix import quantized
from mamba_kernels.moe import Routing
from mamba_kernels.sample import PenaltyCounts, SampleParameters
from mamba_kernels.sample.noise import seed_words
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_kernels.state_replay import RingPlan, delta_width, scan_width
from testmodels.chunks import CPU, Mixer, PiecePlan, chunk_plan, ints
from testmodels.delta import Delta
from testmodels.experts import ExpertBatch
from testmodels.four_bits import random_matrix
from testmodels.paged import SCALE, PagedBatch

WIDE = torch.float32
Paths = tuple[str, ...]


@dataclass(frozen=True)
class OperatorCall:
    """Paths are those of arguments and their fields, `inputs.B.1` is the second dimension of a field."""

    make: Callable[[], dict[str, Any]]
    """Arguments in their order, with the same numbers every time."""
    device: tuple[str, str]
    """The argument whose device is that of the call, and who is on another one if it is moved."""
    tells: dict[str, str | None] = field(default_factory=dict)
    """Extents that an argument chooses, and who contradicts it if one changes. None = nobody."""
    means_another: Paths = ()
    """Extents that nobody contradicts, with which the call is right and another one."""
    may_be_shorter: Paths = ()
    dense_from: dict[str, int] = field(default_factory=dict)
    """From which dimension on an argument is in one piece, where it is not the last one."""


def numbers(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape).cos()


def slots(*, noise: bool = True) -> SlotPlan:
    """Return a plan whose fields are tensors of the device."""
    plan = SlotPlan.build(ints([1, -1]), ints([1, 2]), ints([-1, 3]), CPU)
    words = plan.device_noise if noise else None
    return SlotPlan(CPU, plan.host_routes, plan.device_routes, resident_noise=words)


def chunks(rows: int = 6, device: torch.device = CPU) -> ChunkPlan:
    return chunk_plan([PiecePlan(0, rows - 2, -1, 1, {3: 2}), PiecePlan(8, 2, 3, 3, {})], 4, device=device)


def _four_bits() -> dict[str, Any]:
    matrix, _ = random_matrix(Code.INTEGER_ZEROS, 5, inputs=64, group=32, ordered=True)
    return {"x": numbers(3, 64), "matrix": matrix, "bias": numbers(5), "out": torch.zeros(3, 5)}


def _fp8_norm() -> dict[str, Any]:
    return {**_norm(), "dtype": WIDE, "groups": 1}


def _fp8_product() -> dict[str, Any]:
    rows, outputs = (quantized(numbers(count, 200), 2) for count in (3, 5))
    matrix = Fp8Matrix(outputs.numbers, outputs.scales)
    return {"rows": rows, "matrix": matrix, "bias": numbers(5), "dtype": WIDE}


def _norm() -> dict[str, Any]:
    return {"x": numbers(3, 10), "weight": numbers(10), "eps": 1e-5, "added": numbers(3, 10)}


def _gated() -> dict[str, Any]:
    return {"y": numbers(3, 10), "gate": numbers(3, 10), "weight": numbers(10), "eps": 1e-5, "groups": 2}


def _activation() -> dict[str, Any]:
    return {"x": numbers(3, 10), "function": Function.SILU, "factor": 2 * numbers(3, 10)}


def _router() -> dict[str, Any]:
    routing = Routing(2, "sigmoid", True, 2.5, groups=3, kept_groups=2)
    return {"logits": numbers(3, 6), "routing": routing, "correction": numbers(6)}


def _convolution(plan: SlotPlan | ChunkPlan, rows: int) -> dict[str, Any]:
    return {
        "x": numbers(rows, 18), "weight": numbers(4, 18), "bias": numbers(18), "window": numbers(4, 3, 18),
        "plan": plan,
    }  # fmt: skip


def _gated_convolution(plan: SlotPlan | ChunkPlan, rows: int) -> dict[str, Any]:
    return {**_convolution(plan, rows), "x": numbers(rows, 54)}


def _scan(plan: SlotPlan | ChunkPlan, rows: int) -> dict[str, Any]:
    inputs = Mixer(H=4, P=6, N=8, G=2, T=rows, dtype=WIDE).inputs((0.0, 1e9))
    return {"state": numbers(4, 4, 6, 8), "inputs": inputs, "plan": plan, "out": numbers(rows, 4, 6)}


def _delta(plan: SlotPlan | ChunkPlan, rows: int) -> dict[str, Any]:
    inputs = Delta(H=4, G=2, V=6, K=8, T=rows, dtype=WIDE).inputs
    return {"state": numbers(4, 4, 6, 8), "inputs": inputs, "plan": plan, "out": numbers(rows, 4, 6)}


def _lanes() -> RingPlan:
    """Return lanes of two rows: one writes its state, the other leaves its input."""
    rows = np.array([[2, 0], [2, 1], [1, 0]], np.int32)
    return RingPlan(CPU, rows, torch.from_numpy(rows))


def _scan_replay() -> dict[str, Any]:
    given = _scan(slots(), 2)
    out = given.pop("out")
    return {**given, "lanes": _lanes(), "ring": numbers(3, 3, scan_width(4, 6, 2, 8)), "out": out}


def _delta_replay() -> dict[str, Any]:
    given = _delta(slots(), 2)
    out = given.pop("out")
    return {**given, "lanes": _lanes(), "ring": numbers(3, 3, delta_width(4, 6, 2, 8)), "out": out}


def _write() -> dict[str, Any]:
    rows, at = numbers(3, 2, 6), torch.arange(3)
    return {"kv": numbers(4, 2, 4, 2, 6), "key": rows, "value": 2 * rows, "page": at + 1, "offset": at}


def _rope() -> dict[str, Any]:
    return {"x": numbers(3, 2, 6), "cos": numbers(3, 2), "sin": numbers(3, 2)}


def _attention() -> dict[str, Any]:
    batch = PagedBatch([1, 1, 3], [5, 9, 4], heads=4, kv_heads=2, width=16, dtype=WIDE)
    kv = batch.kv.nan_to_num(nan=0.0)
    plan, query = batch.plan(), batch.query
    return {"query": query, "kv": kv, "scale": SCALE, "plan": plan, "out": numbers(*query.shape)}


def _copy() -> dict[str, Any]:
    slabs = torch.arange(240).to(torch.uint8).view(5, 48)
    return {"source": slabs, "target": slabs + 7, "routes": torch.tensor([[1, 4, -1], [3, 2, 1]])}


def _experts() -> dict[str, Any]:
    b = ExpertBatch(3, E=3, k=2, d=8, f=4, shared_f=6, dtype=WIDE)
    return {
        "hidden": b.hidden, "experts": b.experts, "weights": b.weights, "gate_up": b.gate_up, "down": b.down,
        "activation": b.activation, "out": numbers(3, 8), "shared": b.shared,
    }  # fmt: skip


def _choice() -> dict[str, Any]:
    column = {
        "temperature": 0.8,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition": 1.2,
        "presence": 0.1,
        "frequency": 0.1,
    }
    parameters = SampleParameters(
        **{name: torch.full((2,), value) for name, value in column.items()},
        top_k=torch.tensor([0, 3], dtype=torch.int32),
        counts_row=torch.tensor([-1, 1], dtype=torch.int32),
        words=torch.tensor([seed_words(1), seed_words(2)], dtype=torch.int32),
    )
    output = torch.arange(18, dtype=torch.int32).view(2, 9) % 3
    positions = torch.arange(2, dtype=torch.int32)
    return {
        "logits": numbers(2, 9), "parameters": parameters, "counts": PenaltyCounts(output, output > 1),
        "positions": positions,
    }  # fmt: skip


_OF_A_CONVOLUTION: dict[str, str | None] = {"x.1": "weight", "weight.0": "window", "window.0": None}
_OF_A_SCAN: dict[str, str | None] = {
    "state.0": None, "state.1": "x", "state.2": "x", "state.3": "B", "inputs.x.0": "dt", "inputs.B.1": "B|C",
}  # fmt: skip
_OF_THE_DELTA_RULE: dict[str, str | None] = {
    "state.0": None, "state.1": "v", "state.2": "v", "state.3": "k", "inputs.v.0": "k", "inputs.k.1": "k|q",
}  # fmt: skip

CALLS = {
    "rms_norm": OperatorCall(_norm, ("x", "weight"), {"x.0": "added", "x.1": "weight"}),
    "fp8_norm": OperatorCall(_fp8_norm, ("x", "weight"), {"x.0": "added", "x.1": "weight"}),
    "fp8_product": OperatorCall(
        _fp8_product, ("rows.numbers", "numbers"),
        {"rows.numbers.0": "scales", "matrix.numbers.0": "scales"},
        dense_from={"rows.numbers": 0, "rows.scales": 0, "matrix.scales": 0},
    ),
    "gated_norm": OperatorCall(_gated, ("y", "gate"), {"y.0": "gate", "y.1": "gate"}),
    "activate": OperatorCall(_activation, ("x", "factor"), {"x.0": "factor", "x.1": "factor"}),
    "route": OperatorCall(
        _router, ("logits", "correction"), {"logits.0": None, "logits.1": "groups"}
    ),
    "conv1d_update": OperatorCall(
        lambda: _convolution(slots(noise=False), 2), ("x", "weight"), {**_OF_A_CONVOLUTION, "x.0": "routes"},
        dense_from={"weight": 0},
    ),
    "conv1d_prefill": OperatorCall(
        lambda: _convolution(chunks(), 6), ("x", "x"), _OF_A_CONVOLUTION, dense_from={"weight": 0}
    ),
    "short_conv_update": OperatorCall(
        lambda: _gated_convolution(slots(noise=False), 2), ("x", "weight"),
        {**_OF_A_CONVOLUTION, "x.0": "routes", "x.1": "x"}, dense_from={"weight": 0},
    ),
    "short_conv_prefill": OperatorCall(
        lambda: _gated_convolution(chunks(), 6), ("x", "x"), {**_OF_A_CONVOLUTION, "x.1": "x"},
        dense_from={"weight": 0},
    ),
    "state_update": OperatorCall(lambda: _scan(slots(), 2), ("state", "x"), _OF_A_SCAN),
    "state_replay": OperatorCall(
        _scan_replay, ("state", "x"), {**_OF_A_SCAN, "ring.0": None, "ring.1": None},
    ),
    "gated_delta_replay": OperatorCall(
        _delta_replay, ("state", "v"),
        {**_OF_THE_DELTA_RULE, "ring.0": None, "ring.1": None},
    ),
    "ssd_prefill": OperatorCall(lambda: _scan(chunks(), 6), ("state", "x"), _OF_A_SCAN),
    "gated_delta_update": OperatorCall(lambda: _delta(slots(), 2), ("state", "v"), _OF_THE_DELTA_RULE),
    "gated_delta_prefill": OperatorCall(lambda: _delta(chunks(), 6), ("state", "v"), _OF_THE_DELTA_RULE),
    "kv_write": OperatorCall(
        _write, ("kv", "key"),
        {"kv.0": None, "kv.2": None, "kv.3": "key", "kv.4": "key", "key.0": "value"},
    ),
    "rope": OperatorCall(
        _rope, ("x", "cos"), {"x.0": "cos", "x.1": None, "x.2": None, "cos.1": "sin"},
        dense_from={"cos": 0, "sin": 0}, may_be_shorter=("x.2",),
    ),
    "paged_attention": OperatorCall(
        _attention, ("kv", "query"),
        {
            "kv.0": None, "kv.2": None, "kv.3": "query", "kv.4": "query", "query.1": "out",
            "plan.page_table.0": None, "plan.page_table.1": None, "plan.context_len.0": "table_row",
        },
        means_another=("kv.2",), may_be_shorter=("kv.3",),
    ),
    "four_bit_product": OperatorCall(
        _four_bits, ("x", "codes"),
        {"x.0": "out", "matrix.codes.0": "scales", "matrix.codes.1": "x"},
        dense_from={f"matrix.{part}": 0 for part in ("codes", "scales", "zeros", "order")},
    ),
    "slot_copy": OperatorCall(
        _copy, ("source", "target"),
        {"source.0": None, "source.1": "target", "target.0": None, "routes.1": None},
    ),
    "moe": OperatorCall(
        _experts, ("hidden", "experts"),
        {
            "hidden.0": "experts", "hidden.1": "gate_up", "experts.1": "weights", "down.0": "gate_up",
            "down.1": "out", "down.2": "gate_up", "shared.down.1": "gate_up",
        },
        dense_from={"experts": 0, "weights": 0, "shared.logit": 1},
    ),
    "sample": OperatorCall(
        _choice, ("logits", "temperature"),
        {"logits.0": "temperature", "logits.1": "output", "counts.output.0": "prompt"},
        dense_from={"parameters.words": 0, "counts.output": 0, "counts.prompt": 0},
    ),
}  # fmt: skip
"""By the operator's name."""
