"""A measurement of stages whose cases are told what to do, run as `python -m benchmarks.gpu` is.

As a program: `staged_program.py DIR SECONDS` runs the stages, `staged_program.py DIR child STAGE` is the
child of one. `DIR/plan.json` has the cases of each stage: [name, what it does] pairs. Every case first adds
its name to `DIR/begun`.
"""

import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu.case import Absent, Case, Job, Numbers, Wrong
from benchmarks.gpu.child import die_with_parent, serve
from benchmarks.gpu.stage_list import Stage
from benchmarks.gpu.supervisor import Options, Supervisor

HANGING_SECONDS = 0.5
MEMORY = 1 << 30


def act(action: str) -> Numbers:
    """Do what a case is told to."""
    match action:
        case "raise":
            raise RuntimeError("this case raises")
        case "wrong":
            raise Wrong("this case is wrong", {"far": 1.0, "leave_out": ["moe"]})
        case "absent":
            raise Absent("there is no such thing")
        case "hang" | "wait":
            threading.Event().wait()
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "exhaust":
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, hard))
            bytearray(4 * MEMORY)
    return {"done": action, "headline": {"last": action}}


def main(directory: Path, *arguments: str) -> int:
    plan = json.loads((directory / "plan.json").read_text())
    if arguments[0] == "child":
        return child(directory, plan[arguments[1]])
    stages = [Stage(name, 10.0, f"{name}.jsonl") for name in plan]
    options = Options(directory / "out", "cpu", small=True, seconds=float(arguments[0]))

    def command(stage: Stage) -> list[str]:
        return [sys.executable, __file__, str(directory), "child", stage.name]

    return Supervisor(options, stages, command).run()


def child(directory: Path, planned: list[tuple[str, str]]) -> int:
    die_with_parent()
    if planned and planned[0][1] == "never starts":
        return 9

    def cases(_: Job) -> Iterator[Case]:
        for name, action in planned:
            yield Case(name, lambda name=name, action=action: begun(name, action), _limit(action))

    def begun(name: str, action: str) -> Numbers:
        with (directory / "begun").open("a") as file:
            file.write(name + "\n")
        return act(action)

    def facts(job: Job) -> Numbers:
        if planned and planned[0][1] == "no device":
            raise RuntimeError("no CUDA device is there")
        return {"card": "none", "left_out": list(job.left_out)}

    return serve(cases, facts, lambda _: True)


def _limit(action: str) -> float | None:
    return HANGING_SECONDS if action == "hang" else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
