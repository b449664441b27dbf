"""The process of one stage: runs its cases one by one and reports each to the supervisor.

Messages are JSON lines. On standard input come the job, then one line for each report that is on disk; the
next case begins only then. Reports leave by what was standard output; whatever a case prints goes to the log.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any

from benchmarks.gpu.case import Absent, Case, Job, Wrong

LOST = 3
"""Exit code of a child whose device is lost."""
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def main(stage: str) -> int:
    """Serve the cases of `stage`, which a module of that name in `benchmarks.gpu.stages` has."""
    die_with_parent()
    module = importlib.import_module(f"benchmarks.gpu.stages.{stage}")

    def cases(job: Job) -> Iterator[Case]:
        # Read when a model is built: the reference computes what an earlier stage found wrong.
        os.environ["MAMBASERVE_KERNELS"] = ",".join(["triton", *(f"-{name}" for name in job.left_out)])
        yield from module.cases(job)

    return serve(cases, module.facts)


def serve(
    cases: Callable[[Job], Iterator[Case]],
    facts: Callable[[Job], dict[str, Any]],
    device_works: Callable[[Job], bool] | None = None,
) -> int:
    """Run the cases that no earlier child tried. Returns the exit code.

    `facts`: card and versions; `device_works`: asked after a case that raised, the default asks torch.
    """
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = _job(sys.stdin.readline())
    works = device_works or _device_works
    try:
        opened = {"facts": facts(job)}
    except Exception as why:
        traceback.print_exc()
        _report(reports, {"stopped": f"the device cannot be opened: {type(why).__name__}: {why}"[:2000]})
        return 1
    if not _report(reports, opened):
        return 1
    for case in cases(job):
        if case.name in job.tried:
            continue
        reports.write(json.dumps({"begin": case.name, "seconds": case.seconds}) + "\n")
        began = time.monotonic()
        end = outcome_of(case)
        end |= {"end": case.name, "took": round(time.monotonic() - began, 3)}
        lost = end["outcome"] == "error" and not works(job)
        if lost:
            end["outcome"] = "device lost"
        if not _report(reports, end):
            return 1
        if lost:
            # Another try of the device in this process would fail as well, and so may the end of the process.
            os._exit(LOST)
    _report(reports, {"finished": True})
    return 0


def outcome_of(case: Case) -> dict[str, Any]:
    """Run a case: its outcome (ok, absent, wrong or error), with numbers or the error."""
    try:
        return {"outcome": "ok", "numbers": case.run()}
    except Absent as why:
        return {"outcome": "absent", "error": str(why)}
    except Wrong as why:
        return {"outcome": "wrong", "error": str(why), "numbers": why.numbers}
    except Exception as why:
        traceback.print_exc()
        text = f"{type(why).__name__}: {why}"
        # The frames of the error hold the tensors of the case.
        why.__traceback__ = None
        gc.collect()
        return {"outcome": "error", "error": text[:2000]}


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, however it ends."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _report(reports: IO[str], message: dict[str, Any]) -> bool:
    """Send a report and wait until it is on disk. False where nobody listens any more."""
    try:
        reports.write(json.dumps(message) + "\n")
    except BrokenPipeError:
        return False
    return bool(sys.stdin.readline())


def _job(line: str) -> Job:
    job = json.loads(line)
    return Job(**{**job, "tried": frozenset(job["tried"]), "left_out": tuple(job["left_out"])})


def _device_works(job: Job) -> bool:
    if job.device != "cuda":
        return True
    import torch

    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.zeros(1, device="cuda").item()
    except Exception:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
