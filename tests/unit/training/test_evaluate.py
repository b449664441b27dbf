"""Evaluation: fixed sets of probes, the same verdicts through either forward, a table and JSON."""

import json
import sys
from pathlib import Path

import pytest
import torch

from training.tiny_recall import checkpoint, evaluate, scoring, tokenizer
from training.tiny_recall.model import Shape, TinyHybrid

WORDS = tokenizer.build()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    checkpoint.write(TinyHybrid(Shape()), tmp_path)
    return tmp_path


def test_there_is_a_set_for_every_distance_and_every_skill() -> None:
    sets = evaluate.probes(WORDS, 2)
    assert [name for name in sets if name.startswith("recall")] == [
        "recall at 64",
        "recall at 128",
        "recall at 256",
        "recall at 512",
        "recall at 1024",
    ]
    assert {"addition", "copying", "counting", "manners", "strange"} <= set(sets)
    assert {len(probes) for probes in sets.values()} == {2}


def test_probes_are_the_same_every_time() -> None:
    assert evaluate.probes(WORDS, 3) == evaluate.probes(WORDS, 3)


def test_asking_for_more_probes_keeps_the_first_ones() -> None:
    few, many = evaluate.probes(WORDS, 2), evaluate.probes(WORDS, 4)
    assert all(many[name][:2] == few[name] for name in few)


def test_both_forwards_give_the_same_verdicts(folder: Path) -> None:
    probes = evaluate.probes(WORDS, 2)["recall at 64"]
    ours = scoring.correct(checkpoint.read(folder, Shape()), WORDS, probes)
    theirs = scoring.correct(evaluate.through_transformers(folder), WORDS, probes)
    assert ours == theirs


def test_the_command_prints_accuracies_and_sample_size_as_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "DISTANCES", (64,))
    monkeypatch.setattr(sys, "argv", ["evaluate", str(folder), "--samples", "2", "--json"])
    evaluate.main()
    result = json.loads(capsys.readouterr().out)
    assert result["samples"] == 2
    assert all(0 <= accuracy <= 1 for accuracy in result["accuracy"].values())


def test_the_command_prints_a_line_per_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "DISTANCES", (64,))
    monkeypatch.setattr(sys, "argv", ["evaluate", str(folder), "--samples", "1"])
    evaluate.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all("of 1" in line for line in lines)
