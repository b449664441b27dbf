"""Workloads of a simulated fleet, and the scores of its runs."""

import json
from pathlib import Path

import pytest
from benchmarks.fleet.__main__ import main
from benchmarks.fleet.duration import duration
from benchmarks.fleet.score import pending_excess, recovery, reversals
from benchmarks.fleet.workload import day

from mamba_cli.bench.traces import Arrival, TraceError
from mamba_cli.fleet.request import Request
from mamba_cli.fleet.workload import RequestStream, TraceWorkload, read, scaled, spliced

ASKED = RequestStream(
    TraceWorkload("w", 512, [Arrival(float(n), 1000, 5, (0, n + 1)) for n in range(100)]), True
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{second:02}.0000000,{400 + second},5\n" for second in range(40)
)


def test_more_load_is_more_users_who_share_among_themselves_alone() -> None:
    found = scaled(ASKED, 3).workload.arrivals
    assert len(found) == 300
    assert [arrival.at for arrival in found] == sorted(arrival.at for arrival in found)
    roots = [arrival.block_ids[0] for arrival in found]
    assert sorted(roots.count(root) for root in set(roots)) == [100, 100, 100]


def test_less_load_keeps_a_share_of_the_requests() -> None:
    assert 35 < len(scaled(ASKED, 0.5).workload.arrivals) < 65
    assert scaled(ASKED, 0.5).workload == scaled(ASKED, 0.5).workload
    assert scaled(ASKED, 0.5, seed=1).workload != scaled(ASKED, 0.5).workload


def test_a_longer_time_plays_the_trace_again_with_new_prefixes() -> None:
    found = scaled(ASKED, hours=250 / 3600).workload.arrivals
    assert len(found) == 250
    assert found[-1].at < 250
    assert len({arrival.block_ids[0] for arrival in found}) == 3


@pytest.mark.parametrize("seconds", [7.0, 33.0, 1000.0])
def test_a_spliced_trace_has_the_same_requests_at_other_times(seconds: float) -> None:
    bursty = [at for at in (float(n) for n in range(98)) if at % 33 < 9] + [98.0]
    asked = RequestStream(
        TraceWorkload("w", 512, [Arrival(at, 1000 + int(at), 5, (0, int(at) + 1)) for at in bursty]), True
    )

    found = spliced(asked, seconds, seed=5)

    arrivals = found.workload.arrivals
    assert sorted(each.input_tokens for each in arrivals) == [1000 + int(at) for at in bursty]
    assert [each.at for each in arrivals] == sorted(each.at for each in arrivals)
    assert found.seconds <= asked.seconds
    assert len({each.block_ids[0] for each in arrivals}) == 1
    assert found == spliced(asked, seconds, seed=5)
    pieces = [int((each.input_tokens - 1000) / seconds) for each in arrivals]
    order = [one for one, other in zip(pieces, [-1, *pieces], strict=False) if one != other]
    assert len(order) == len(set(order))
    assert (order != sorted(order)) == (seconds < 100)


def test_a_day_has_its_least_at_four_and_its_most_at_sixteen() -> None:
    assert day(4 * 3600) == pytest.approx(0.1)
    assert day(16 * 3600) == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_load_scale_must_be_positive(scale: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        scaled(ASKED, scale)


def test_a_trace_of_another_format_than_said_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE, encoding="utf-8")
    assert not read(path, "azure").identity
    with pytest.raises(TraceError, match="--format azure"):
        read(path, "mooncake")
    # The form of the lines counts, not whether they tell which prompts share a prefix.
    path.write_text('{"timestamp": 0, "input_length": 8, "output_length": 2}\n', encoding="utf-8")
    assert not read(path, "mooncake").identity
    with pytest.raises(TraceError, match="--format mooncake"):
        read(path, "azure")


def test_times_are_written_with_units() -> None:
    assert [duration(text) for text in ("2s", "100ms", "1.5m")] == pytest.approx([2.0, 0.1, 90.0])
    for wrong in ("2", "s", "-1s", "0s"):
        with pytest.raises(ValueError, match="such as 2s"):
            duration(wrong)


def test_the_command_prints_the_score_as_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE, encoding="utf-8")
    assert main(["--trace", str(path), "--scaler", "fixed", "--initial", "2", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    named = {
        "sloAttainment", "gpuSeconds", "reversals", "worstPendingExcess", "recoverySeconds", "lostRequests",
        "tokenHitRate", "recomputedTokens",
    }  # fmt: skip
    assert named == found.keys()
    assert main(["--trace", str(path), "--scaler", "fixed", "--output", "json"]) == 0
    cheapest = json.loads(capsys.readouterr().out)
    assert cheapest["sloAttainment"] >= 0.95
    assert cheapest["gpuSeconds"] <= found["gpuSeconds"]
    assert found["gpuSeconds"] == pytest.approx(2 * 39)
    assert found["sloAttainment"] == 1.0


@pytest.mark.parametrize(
    "text",
    [
        AZURE.splitlines()[0] + "\n2023-11-16 18:17:03.5,400,5\n",
        AZURE.replace("\n", "\r\n"),
        "\n".join([AZURE.splitlines()[0], *reversed(AZURE.splitlines()[1:])]),
        AZURE + "2023-11-16 21:17:03.5,400,5\n",
        '{"timestamp": 7, "input_length": 700, "output_length": 3, "hash_ids": [5, 9]}\n' * 2,
    ],
    ids=["one", "crlf", "unsorted", "gap", "moment"],
)
def test_traces_of_any_length_and_order_are_played_to_their_end(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text.encode())
    printed = []
    for _ in range(2):
        assert main(["--trace", str(path), "--output", "json"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    found = json.loads(printed[0])
    assert (found["sloAttainment"], found["lostRequests"]) == (1.0, 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: the file is empty"),
        (AZURE.splitlines()[0], "no request that can be played"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n", "line 1: is neither the header"),
        (AZURE + "2023-11-16 18:18:03,5\n", "line 42: has 2 columns"),
        (AZURE + "1700158623.97,10,10\n", "line 42: Invalid isoformat"),
        ('{"timestamp": 7, "input_length": 700}', "line 1: Object missing required field"),
        ('{"timestamp": 7, "input_length": 900, "output_length": 3, "hash_ids": [5]}', "whole prompt"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_its_name_and_line(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    assert main(["--trace", str(path), "--output", "json"]) == 2
    said = capsys.readouterr()
    assert f"error: {path}: " in said.err
    assert told in said.err
    assert not said.out


def test_the_command_says_what_to_do_about_a_wrong_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE, encoding="utf-8")
    assert main(["--trace", str(path), "--format", "mooncake"]) == 2
    assert "--format azure" in capsys.readouterr().err
    assert main(["--trace", str(path), "--initial", "99"]) == 2
    assert "--initial 99" in capsys.readouterr().err


def test_reversals_are_changes_of_direction() -> None:
    assert reversals([2, 3, 4, 4, 3, 2, 5]) == 2
    assert reversals([1]) == reversals([1, 2, 3]) == 0


def test_engines_that_start_beyond_need_are_excess() -> None:
    supply = [(0.0, 2, 0), (10.0, 2, 3), (20.0, 2, 6), (30.0, 8, 0)]
    assert pending_excess(supply, [(0.0, 2), (10.0, 5), (30.0, 1)]) == 3
    assert pending_excess(supply, [(0.0, 20)]) == 0


def test_recovery_is_the_longest_time_below_the_goal() -> None:
    def asked(at: float) -> Request:
        return Request(0, at, lambda: (_ for _ in ()).throw(AssertionError), 1, 1)

    times = [1.0, 11.0, 12.0, 21.0, 31.0, 61.0, 71.0]
    well = [True, False, True, False, True, False, True]
    # 10 to 30, and 60 to 70.
    assert recovery([asked(at) for at in times], well) == 20.0
    assert recovery([], []) == 0.0
