"""Failures of the GPU measurement lose only the stage that failed.

Real processes raise, hang, die and are killed.
"""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu.stage_list import STAGES

from eventually import wait_until

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parents[1] / "support" / "staged_program.py"
MOST_FILES = 8


def start(
    directory: Path, plan: dict[str, list[tuple[str, str]]], seconds: float = 300
) -> "subprocess.Popen[str]":
    (directory / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, str(PROGRAM), str(directory), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def parsed(directory: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read every file of the results: the summary, and the lines of all cases by name."""
    out = directory / "out"
    summary: dict[str, Any] = {}
    cases = {}
    for path in out.iterdir():
        if path.suffix == ".json":
            summary = json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            cases |= {line["case"]: line for line in lines if "case" in line}
        else:
            assert path.name == "log.txt", path
    assert len([*out.iterdir()]) <= MOST_FILES
    return summary, cases


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        ("raise", "error"), ("wrong", "wrong"), ("hang", "hung"), ("die", "died"), ("exit", "died"),
        ("exhaust", "error"),
    ],
)  # fmt: skip
def test_a_case_that_fails_costs_itself_alone(tmp_path: Path, action: str, outcome: str) -> None:
    plan = {
        "first": [("before", "ok"), ("it", action), ("behind", "ok")],
        "second": [("later", "ok"), ("nothing there", "absent")],
    }
    program = start(tmp_path, plan)
    output, _ = program.communicate()
    summary, cases = parsed(tmp_path)
    assert program.returncode == 1, output
    assert {name: case["outcome"] for name, case in cases.items()} == {
        "before": "ok", "it": outcome, "behind": "ok", "later": "ok", "nothing there": "absent",
    }  # fmt: skip
    first, second = summary["stages"]
    assert (first["state"], first["cases"], first["failed"]) == ("failed", 3, 1)
    assert "it" in first["error"]
    assert (second["state"], second["failed"], second["error"]) == ("done", 0, "")
    begun = (tmp_path / "begun").read_text().split()
    assert begun.count("it") == 1, "it is tried once"


def test_every_file_names_the_card_and_a_wrong_operator_is_left_out_from_then_on(tmp_path: Path) -> None:
    program = start(tmp_path, {"first": [("it", "wrong")], "second": [("later", "ok")]})
    program.communicate()
    summary, _ = parsed(tmp_path)
    facts = [
        json.loads((tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()[0])
        for name in ("first", "second")
    ]
    assert [each["card"] for each in facts] == ["none", "none"]
    assert [each["left_out"] for each in facts] == [[], ["moe"]]
    assert summary["left_to_the_reference"] == ["moe"]


def test_a_child_that_cannot_start_ends_its_stage_alone(tmp_path: Path) -> None:
    program = start(tmp_path, {"first": [("it", "never starts")], "second": [("later", "ok")]})
    program.communicate()
    summary, cases = parsed(tmp_path)
    assert program.returncode == 1
    assert [stage["state"] for stage in summary["stages"]] == ["failed", "done"]
    assert list(cases) == ["later"]


def test_a_stage_whose_device_is_not_there_says_so(tmp_path: Path) -> None:
    program = start(tmp_path, {"first": [("it", "no device")], "second": [("later", "ok")]})
    program.communicate()
    summary, _ = parsed(tmp_path)
    first, second = summary["stages"]
    assert first["state"] == "failed"
    assert "no CUDA device is there" in first["error"]
    assert second["state"] == "done"


@pytest.mark.parametrize(
    "options", [["--seconds", "-5"], ["--seconds", "nan"], ["--out", __file__], ["--device", "cpu"]]
)
def test_options_that_cannot_be_are_refused_in_a_sentence(tmp_path: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "out"), *options]
    program = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert program.returncode == 2
    assert "Traceback" not in program.stderr
    assert options[0] in program.stderr


def test_a_stage_whose_time_ends_is_cut_and_the_next_has_its_own(tmp_path: Path) -> None:
    many = [(f"case-{number}", "ok") for number in range(100_000)]
    program = start(tmp_path, {"first": many, "second": [("later", "ok")]}, seconds=8)
    program.communicate()
    summary, cases = parsed(tmp_path)
    first, second = summary["stages"]
    assert first["state"] == "cut"
    assert first["cases"] > 0
    assert second["state"] == "done"
    assert cases["later"]["outcome"] == "ok"


def test_asked_to_end_it_says_what_there_is(tmp_path: Path) -> None:
    program = start(tmp_path, {"first": [("before", "ok"), ("it", "wait")], "second": [("later", "ok")]})
    begun = tmp_path / "begun"
    wait_until(lambda: begun.exists() and "it" in begun.read_text().split())
    program.send_signal(signal.SIGTERM)
    program.communicate()
    summary, cases = parsed(tmp_path)
    assert list(cases) == ["before"]
    assert [stage["state"] for stage in summary["stages"]] == ["cut", "not run"]
    assert program.returncode == 2


def test_killed_at_any_moment_it_leaves_whole_files_with_all_that_was_finished(tmp_path: Path) -> None:
    many = [(f"case-{number}", "ok") for number in range(100_000)]
    rng = random.Random(0)
    for number in range(20):
        directory = tmp_path / str(number)
        directory.mkdir()
        program = start(directory, {"first": many})
        begun = directory / "begun"
        wait_until(begun.exists)
        time.sleep(rng.random() / 4)
        program.kill()
        program.communicate()
        names = begun.read_text().split()
        _, cases = parsed(directory)
        # The next case begins when the line of the one before is in its file.
        assert set(names[:-1]) <= set(cases)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_measurement_runs_without_a_card(tmp_path: Path) -> None:
    """Every stage at its smallest, with the interpreter: none is run for the first time on a lent card."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--out",
        str(tmp_path / "out"),
        "--device",
        "cpu",
        "--small",
    ]
    program = subprocess.run([*command, "--seconds", "1500"], capture_output=True, text=True, cwd=ROOT)
    assert program.returncode == 0, program.stdout + (tmp_path / "out" / "log.txt").read_text()[-3000:]
    summary, cases = parsed(tmp_path)
    assert [(stage["name"], stage["state"]) for stage in summary["stages"]] == [
        (stage.name, "done") for stage in STAGES
    ]
    assert summary["left_to_the_reference"] == []
    assert {case["outcome"] for case in cases.values()} <= {"ok", "absent"}
    assert sum(case["outcome"] == "ok" for case in cases.values()) > 50
