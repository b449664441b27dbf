"""Run stages in child processes and write down their reports.

Free of torch, so that no device, kernel or library can end this process.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.gpu.stage_list import CASE_SECONDS, LOG, SECONDS, START_SECONDS, SUMMARY, Stage
from benchmarks.gpu.whole_file import LinesFile, write_whole

FAILURES = ("wrong", "error", "device lost", "hung", "died")
"""Outcomes of a case that failed. The others are ok, absent, and cut where the stage's time ended."""
MOST_RESTARTS = 12
"""Children of one stage after its first: each stands for a case that took its process down."""


class Stopped(Exception):
    """Somebody asked for the end (SIGTERM or SIGINT)."""


@dataclass(slots=True)
class StageResult:
    """End of a stage, as the summary shows it."""

    name: str
    state: str = "not run"
    """done, failed (a case failed, or no child came to its end), cut (time ended), or not run"""
    seconds: float = 0.0
    cases: int = 0
    failed: int = 0
    error: str = ""
    """The last error."""
    headline: dict[str, Any] = field(default_factory=dict)

    def take(self, line: dict[str, Any]) -> None:
        """Count a case's line."""
        self.cases += 1
        if line["outcome"] in FAILURES:
            self.failed += 1
            self.error = f"{line['case']}: {line.get('error') or line['outcome']}"
        self.headline |= (line.get("numbers") or {}).pop("headline", {})

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the summary."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one run."""

    out: Path
    device: str
    small: bool
    seconds: float = SECONDS
    patience: float = 1.0
    """Factor on the limits of cases and of the start of a child, for slow machines."""


@dataclass(slots=True)
class _Ending:
    """Why a child is gone."""

    finished: bool = False
    running: str | None = None
    """The case that it was in."""
    hung: bool = False
    code: int | None = None
    out_of_time: bool = False


class Supervisor:
    """Runs the given stages one after the other; `command` names the program of a stage's child."""

    def __init__(
        self, options: Options, stages: Sequence[Stage], command: Callable[[Stage], list[str]]
    ) -> None:
        self._options, self._stages, self._command = options, stages, command
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / LOG).write_text("")
        self._results = {stage.name: StageResult(stage.name) for stage in stages}
        self._files = {stage.file: LinesFile(options.out / stage.file) for stage in stages}
        self._facts: dict[str, Any] = {}
        self._left_out: set[str] = set()
        self._began = time.monotonic()
        self._child: subprocess.Popen[str] | None = None

    def run(self) -> int:
        """Run all stages. Returns the number of stages that are not done."""
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGINT, _stop)
        saved = 0.0
        try:
            for stage in self._stages:
                self._files[stage.file].forget(stage.name)
            self._summarize()
            for number, stage in enumerate(self._stages):
                left = self._options.seconds - (time.monotonic() - self._began)
                share = stage.seconds * self._options.seconds / sum(each.seconds for each in self._stages)
                last = number == len(self._stages) - 1
                limit = left if last else min(left, share + saved)
                began = time.monotonic()
                self._say(f"{stage.name}: up to {limit:.0f} s")
                self._run_stage(stage, began + limit)
                took = time.monotonic() - began
                saved = max(0.0, limit - took)
                result = self._results[stage.name]
                result.seconds = round(took, 1)
                self._say(
                    f"{stage.name}: {result.state}, {result.failed} of {result.cases} failed, {took:.0f} s"
                    + (f"; {result.error}" if result.error else "")
                )
                self._summarize()
        except Stopped:
            self._say("stopped")
        finally:
            # What comes now must not be cut short by a second signal.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._end_child()
            self._summarize()
        return sum(result.state != "done" for result in self._results.values())

    def _run_stage(self, stage: Stage, until: float) -> None:
        result, tried = self._results[stage.name], list[str]()
        result.state = "cut"  # Until the stage has come to an end: a stop leaves it so.
        barren = 0
        for _ in range(1 + MOST_RESTARTS):
            before = len(tried)
            ending = self._run_child(stage, until, tried)
            if ending.running is not None:
                self._add(stage, _lost_case(ending))
            if ending.finished:
                result.state = "failed" if result.failed else "done"
                return
            if ending.out_of_time:
                return
            # Between cases a child may go once; twice without a case means that it cannot start.
            barren = barren + 1 if len(tried) == before else 0
            if barren > 1:
                break
        result.state = "failed"
        result.error = (
            result.error or f"its process ended with {ending.code} before its first case; see {LOG}"
        )

    def _run_child(self, stage: Stage, until: float, tried: list[str]) -> _Ending:
        """Run one child until it ends or has to; cases that it begins are added to `tried`."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with (self._options.out / LOG).open("a") as log:
            child = subprocess.Popen(
                self._command(stage), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True, env=environment,
            )  # fmt: skip
        self._child = child
        messages: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(child, messages), daemon=True).start()
        ending = _Ending()
        self._send(child, self._job(stage, tried))
        case_until = time.monotonic() + START_SECONDS * self._options.patience
        while True:
            try:
                text = messages.get(timeout=max(0.0, min(until, case_until) - time.monotonic()))
            except queue.Empty:
                ending.out_of_time = time.monotonic() >= until
                ending.hung = not ending.out_of_time
                break
            message = _message(text)
            if message is None:
                break
            if "begin" in message:
                ending.running = message["begin"]
                tried.append(message["begin"])
                limit = message["seconds"] or CASE_SECONDS
                case_until = time.monotonic() + limit * self._options.patience
                continue
            self._take(stage, message)
            ending.running = None
            case_until = time.monotonic() + CASE_SECONDS * self._options.patience
            ending.finished = bool(message.get("finished"))
            if time.monotonic() >= until and not ending.finished:
                ending.out_of_time = True
                break
            self._send(child, {})
        self._end_child()
        ending.code = child.returncode
        return ending

    def _take(self, stage: Stage, message: dict[str, Any]) -> None:
        if "facts" in message:
            self._facts |= message["facts"]
            file = self._files[stage.file]
            if not file.has_facts(stage.name):
                file.add({"facts_of": stage.name, "stage": stage.name, "date": _now(), **message["facts"]})
        elif "stopped" in message:
            self._results[stage.name].error = message["stopped"]
        elif "end" in message:
            line = {"case": message.pop("end"), **message}
            self._add(stage, line)

    def _add(self, stage: Stage, line: dict[str, Any]) -> None:
        numbers = line.get("numbers") or {}
        self._left_out.update(numbers.pop("leave_out", ()))
        self._results[stage.name].take(line)
        self._files[stage.file].add({"stage": stage.name, **line})
        self._say(f"  {line['case']}: {line['outcome']}{': ' + line['error'] if line.get('error') else ''}")

    def _job(self, stage: Stage, tried: list[str]) -> dict[str, Any]:
        options = self._options
        return {
            "stage": stage.name, "device": options.device, "small": options.small, "tried": tried,
            "left_out": sorted(self._left_out),
        }  # fmt: skip

    @staticmethod
    def _send(child: "subprocess.Popen[str]", message: dict[str, Any]) -> None:
        assert child.stdin is not None
        # A child that has died is noticed by the end of its reports.
        with contextlib.suppress(BrokenPipeError, ValueError):
            child.stdin.write(json.dumps(message) + "\n")
            child.stdin.flush()

    def _end_child(self) -> None:
        """End the child and all that it started."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if child.poll() is None:
                # One that said that it has finished goes by itself.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=0.2)
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _summarize(self) -> None:
        summary = {
            "date": _now(),
            "seconds": round(time.monotonic() - self._began, 1),
            "device": self._options.device,
            "small": self._options.small,
            **self._facts,
            "left_to_the_reference": sorted(self._left_out),
            "stages": [result.to_json() for result in self._results.values()],
        }
        write_whole(self._options.out / SUMMARY, json.dumps(summary, indent=1) + "\n")

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)


def _lost_case(ending: _Ending) -> dict[str, Any]:
    if ending.out_of_time:
        return {"case": ending.running, "outcome": "cut", "error": "the stage's time ended"}
    if ending.hung:
        return {"case": ending.running, "outcome": "hung", "error": "the case's time ended"}
    how = (
        f"signal {-ending.code}"
        if ending.code is not None and ending.code < 0
        else f"exit code {ending.code}"
    )
    return {"case": ending.running, "outcome": "died", "error": f"its process ended with {how}"}


def _read(child: "subprocess.Popen[str]", messages: "queue.Queue[str | None]") -> None:
    assert child.stdout is not None
    with contextlib.suppress(ValueError):
        for line in child.stdout:
            messages.put(line)
    messages.put(None)


def _message(text: str | None) -> dict[str, Any] | None:
    """Return None at the end of the reports, and for half a line that a dying child left."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped
