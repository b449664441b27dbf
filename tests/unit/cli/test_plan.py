"""`mambaserve plan` through its door: table, JSON, YAML, several objects, exit codes."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mamba_api.v1alpha1 import PlanStatus
from mamba_cli import main
from mamba_cli.local import documents
from mamba_settings.byte_size import binary_size
from parsed_yaml import load_yaml
from prefork import FORK_SERVER

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "tests" / "golden" / "configs"


def mambaserve(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MAMBASERVE_")}
    given = {**clean, "COLUMNS": "120", "NO_COLOR": "1", **environment}
    return FORK_SERVER.run("-m", "mamba_cli", *arguments, env=given, cwd=cwd)


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    folder = tmp_path / "nano"
    folder.mkdir()
    (folder / "config.json").write_text((CONFIGS / "nemotron-nano-9b-v2.json").read_text())
    return folder


def document(name: str, **spec: Any) -> str:
    body = {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "file://./nano"}, **spec},
    }
    return yaml.safe_dump(body)


def test_a_model_directory_is_planned_as_a_table(nano: Path) -> None:
    done = mambaserve("plan", str(nano), "--device-memory", "80Gi", "--verbose")
    assert done.returncode == 0, done.stderr
    for words in ("nemotron_h", "strategy", "of 80.0Gi GPU", "█", "not chosen", "checkpoints"):
        assert words in done.stdout
    assert done.stderr == ""


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run `mambaserve plan ARGUMENTS` in this process; return its JSON or its error."""

    def run(*arguments: str, stdin: str = "") -> Any:
        documents._standard_input.cache_clear()
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setattr(sys, "argv", ["mambaserve", "plan", *arguments, "--output", "json"])
        with pytest.raises(SystemExit) as ended:
            main.run()
        said = capsys.readouterr()
        return said.err if ended.value.code else json.loads(said.out)

    return run


def test_a_quantization_is_planned_without_a_file_that_names_it(inside: Callable[..., Any]) -> None:
    def weights(*flags: str) -> int:
        shown = inside("known://nemotron-3-nano-30b-a3b", "--device-memory", "80Gi", *flags)
        return int(shown["model"]["weightsBytes"])

    plain = weights()
    on_cpus = [weights("--gpus", "0", "--quantization", each) for each in ("none", "int8", "int4")]
    assert on_cpus[0] == plain
    assert on_cpus[1] / plain == pytest.approx(34 / 64, abs=0.001)
    assert 18 / 64 < on_cpus[2] / plain < 0.3
    for each, least, most in (("int4", 18 / 64, 0.3), ("fp8", 0.5, 0.52)):
        assert least < weights("--quantization", each) / plain < most
    refused = inside("builtin://tiny-recall", "--gpu", "H100", "--quantization", "int8")
    assert "quantization int8 is for engines without GPUs" in refused
    assert "--gpus 0" in refused


def test_a_model_is_planned_by_its_uri(inside: Callable[..., Any], nano: Path) -> None:
    shown = inside("builtin://tiny-recall")
    assert (shown["name"], shown["fits"]) == ("tiny-recall", True)
    assert inside(f"file://{nano}", "--device-memory", "80Gi")["name"] == "nano"
    assert "builtin://absent" in inside("builtin://absent")
    assert "s3://a/b" in inside("s3://a/b")


def test_a_model_is_planned_by_its_configuration_file(inside: Callable[..., Any], nano: Path) -> None:
    by_directory = inside(str(nano), "--device-memory", "80Gi")
    by_file = inside(str(nano / "config.json"), "--device-memory", "80Gi")
    assert (by_file["name"], by_file["plan"]) == (by_directory["name"], by_directory["plan"])


def test_a_deployment_is_read_from_standard_input(
    inside: Callable[..., Any], nano: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nano.parent)
    assert inside("-", "--device-memory", "80Gi", stdin=document("one"))["name"] == "one"
    assert inside("-", stdin="kind: [").startswith("error: standard input line 1")


def test_json_stands_alone_on_standard_output_and_follows_the_interface(nano: Path) -> None:
    done = mambaserve("plan", str(nano), "--device-memory", "80Gi", "--output", "json")
    shown = json.loads(done.stdout)
    assert shown["fits"] is True
    assert shown["model"]["family"] == "nemotron_h"
    assert (shown["model"]["recurrentLayers"], shown["model"]["attentionLayers"]) == (27, 4)
    assert shown["model"]["stateBytes"] == 143_548_416
    assert shown["model"]["kvBytesPerToken"] == 16_384
    assert shown["model"]["weightsBytes"] == pytest.approx(17.8e9, rel=0.01)
    status = {field.alias or name for name, field in PlanStatus.model_fields.items()}
    status -= {"receiving", "exported", "raised"}  # of engines of two pools
    assert status <= set(shown["plan"])
    PlanStatus.model_validate({key: shown["plan"][key] for key in status})
    assert sum(line["bytes"] for line in shown["plan"]["ledger"]) == int(80 * 2**30 * 0.9)
    assert [shown["plan"][size]["memory"] for size in ("oneSizeDown", "oneSizeUp")] == ["46068Mi", "97887Mi"]


def test_yaml_says_the_same_as_json(nano: Path) -> None:
    as_yaml = mambaserve("plan", str(nano), "--device-memory", "80Gi", "-o", "yaml")
    as_json = mambaserve("plan", str(nano), "--device-memory", "80Gi", "-o", "json")
    assert load_yaml(as_yaml.stdout) == json.loads(as_json.stdout)


def test_a_file_with_several_objects_gives_a_list_and_paths_start_at_the_file(nano: Path) -> None:
    file = nano.parent / "two.yaml"
    file.write_text(
        document("one", memory={"deviceMemory": "80Gi"})
        + "---\n"
        + document("two", memory={"deviceMemory": "48Gi"}, stateCache={"strategy": "NoBuffer"})
    )
    done = mambaserve("plan", str(file), "--output", "json", cwd=Path("/"))
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)
    assert (one["name"], two["name"]) == ("one", "two")
    assert two["plan"]["strategy"] == "NoBuffer"
    assert one["plan"]["slots"] > two["plan"]["slots"]


def test_a_plan_that_does_not_fit_ends_with_3_and_the_numbers(nano: Path) -> None:
    done = mambaserve("plan", str(nano), "--device-memory", "16Gi", "--output", "json")
    assert done.returncode == 3
    shown = json.loads(done.stdout)
    assert (shown["fits"], shown["plan"]) == (False, None)
    assert shown["needBytes"] > shown["haveBytes"]
    assert "weights 16.6Gi" in done.stderr
    table = mambaserve("plan", str(nano), "--device-memory", "16Gi")
    assert table.returncode == 3
    assert "does not fit" in table.stdout
    assert "missing" in table.stdout
    assert shown["smallestSize"] == "23028Mi"
    for told in (done.stderr, table.stdout, shown["reason"]):
        assert "22.5Gi" in told


def test_one_misfit_among_several_ends_with_3_and_shows_them_all(nano: Path) -> None:
    file = nano.parent / "two.yaml"
    file.write_text(
        document("wide", memory={"deviceMemory": "80Gi"})
        + "---\n"
        + document("tight", memory={"deviceMemory": "16Gi"})
    )
    done = mambaserve("plan", str(file), "--output", "json")
    assert done.returncode == 3
    assert [(each["name"], each["fits"]) for each in json.loads(done.stdout)] == [
        ("wide", True), ("tight", False)
    ]  # fmt: skip
    assert done.stderr.startswith("error: tight: weights 16.6Gi")
    assert "wide" not in done.stderr


def test_flags_win_over_the_file_and_the_environment_stands_in_for_flags(nano: Path) -> None:
    file = nano.parent / "one.yaml"
    file.write_text(document("one", memory={"deviceMemory": "80Gi", "utilization": 0.5}))

    def budget(*arguments: str, **environment: str) -> int:
        done = mambaserve("plan", str(file), "-o", "json", *arguments, **environment)
        return int(json.loads(done.stdout)["plan"]["budgetBytes"])

    assert budget() == 40 << 30
    assert budget("--utilization", "1.0") == 80 << 30
    assert budget("--device-memory", "60Gi") == 30 << 30
    assert budget(MAMBASERVE_DEVICE_MEMORY="100Gi") == 50 << 30


def test_without_a_gpu_the_free_main_memory_is_planned(nano: Path) -> None:
    small = nano.parent / "small"
    small.mkdir()
    (small / "config.json").write_text((CONFIGS / "granite-4.0-h-350m.json").read_text())
    done = mambaserve("plan", str(small), "--gpus", "0")
    assert done.returncode == 0, done.stderr
    assert "free main memory" in done.stdout

    declared = mambaserve("plan", str(small), "--gpus", "0", "--device-memory", "80Gi")
    assert "of 80.0Gi main memory" in declared.stdout, "which nobody looked at"


def with_gpu(folder: Path, mib: int | None) -> dict[str, str]:
    """Return the environment of a machine whose driver reports one GPU of `mib` MiB, or that has none."""
    tools = folder / f"tools-{mib}"
    tools.mkdir()
    if mib is not None:
        (tools / "nvidia-smi").write_text(f"#!/bin/sh\necho {mib}\n")
        (tools / "nvidia-smi").chmod(0o755)
    return {"PATH": str(tools)}


def test_a_model_is_planned_for_this_machine_where_none_is_named(tmp_path: Path) -> None:
    """Plan as `serve` and `up` would run the model: on the GPU, else on the CPU; the first line names it."""
    here = mambaserve("plan", "known://granite-4.0-h-350m", **with_gpu(tmp_path, None))
    assert "free main memory" in here.stdout, here.stderr
    assert here.stdout.index("CPU of this machine") < here.stdout.index("no workload declared")
    on_gpu = mambaserve("plan", "known://granite-4.0-h-350m", **with_gpu(tmp_path, 24_576))
    assert "of 24.0Gi GPU" in on_gpu.stdout, on_gpu.stderr
    refused = mambaserve("plan", "known://granite-4.0-h-350m", "--gpus", "1", PATH=str(tmp_path))
    assert (refused.returncode, "--device-memory H100" in refused.stderr) == (2, True)


def test_another_machine_is_named_by_its_card_or_its_memory(inside: Callable[..., Any]) -> None:
    plans = [
        inside("known://granite-4.0-h-tiny", *words)["plan"]["budgetBytes"]
        for words in (("--gpu", "h100"), ("--device-memory", "H100"), ("--device-memory", "81559Mi"))
    ]
    assert plans == [int((81_559 << 20) * 0.9)] * 3
    assert "the known GPUs are" in inside("known://granite-4.0-h-tiny", "--device-memory", "H1000")
    assert "--gpu" in inside("known://granite-4.0-h-tiny", "--gpu", "H100", "--device-memory", "80Gi")


def test_a_published_model_is_planned_by_its_name_without_a_network(
    inside: Callable[..., Any], tmp_path: Path
) -> None:
    assert inside("granite-4.0-h-tiny", "--gpu", "H100") == inside(
        "known://granite-4.0-h-tiny", "--gpu", "H100"
    )
    shown = inside("known://granite-4.0-h-tiny", "--gpu", "H100")
    assert (shown["name"], shown["source"]) == ("granite-4.0-h-tiny", "known://granite-4.0-h-tiny")
    file = tmp_path / "some-model.json"
    file.write_text((CONFIGS / "granite-4.0-h-tiny.json").read_text())
    assert inside(str(file), "--gpu", "H100")["name"] == "some-model"
    complaint = inside("known://granite-4.0-h-tin")
    assert "did you mean known://granite-4.0-h-tiny?" in complaint
    assert "bamba-9b" in complaint


def test_the_memory_of_a_plan_is_what_an_engine_takes(inside: Callable[..., Any]) -> None:
    shown = inside("builtin://tiny-recall", "--gpus", "0", "--device-memory", "8Gi")["plan"]
    unused = shown["ledger"][-1]["bytes"]
    table = mambaserve("plan", "builtin://tiny-recall", "--gpus", "0", "--device-memory", "8Gi").stdout
    assert f"memory {binary_size(shown['budgetBytes'] - unused)} of 8.0Gi main memory" in table


def test_an_inline_configuration_needs_no_files(tmp_path: Path) -> None:
    file = tmp_path / "inline.yaml"
    config = json.loads((CONFIGS / "bamba-9b.json").read_text())
    model = {"uri": "hf://nobody/nothing", "config": config}
    file.write_text(document("inline", model=model, memory={"deviceMemory": "80Gi"}))
    done = mambaserve("plan", str(file), "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["family"] == "bamba"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device-memory", "80Gb"], "--device-memory: '80Gb' has the unknown unit 'Gb'"),
        (["--utilization", "1.5"], "--utilization: 1.5 must be above 0"),
        (["--gpus", "2"], "--gpus: 2 is refused by this version: an engine uses one GPU"),
    ],
)
def test_wrong_options_are_named_and_end_with_2(nano: Path, arguments: list[str], words: str) -> None:
    done = mambaserve("plan", str(nano), *arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())


def test_owner_and_name_are_a_model_on_the_hub() -> None:
    hub = mambaserve("plan", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", HF_ENDPOINT="http://127.0.0.1:9")
    assert hub.returncode == 1
    assert "hf://nvidia/NVIDIA-Nemotron-Nano-9B-v2: could not fetch config.json from the Hub" in hub.stderr


def test_broken_inputs_are_named_with_file_and_field_and_end_with_2(nano: Path) -> None:
    absent = mambaserve("plan", str(nano.parent / "absent.yaml"))
    assert absent.returncode == 2
    assert "no such file" in absent.stderr
    file = nano.parent / "wrong.yaml"
    file.write_text(document("wrong", engine={"pageSise": 3}))
    wrong = mambaserve("plan", str(file))
    assert wrong.returncode == 2
    assert "spec.engine.pageSise: unknown field; did you mean pageSize?" in " ".join(wrong.stderr.split())
    (nano / "config.json").write_text(json.dumps({"model_type": "llama"}))
    unknown = mambaserve("plan", str(nano))
    assert unknown.returncode == 2
    assert "'llama'" in unknown.stderr
    assert "nemotron_h" in unknown.stderr


def test_planning_imports_no_torch(nano: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from mamba_cli.local.planning import PlanFlags, plan_directory\n"
        f"plan_directory(Path({str(nano)!r}), PlanFlags(device_memory=80 << 30))\n"
        "print('torch' in sys.modules)"
    )
    roots = os.pathsep.join(str(ROOT / root) for root in ("libs", "server", "operator", "cli", "kernels"))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": roots}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr
