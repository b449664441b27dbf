"""The least that a call of an operator moves and computes, by its arguments."""

import inspect
from typing import Any

import torch
from benchmarks.gpu.operator_calls import OperatorCall

from mamba_kernels.dispatch.operators import REFERENCE


def least_bytes(call: OperatorCall) -> int | None:
    """Return bytes read and written at least: each operand once. None where that is not known here."""
    moved = _least_bytes(call.operator, _arguments(call))
    return None if moved is None else int(moved)


def _least_bytes(operator: str, given: dict[str, Any]) -> Any:
    match operator:
        case "state_update" | "gated_delta_update":
            plan, inputs, state = given["plan"], given["inputs"], given["state"]
            tracked = sum(slot >= 0 for slot in plan.track_slots)
            rows = len(plan.target_slots)
            return (2 * rows + tracked) * _row(state) + _rows_of(inputs) + _size(given["out"])
        case "state_replay" | "gated_delta_replay":
            plan, inputs, state = given["plan"], given["inputs"], given["state"]
            _, waiting, writes = given["lanes"].host
            tracked = sum(slot >= 0 for slot in plan.track_slots)
            states = len(waiting) + int(writes.sum()) + tracked
            kept = int(waiting.sum()) + len(waiting) - int(writes.sum())
            ring = kept * given["ring"].shape[2] * given["ring"].element_size()
            return states * _row(state) + ring + _rows_of(inputs) + _size(given["out"])
        case "ssd_prefill" | "gated_delta_prefill":
            plan, inputs, state = given["plan"], given["inputs"], given["state"]
            resumed = sum(slot >= 0 for slot in plan.slots.source_slots)
            written = len(plan.slots.target_slots) + len(plan.tracked_slot_list)
            return (resumed + written) * _row(state) + _rows_of(inputs) + _size(given["out"])
        case "conv1d_update":
            return 2 * _size(given["x"]) + 2 * len(given["plan"].target_slots) * _row(given["window"])
        case "short_conv_update":
            rows = len(given["plan"].target_slots)
            return _size(given["x"]) * 4 // 3 + 2 * rows * _row(given["window"])
        case "short_conv_prefill":
            return _size(given["x"]) * 4 // 3
        case "conv1d_prefill":
            return 2 * _size(given["x"])
        case "gated_norm":
            return _size(given["y"]) + 2 * _size(given["gate"])
        case "rms_norm":
            added = given.get("added")
            x = _size(given["x"])
            return x + (x + _size(added) if added is not None else 0) + given["x"].numel() * 2
        case "kv_write":
            return 2 * (_size(given["key"]) + _size(given["value"]))
        case "rope":
            return 2 * _size(given["x"])
        case "paged_attention":
            plan, kv = given["plan"], given["kv"]
            # The plan of the reference knows the contexts on the host.
            contexts = int(plan.context_len.sum().item())
            return contexts * 2 * kv.shape[3] * kv.shape[4] * kv.element_size() + 2 * _size(given["query"])
    return None


def operations(call: OperatorCall) -> int | None:
    """Return multiplications and additions of matrix products at least; None where they do not bind."""
    inputs = _arguments(call)
    if call.operator == "ssd_prefill":
        tokens, H, P = inputs["inputs"].x.shape
        G, N = inputs["inputs"].B.shape[1:]
        chunk = 64
        return int(tokens * (2 * chunk * (G * N + H * P) + 4 * H * P * N))
    return None


def _arguments(call: OperatorCall) -> dict[str, Any]:
    """Return the arguments by the reference's names."""
    signature = inspect.signature(getattr(REFERENCE, call.operator))
    return dict(signature.bind(*call.arguments, **call.named).arguments)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _row(cache: torch.Tensor) -> int:
    return cache[0].numel() * cache.element_size()


def _rows_of(inputs: Any) -> int:
    """Return bytes of a scan's or a delta rule's rows."""
    tensors = (getattr(inputs, name) for name in type(inputs).__dataclass_fields__)
    return sum(_size(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.dim() > 1)
