"""`mambaserve plan --trace` through its door: table, JSON, plot, and what it complains of."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cache.block_trace import generated

from mamba_cli import main
from matrix_size import LARGE

CONFIG = Path(__file__).parents[2] / "golden" / "configs" / "nemotron-nano-9b-v2.json"
SLO = ("--slo-ttft", "2s", "--slo-tpot", "100ms")
REQUESTS = 12
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": 200 * number,
                    "input_length": each.input_tokens,
                    "output_length": each.output_tokens,
                    "hash_ids": each.block_ids,
                }
            )
            + "\n"
            for number, each in enumerate(generated(REQUESTS, documents=4, depth=(2, 8)))
        )
    )
    return path


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `mambaserve plan MODEL ARGUMENTS` in this process; return exit code and both outputs."""
    (tmp_path / "nano").mkdir()
    (tmp_path / "nano" / "config.json").write_text(CONFIG.read_text())
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> tuple[int, str, str]:
        given = ["mambaserve", "plan", str(tmp_path / "nano"), *arguments]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as ended:
            main.run()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_json_names_the_chosen_fleet_and_every_candidate(plan: Run, trace: Path) -> None:
    code, out, err = plan("--trace", str(trace), *SLO, "--gpu", "H100=3", "--gpu", "L40S=1", "-o", "json")
    assert code == 0, err
    shown: dict[str, Any] = json.loads(out)
    chosen = shown["chosen"]
    assert chosen["gpusAtTwiceTheLoad"] >= chosen["gpus"] >= 1
    assert [(each["gpu"], each["strategy"]) for each in shown["candidates"]] == [
        (kind, strategy)
        for kind in ("H100", "L40S")
        for strategy in ("ExtraBuffer", "ExtraBufferLazy", "NoBuffer")
    ]
    found = [each for each in shown["candidates"] if each["gpus"] is not None]
    assert all(each["served"]["attainment"] >= 0.95 for each in found)
    # Both are rounded.
    assert all(
        each["cost"] == pytest.approx(each["gpuHours"] * {"H100": 3, "L40S": 1}[each["gpu"]], abs=0.003)
        for each in found
    )
    best = min(each["cost"] for each in found)
    assert [
        each["cost"]
        for each in found
        if (each["gpu"], each["strategy"]) == (chosen["gpu"], chosen["strategy"])
    ] == [best]


def test_the_table_marks_the_chosen_one_and_the_plot_is_written(
    plan: Run, trace: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "fleet.svg"
    code, out, err = plan("--trace", str(trace), *SLO, "--gpu", "H100", "--plot", str(plot))
    assert code == 0, err
    assert out.count("→") == 1
    assert "assumed" in out
    # No terminal: a line for each candidate, and nothing that moves.
    assert "H100, NoBuffer" in err
    assert "\r" not in err
    assert "\x1b" not in err
    assert plot.read_text().startswith("<svg")


def test_a_longer_trace_is_cut_to_its_busiest_part_and_that_is_said(plan: Run, trace: Path) -> None:
    arguments = ("--trace", str(trace), *SLO, "--gpu", "H100", "-o", "json")
    cut = json.loads(plan(*arguments, "--requests", "8")[1])
    assert (cut["trace"]["requests"], cut["trace"]["simulated"]) == (REQUESTS, 8)
    assert any("busiest" in note for note in cut["notes"])
    whole = json.loads(plan(*arguments, "--requests", "0")[1])
    assert whole["trace"]["simulated"] == REQUESTS
    assert whole["trace"]["hours"] == cut["trace"]["hours"]


def lines(requests: list[tuple[float, int, list[int]]]) -> str:
    return "".join(
        json.dumps({"timestamp": at, "input_length": length, "output_length": 9, "hash_ids": ids}) + "\n"
        for at, length, ids in requests
    )


@pytest.mark.parametrize("scale", [1 << 23, (1 << 63) // 40], ids=["multiples", "63 bits"])
def test_ids_of_any_size_are_equal_only_to_themselves(plan: Run, tmp_path: Path, scale: int) -> None:
    """Their tokens have 32 bits: large ids ended in a traceback, and multiples of 2^23 were taken for one."""
    path = tmp_path / "ids.jsonl"
    found = []
    for shared in (False, True):
        own = [[scale * (2 * n + 1), scale * (2 * n + 2)] for n in range(12)]
        requests = [(500 * n, 1024, [scale, scale * 2] if shared else own[n]) for n in range(12)]
        path.write_text(lines(requests))
        code, out, err = plan("--trace", str(path), *SLO, "--gpu", "H100", "-o", "json")
        assert code == 0, err
        served = [each["served"] for each in json.loads(out)["candidates"] if each["served"]]
        found.append(max(each["tokenHitRate"] for each in served))
    assert found[0] == 0.0
    assert found[1] > 0.4


def test_a_trace_in_other_units_is_refused_with_the_options_that_read_it(plan: Run, tmp_path: Path) -> None:
    path = tmp_path / "like.jsonl"
    path.write_text(lines([(1.7 * n, 521, list(range(33 * n, 33 * n + 33))) for n in range(20)]))
    arguments = ("--trace", str(path), *SLO, "--gpu", "H100", "-o", "json")
    code, out, err = plan(*arguments)
    assert (code, out) == (2, "")
    assert "line 1: 33 hash_ids for a prompt of 521 tokens" in err
    assert "--block-tokens 16" in err
    code, out, err = plan(*arguments, "--block-tokens", "16")
    assert (code, out) == (2, "")
    assert "--time-unit s" in err
    code, out, err = plan(*arguments, "--block-tokens", "16", "--time-unit", "s")
    assert code == 0, err
    assert json.loads(out)["trace"]["seconds"] == pytest.approx(1.7 * 19, abs=0.2)
    assert json.loads(out)["trace"]["requests"] == 20


@pytest.mark.parametrize(("unit", "a_second"), [("us", 1e6), ("ns", 1e9)] if LARGE else [("us", 1e6)])
def test_timestamps_in_a_smaller_unit_are_refused_with_the_unit_that_they_seem_to_have(
    plan: Run, tmp_path: Path, unit: str, a_second: float
) -> None:
    path = tmp_path / "tiny.jsonl"
    path.write_text(lines([(5.1 * a_second * n, 512, [n]) for n in range(14)]))
    arguments = ("--trace", str(path), *SLO, "--gpu", "H100", "-o", "json")
    code, out, err = plan(*arguments)
    assert (code, out) == (2, "")
    assert f"--time-unit {unit} (66.3 s)" in err
    code, out, err = plan(*arguments, "--time-unit", unit)
    assert code == 0, err
    assert json.loads(out)["trace"]["seconds"] == pytest.approx(5.1 * 13, abs=0.2)


def test_years_are_not_simulated_though_somebody_named_the_unit(plan: Run, tmp_path: Path) -> None:
    path = tmp_path / "years.jsonl"
    path.write_text(lines([(1.7e9 * n, 512, [n]) for n in range(40)]))
    code, out, err = plan("--trace", str(path), *SLO, "--gpu", "H100", "--time-unit", "ms")
    assert (code, out) == (2, "")
    assert "767 days" in err
    assert "--time-unit ns (66.3 s)" in err


def test_requests_whose_ids_do_not_fit_their_length_are_left_out_and_counted(
    plan: Run, tmp_path: Path
) -> None:
    path = tmp_path / "some.jsonl"
    fitting = [(500 * n, 1000, [2 * n, 2 * n + 1]) for n in range(10)]
    path.write_text(lines([*fitting, (250, 1000, [90]), (750, 1000, [91, 92, 93])]))
    code, out, err = plan("--trace", str(path), *SLO, "--gpu", "H100", "-o", "json")
    assert code == 0, err
    shown = json.loads(out)
    assert (shown["trace"]["requests"], shown["trace"]["leftOut"]) == (10, 2)
    assert any("left out: 2" in note for note in shown["notes"])


def test_no_fleet_is_exit_code_3_with_the_reasons_in_the_document(plan: Run, trace: Path) -> None:
    code, out, err = plan(
        "--trace", str(trace), "--slo-ttft", "1ms", "--slo-tpot", "1ms", "--gpu", "L4", "-o", "json"
    )
    assert code == 3
    assert "error: " in err
    shown = json.loads(out)
    assert shown["chosen"] is None
    assert all(each["whyNot"] for each in shown["candidates"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--trace", "absent.jsonl", *SLO), "absent.jsonl: no such file"),
        (("--trace", "TRACE", "--slo-ttft", "2s"), "--slo-tpot"),
        (("--trace", "TRACE", "--slo-tpot", "2s"), "--slo-ttft"),
        (("--trace", "TRACE", "--slo-ttft", "2", "--slo-tpot", "1s"), "--slo-ttft"),
        (("--trace", "TRACE", "--slo-ttft", "2s", "--slo-tpot", "0s"), "--slo-tpot"),
        (("--trace", "TRACE", *SLO, "--format", "azure"), "--format mooncake"),
        (("--trace", "CONFIG", *SLO), "line 1"),
        (("--trace", "EMPTY", *SLO), "empty"),
        (("--trace", "TRACE", *SLO, "--gpu", "TPU"), "--gpu"),
        (("--trace", "TRACE", *SLO, "--device-memory", "80Gi"), "--device-memory"),
        (("--slo-ttft", "2s"), "--trace"),
    ],
)
def test_wrong_input_is_exit_code_2_and_is_named(
    plan: Run, trace: Path, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    files = {"TRACE": str(trace), "CONFIG": str(CONFIG), "EMPTY": str(empty)}
    code, out, err = plan(*(files.get(each, each) for each in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert named in err


def test_a_plot_that_cannot_be_written_is_exit_code_1(plan: Run, tmp_path: Path) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text(lines([(500, 512, [1]), (1000, 512, [2])]))
    arguments = ("--trace", str(short), *SLO, "--gpu", "H100", "--plot", str(tmp_path))
    code, _, err = plan(*arguments)
    assert code == 1
    assert "--plot" in err
