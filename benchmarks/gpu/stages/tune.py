"""A few other launch configurations of the kernels that matter most: entries for `launch_table.json`."""

from collections.abc import Iterator
from functools import partial

import torch
from benchmarks.gpu.case import Case, Job, Numbers
from benchmarks.gpu.device_facts import card, facts
from benchmarks.gpu.models import NANO
from benchmarks.gpu.stages.kernels import RecordedStep, decodes, prompts
from benchmarks.gpu.step_inputs import StepShape
from benchmarks.gpu.timing import seconds_of

from mamba_kernels.bench.tuning import MAX_TIME_RATIO, Entries, candidates, table
from mamba_kernels.dispatch.operators import triton_operators
from mamba_kernels.triton_support.launch_table import LaunchTrial

__all__ = ["cases", "facts"]
MOST_CANDIDATES = 12
"""For each kernel, those that differ from the default in one thing first."""
CASE_SECONDS = 60.0


def cases(job: Job) -> Iterator[Case]:
    """Yield a case for each step and operator, the scan first."""
    device = torch.device(job.device)
    jobs: list[tuple[str, str, StepShape, tuple[str, ...]]]
    if job.small:
        jobs = [(NANO, "2 decodes", decodes(2, 20), ("state_update",))]
    else:
        jobs = [
            (NANO, "8192 tokens", prompts(1, 8192), ("ssd_prefill", "conv1d_prefill")),
            (NANO, "256 decodes", decodes(256, 1024), ("state_update", "conv1d_update", "paged_attention")),
            (NANO, "1 decode", decodes(1, 1024), ("state_update",)),
            ("granite-4.0-h-tiny", "8192 tokens", prompts(1, 8192), ("ssd_prefill",)),
            (NANO, "2048 tokens", prompts(1, 2048), ("paged_attention",)),
        ]
    for model, words, shape, operators in jobs:
        step = RecordedStep(model, shape, "float32", device, small=job.small)
        for operator in operators:
            if operator not in job.left_out:
                name = f"tuning: {model}, {words}, {operator}"
                yield Case(name, partial(_tuned, step, operator, device, job.small), CASE_SECONDS)
        step.close()


def _tuned(step: RecordedStep, operator: str, device: torch.device, small: bool) -> Numbers:
    calls, kernels = step.calls(operator), triton_operators()
    runs = [partial(call.run, kernels) for call in calls]
    tried: list[Numbers] = []
    kept: Entries = {}
    with torch.inference_mode():
        with LaunchTrial({}) as trial:
            best = default = float(seconds_of(runs, device)["seconds"])
        for key, launch in trial.defaults.items():
            for candidate in list(candidates(launch))[: 1 if small else MOST_CANDIDATES]:
                try:
                    with LaunchTrial({**kept, key: candidate}):
                        seconds = float(seconds_of(runs, device)["seconds"])
                except Exception as why:
                    tried.append(
                        {"kernel": key, "launch": candidate, "error": f"{type(why).__name__}: {why}"[:200]}
                    )
                    continue
                tried.append({"kernel": key, "launch": candidate, "seconds": seconds})
                if seconds < MAX_TIME_RATIO * best:
                    best, kept[key] = seconds, candidate
    return {
        "default_seconds": default,
        "best_seconds": best,
        "tried": tried,
        "launch_table": table(kept, card(device.type)),
    }
