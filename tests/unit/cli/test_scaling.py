"""`mambaserve scaling replay`: recorded decisions come out the same, or it is said which do not."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from mamba_cli.main import application
from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import decide
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.scaling_record import ScalingRecord
from parsed_yaml import load_yaml
from scaled_fleet import load, seen

CONFIG = AutoscalerConfig(min_replicas=1, max_replicas=8, ttft_target=1.0)


def record() -> ScalingRecord:
    memory = decide(seen(2, 4.1), CONFIG, AutoscalerMemory()).memory
    now = seen(2, 4.1, at=10.0, load=load(2, 33.3, slots_used=1.9, waiting=7, running=20))
    return ScalingRecord(config=CONFIG, observation=now, memory=memory, decision=decide(now, CONFIG, memory))


def deployment(text: str) -> str:
    change = {"time": "2026-01-02T12:00:00+00:00", "before": 2, "after": 8, "reason": "", "record": text}
    return yaml.safe_dump({"kind": "MambaDeployment", "status": {"scaling": {"history": [change]}}})


def replay(path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(application("scaling"), ["scaling", "replay", str(path), *options])
    return (getattr(result.exception, "exit_code", result.exit_code), result.output + str(result.exception))


@pytest.mark.parametrize("form", ["lines", "object", "list"])
def test_decisions_come_out_the_same(tmp_path: Path, form: str) -> None:
    path = tmp_path / "recorded"
    lines = (record().to_json() + b"\n").decode()
    item = deployment(record().encode())
    path.write_text(
        {"lines": lines * 2, "object": item, "list": json.dumps({"items": [load_yaml(item)]})}[form]
    )

    code, said = replay(path, "--output", "json")

    assert code == 0
    found = json.loads(said.removesuffix("None"))
    assert [one["same"] for one in found] == [True] * (2 if form == "lines" else 1)
    assert found[0]["decision"] == found[0]["again"]
    assert found[0]["decision"]["target"] > 2
    assert replay(path)[0] == 0


def test_a_decision_that_comes_out_otherwise_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    one = record()
    changed = msgspec.structs.replace(one, decision=msgspec.structs.replace(one.decision, target=3))
    path.write_bytes(one.to_json() + b"\n" + changed.to_json())

    code, said = replay(path)

    assert code == 1
    assert "1 of 2 decisions differ" in said
    assert "line 2" in said


@pytest.mark.parametrize(
    "text", ["", "{", "a: b", "[1]", '{"config": 1}', deployment("AAAA"), deployment("?"), deployment("")]
)
def test_what_holds_no_decision_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recorded"
    path.write_text(text)

    code, said = replay(path)

    assert code == 2
    assert str(path) in said


@pytest.mark.parametrize("name", ["recorded", "nano"])
def test_a_name_that_is_no_file_is_said_to_be_neither_where_there_is_no_cluster(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    code, said = replay(Path(name), "--kubeconfig", str(tmp_path / "absent"))

    assert code == 2
    assert f"no file {name}" in said
    assert "kubeconfig" in said


def test_a_file_that_is_not_there_is_said() -> None:
    code, said = replay(Path("nowhere/recorded.yaml"))

    assert code == 2
    assert "no such file" in said
