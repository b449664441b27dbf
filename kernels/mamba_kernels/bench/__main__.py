"""`python -m mamba_kernels.bench`: measure the limits of the machine, then each operator.

On a CUDA device the Triton kernels are measured. On a CPU the C++ kernels of single operators are measured
and compared with torch, and of all other operators the references. Progress goes to standard error, JSON to
standard output or `--out`.
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
    if problem := _problem(options, device):
        print(problem, file=sys.stderr)
        return 2
    try:
        backend = _backend(device)
    except UnknownKernels as why:
        print(why, file=sys.stderr)
        return why.exit_code
    with torch.inference_mode():
        report = _measure(options, backend, device)
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    else:
        print(text)
    return 1 if any("error" in result for result in report["results"]) else 0


def _problem(options: argparse.Namespace, device: torch.device) -> str:
    """Return why the options cannot be followed on this device; empty if they can."""
    if device.type == "cuda":
        return ""
    if options.device == "cuda":
        return "--device cuda: torch sees no CUDA device here"
    if options.tune:
        return "--tune: only a CUDA device has launches to tune, and torch sees none here"
    return ""


def _measure(options: argparse.Namespace, backend: Backend, device: torch.device) -> dict[str, Any]:
    """Measure the machine and all selected cases, and print one line for each."""
    machine = measure(device)
    print(
        f"{machine.device}: copies {machine.copy_bytes_per_second / 1e9:.0f} GB/s, multiplies "
        f"{machine.flops_per_second / 1e12:.1f} TFLOP/s",
        file=sys.stderr,
    )
    cases = _selected_cases(options, device)
    results = []
    entries: Entries = {}
    for number, case in enumerate(cases, 1):
        with _launch_trial(case, backend.operators, device, entries) if options.tune else nullcontext():
            results.append(measure_case(case, backend.operators, machine, device, peer=options.peer))
        print(f"[{number}/{len(cases)}] {_line(results[-1])}", file=sys.stderr)
    return {
        "machine": machine.to_json(),
        "kernels": backend.name,
        "results": results,
        **({"launch_table": _table(entries, machine.device)} if options.tune else {}),
    }


def _selected_cases(options: argparse.Namespace, device: torch.device) -> list[Case]:
    small = device.type == "cpu"
    models = options.model or ["nemotron-nano-9b-v2"]
    cases = [case for name in models for case in cases_of(name, device, small=small)]
    cases += moe_and_delta_cases(device, small=small)
    return [case for case in cases if not options.operator or case.operator in options.operator]


def _backend(device: torch.device) -> Backend:
    """Return the backend that a model would get, on a CPU with torch's number of threads.

    Raises UnknownKernels.
    """
    if device.type == "cuda":
        return Backend(TRITON, triton_operators())
    backend = backend_for(device, torch.bfloat16)
    if backend.library is not None:
        backend.library.set_threads(torch.get_num_threads())
    return backend


def cases_of(model: str, device: torch.device, *, small: bool) -> list[Case]:
    """Return the cases of all operators at the shapes of a model."""
    shape = MODEL_SHAPES[model]
    return [
        *scan_cases(model, shape, device, small=small),
        *attention_cases(model, shape, device, small=small),
        *row_cases(model, shape, device, small=small),
    ]


def _launch_trial(
    case: Case, operators: Operators, device: torch.device, entries: Entries
) -> AbstractContextManager[object]:
    """Tune the case, add its launch configurations to `entries`, and return a context in which they apply."""
    # Imported here since they need Triton, which a machine without a GPU may lack.
    from mamba_kernels.bench.measurement import WrongResult
    from mamba_kernels.bench.tuning import tune
    from mamba_kernels.triton_support.launch_table import LaunchTrial

    with suppress(WrongResult):  # The measurement reports it.
        entries |= tune(case, operators, device)
    return LaunchTrial(entries)


def _table(entries: Entries, device_name: str) -> dict[str, Any]:
    from mamba_kernels.bench.tuning import table

    return table(entries, device_name)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mamba_kernels.bench", description=__doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--model", action="append", choices=sorted(MODEL_SHAPES), help="may be repeated")
    parser.add_argument("--operator", action="append", help="measure this operator only; may be repeated")
    parser.add_argument("--peer", action="store_true", help="compare with mamba_ssm if it is installed")
    parser.add_argument("--tune", action="store_true", help="also find launch configurations for the table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file")
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
