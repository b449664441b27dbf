"""`python -m mamba_kernels.bench`: the machine's limits first, then each operator beside them.

On a CUDA device Triton's kernels are measured; on a CPU the C++ ones that are an operator by themselves,
beside torch's time, and the references of all others. Progress goes to standard error, JSON to standard
output or `--out`.
"""

import argparse
import json
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from mamba_kernels.bench.attention_cases import attention_cases
from mamba_kernels.bench.case import Case
from mamba_kernels.bench.machine import measure
from mamba_kernels.bench.measurement import measure_case
from mamba_kernels.bench.model_shape import MODEL_SHAPES
from mamba_kernels.bench.moe_and_delta_cases import moe_and_delta_cases
from mamba_kernels.bench.row_cases import row_cases
from mamba_kernels.bench.scan_cases import scan_cases
from mamba_kernels.dispatch.backend import TRITON, Backend, backend_for
from mamba_kernels.dispatch.operators import Operators, triton_operators
from mamba_kernels.kernel_choice import UnknownKernels

Entries = dict[tuple[str, str], dict[str, Any]]
"""Launch configurations by kernel and shape."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() and options.device != "cpu" else "cpu")
    if options.device == "cuda" and device.type != "cuda":
        print("--device cuda: torch sees no CUDA device here", file=sys.stderr)
        return 2
    if options.tune and device.type != "cuda":
        print("--tune: only a CUDA device has launches to tune, and torch sees none here", file=sys.stderr)
        return 2
    try:
        backend = _backend(device)
    except UnknownKernels as why:
        print(why, file=sys.stderr)
        return why.exit_code
    operators = backend.operators
    with torch.inference_mode():
        machine = measure(device)
        print(
            f"{machine.device}: copies {machine.copy_bytes_per_second / 1e9:.0f} GB/s, multiplies "
            f"{machine.flops_per_second / 1e12:.1f} TFLOP/s",
            file=sys.stderr,
        )
        cases = [
            case
            for name in options.model or ["nemotron-nano-9b-v2"]
            for case in cases_of(name, device, small=device.type == "cpu")
        ]
        cases += moe_and_delta_cases(device, small=device.type == "cpu")
        cases = [case for case in cases if not options.operator or case.operator in options.operator]
        results = []
        entries: Entries = {}
        for number, case in enumerate(cases, 1):
            with _tuned(case, operators, device, entries) if options.tune else nullcontext():
                results.append(measure_case(case, operators, machine, device, peer=options.peer))
            print(f"[{number}/{len(cases)}] {_line(results[-1])}", file=sys.stderr)
    text = json.dumps(
        {
            "machine": machine.to_json(),
            "kernels": backend.name,
            "results": results,
            **({"launch_table": _table(entries, machine.device)} if options.tune else {}),
        },
        indent=1,
    )
    if options.out:
        options.out.write_text(text + "\n")
    else:
        print(text)
    return 1 if any("error" in result for result in results) else 0


def _backend(device: torch.device) -> Backend:
    """On a CPU what a model would get, with as many threads as torch has. Raises UnknownKernels."""
    if device.type == "cuda":
        return Backend(TRITON, triton_operators())
    backend = backend_for(device, torch.bfloat16)
    if backend.library is not None:
        backend.library.set_threads(torch.get_num_threads())
    return backend


def cases_of(model: str, device: torch.device, *, small: bool) -> list[Case]:
    """All operators at the shapes of a model."""
    shape = MODEL_SHAPES[model]
    return [
        *scan_cases(model, shape, device, small=small),
        *attention_cases(model, shape, device, small=small),
        *row_cases(model, shape, device, small=small),
    ]


def _tuned(
    case: Case, operators: Operators, device: torch.device, entries: Entries
) -> AbstractContextManager[object]:
    """Adds what is found for the case to `entries`, which are in force while it is measured."""
    # Not above: they need Triton, which a machine without a GPU may lack.
    from mamba_kernels.bench.measurement import WrongResult
    from mamba_kernels.bench.tuning import tune
    from mamba_kernels.triton_support.launch_table import LaunchTrial

    with suppress(WrongResult):  # The measurement tells it.
        entries |= tune(case, operators, device)
    return LaunchTrial(entries)


def _table(entries: Entries, device_name: str) -> dict[str, Any]:
    from mamba_kernels.bench.tuning import table

    return table(entries, device_name)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mamba_kernels.bench", description=__doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--model", action="append", choices=sorted(MODEL_SHAPES), help="may be repeated")
    parser.add_argument("--operator", action="append", help="only this one; may be repeated")
    parser.add_argument("--peer", action="store_true", help="mamba_ssm beside it, where it is installed")
    parser.add_argument("--tune", action="store_true", help="also find launch configurations, for the table")
    parser.add_argument("--out", type=Path, help="file for the JSON")
    return parser.parse_args(arguments)


def _line(result: dict[str, Any]) -> str:
    head = f"{result['operator']} ({result['shape']}): "
    if "error" in result:
        return head + f"WRONG, not timed: {result['error']}"
    text = head + f"{result['seconds'] * 1e6:.1f} us, {result['share_of_copy']:.2f} of copy"
    if "share_of_product" in result:
        text += f", {result['share_of_product']:.2f} of product"
    if "times_torch" in result:
        text += f", {result['times_torch']:.2f} times torch"
    if "times_peer" in result:
        text += f", {result['times_peer']:.2f} times its peer"
    return text + (f" (peer: {result['peer_error']})" if "peer_error" in result else "")


if __name__ == "__main__":
    sys.exit(main())
