"""Every kernel of every model is compiled, in parallel, and launched once on small inputs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.gpu.case import Case, Job, Numbers, Wrong
from benchmarks.gpu.device_facts import facts
from benchmarks.gpu.models import FAMILIES, NANO

__all__ = ["cases", "facts"]
CASE_SECONDS = 60.0
"""All processes run at once: the first case waits for as long as the stage may take."""


def cases(job: Job) -> Iterator[Case]:
    """Yield a case for each model, kind of step, and type of states."""
    jobs = [(name, step, "float32") for name in FAMILIES for step in ("decodes", "prompts")]
    jobs += [(NANO, step, "float16") for step in ("decodes", "prompts")]
    if job.small:
        jobs = [(NANO, "decodes", "float16"), ("qwen3-next-80b-a3b", "prompts", "float32")]
    processes = [_start(job, *each) for each in jobs if _name(*each) not in job.tried]
    names = [_name(*each) for each in jobs if _name(*each) not in job.tried]
    for name, process in zip(names, processes, strict=True):
        yield Case(name, partial(_compiled, process), CASE_SECONDS)


def _name(model: str, step: str, state_dtype: str) -> str:
    return f"{model}, {step}, states in {state_dtype}"


def _start(job: Job, *asked: str) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.compile_one",
        *asked,
        job.device,
        "1" if job.small else "0",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _compiled(process: "subprocess.Popen[str]") -> Numbers:
    text, _ = process.communicate()
    if process.returncode:
        raise ChildProcessError(
            f"the process that compiled ended with {process.returncode}; the log has more"
        )
    numbers: Numbers = json.loads(text.splitlines()[-1])
    spills = [kernel["kernel"] for kernel in numbers["kernels"] if kernel.get("spills")]
    numbers["spilling"] = spills
    if failed := numbers["failed"]:
        raise Wrong(f"{', '.join(failed)} cannot be launched", {**numbers, "leave_out": sorted(failed)})
    return numbers
