"""Compiles and launches, in a process of its own, every kernel that a step of one model launches.

`python -m benchmarks.gpu.compile_one MODEL STEP STATE_DTYPE DEVICE SMALL` prints one line of JSON.
"""

import json
import sys
import time
from typing import Any

import torch
from benchmarks.gpu.captured_step import decode_step, sampling_rows
from benchmarks.gpu.child import die_with_parent
from benchmarks.gpu.measured_model import MeasuredModel, measured_model
from benchmarks.gpu.operator_calls import Operator, OperatorCall, intercepted
from benchmarks.gpu.stages.correct import shapes

from mamba_kernels.dispatch.operators import REFERENCE, triton_operators
from mamba_kernels.triton_support import KernelCall

SAMPLED_ROWS = 4


def main(name: str, step: str, state_dtype: str, device_name: str, small: str) -> int:
    """Run the step; an operator whose kernel fails is computed by its reference and named."""
    die_with_parent()
    device, began = torch.device(device_name), time.monotonic()
    failed: dict[str, str] = {}
    launched = _launched_kernels()

    def tolerant(call: OperatorCall, operator: Operator) -> Any:
        if call.operator not in failed:
            try:
                result = operator(*call.arguments, **call.named)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                return result
            except Exception as why:
                failed[call.operator] = f"{type(why).__name__}: {why}"[:500]
        return call.run(REFERENCE)

    shape = shapes(small=small == "1")[step]
    model = measured_model(
        name, [shape], intercepted(triton_operators(), tolerant), device, small=small == "1", blocks=1,
        state_dtype=state_dtype,
    )  # fmt: skip
    with torch.inference_mode():
        model.step(shape)
        if step == "decodes":
            try:
                _sample(model, device)
            except Exception as why:
                failed["sample"] = f"{type(why).__name__}: {why}"[:500]
    print(
        json.dumps(
            {
                "seconds": round(time.monotonic() - began, 2),
                "failed": failed,
                "kernels": _resources(launched, device),
            }
        )
    )
    return 0


def _sample(model: MeasuredModel, device: torch.device) -> None:
    """Choose tokens with all kinds of parameters."""
    table = torch.zeros(SAMPLED_ROWS + 1, 8, dtype=torch.int32, device=device)
    step, sampler = decode_step(model.model, model.arena, table, SAMPLED_ROWS)
    step.warm_up()
    step.choose(sampling_rows(sampler, SAMPLED_ROWS))
    if device.type == "cuda":
        torch.cuda.synchronize()


def _launched_kernels() -> dict[str, Any]:
    """Note every kernel that is launched from now on, by name."""
    seen: dict[str, Any] = {}
    run = KernelCall.run

    def noted(call: KernelCall) -> None:
        seen[call.kernel.__name__] = call.kernel
        run(call)

    KernelCall.run = noted  # type: ignore[method-assign, assignment]
    return seen


def _resources(kernels: dict[str, Any], device: torch.device) -> list[dict[str, Any]]:
    """Return registers, spilled registers and shared memory of each variant that was compiled."""
    rows: list[dict[str, Any]] = []
    for name, kernel in sorted(kernels.items()):
        caches = getattr(kernel, "device_caches", None)
        if device.type == "cuda" and caches:
            variants = caches[torch.cuda.current_device()][0].values()
            rows.extend({"kernel": name, **_resources_of(variant)} for variant in variants)
        else:
            rows.append({"kernel": name})
    return rows


def _resources_of(variant: Any) -> dict[str, Any]:
    metadata = variant.metadata
    return {
        "registers": getattr(variant, "n_regs", None),
        "spills": getattr(variant, "n_spills", None),
        "shared": getattr(metadata, "shared", None),
        "warps": getattr(metadata, "num_warps", None),
        "stages": getattr(metadata, "num_stages", None),
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
