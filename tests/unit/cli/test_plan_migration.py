"""`mambaserve plan` of another server's command line or object: its MambaDeployment, and its plan."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from mamba_api.v1alpha1.documents import load_documents
from mamba_cli.errors import InvalidInput
from mamba_cli.local.planning import PlanFlags
from mamba_cli.main import application
from mamba_cli.migration.command_line import read_command
from mamba_cli.migration.manifests import read_manifests
from mamba_cli.migration.migration_plan import migration_plans
from mamba_cli.migration.sglang_arguments import SGLANG
from mamba_cli.migration.vllm_arguments import VLLM
from prefork import FORK_SERVER

CONFIGS = Path(__file__).parents[2] / "golden/configs"


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    (tmp_path / "nano").mkdir()
    (tmp_path / "nano/config.json").write_text((CONFIGS / "nemotron-nano-9b-v2.json").read_text())
    return tmp_path / "nano"


def plan(*arguments: str) -> tuple[int, str, str]:
    done = FORK_SERVER.run("-m", "mamba_cli", "plan", *arguments, env={**os.environ, "COLUMNS": "120"})
    return done.returncode, done.stdout, done.stderr


def document(*arguments: str) -> dict[str, Any]:
    code, out, err = plan(*arguments, "-o", "json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_command_of_vllm_becomes_an_object_that_is_planned(nano: Path) -> None:
    found = document(
        f"CUDA_VISIBLE_DEVICES=0 vllm serve {nano} --max-model-len 32k --max-num-seqs=64 --dtype half "
        "--gpu-memory-utilization 0.85 --tensor-parallel-size 2 --tool-call-parser hermes --no-such-flag 3 "
        "--served-model-name nano other",
        "--gpu", "H100",
    )  # fmt: skip
    assert found["mambaDeployment"]["spec"] == {
        "model": {"uri": f"file://{nano}", "maxModelLen": 32_000, "servedName": "nano"},
        "engine": {"maxRunningRequests": 64, "dtype": "float16"},
        "memory": {"utilization": 0.85},
    }
    [planned] = found["plans"]
    assert planned["fits"]
    assert planned["plan"]["maxRunningRequests"] == 64
    reasons = {each["argument"]: each["reason"] for each in found["leftOut"]}
    assert list(reasons) == [
        "CUDA_VISIBLE_DEVICES", "--tensor-parallel-size 2", "--tool-call-parser hermes", "--no-such-flag",
        "--served-model-name other",
    ]  # fmt: skip
    assert "one GPU" in reasons["--tensor-parallel-size 2"]


def test_a_command_of_sglang_keeps_its_strategy_and_its_two_sides(nano: Path) -> None:
    found = document(
        f"python3 -m sglang.launch_server --model-path {nano} \\\n --context-length 8192 "
        "--mamba-radix-cache-strategy extra_buffer_lazy --disaggregation-mode prefill",
        "--gpu", "H100",
    )  # fmt: skip
    spec = found["mambaDeployment"]["spec"]
    assert spec["stateCache"] == {"strategy": "ExtraBufferLazy"}
    assert [planned["role"] for planned in found["plans"]] == ["prefill", "decode"]


def test_what_is_printed_can_be_applied(nano: Path) -> None:
    code, out, _ = plan(f"vllm serve {nano} --trust-remote-code", "--gpu", "H100")
    assert code == 0
    [deployment] = load_documents(out.partition("the same:")[2], "the output")
    assert deployment.spec.model.uri == f"file://{nano}"


def test_a_model_that_does_not_fit_ends_with_3_and_a_command_without_a_model_with_2(nano: Path) -> None:
    assert plan(f"vllm serve {nano}", "--device-memory", "8Gi")[0] == 3
    code, _, err = plan("vllm serve --port 8000")
    assert (code, "names no model" in err) == (2, True)
    code, _, err = plan(f"vllm serve {nano} --gpu-memory-utilization 7")
    assert (code, "spec.memory.utilization" in err) == (2, True)


@pytest.mark.parametrize(("launcher", "table"), [("vllm serve", VLLM), ("sglang serve --model-path", SGLANG)])
def test_every_known_argument_sets_a_field_that_exists_or_says_why_not(
    launcher: str, table: dict[str, Any]
) -> None:
    values = {
        "--dtype": "bfloat16", "--mamba-ssm-cache-dtype": "float32", "--mamba-ssm-dtype": "float16",
        "--gpu-memory-utilization": "0.5", "--mem-fraction-static": "0.5", "--page-size": "16",
        "--mamba-radix-cache-strategy": "auto", "--mamba-scheduler-strategy": "no_buffer",
        "--revision": "v2", "--model": "a/b", "--model-path": "a/b", "--disaggregation-mode": "decode",
        "--mamba-track-interval": "512", "--kv-cache-dtype": "fp8",
    }  # fmt: skip
    for flag in table:
        migrated = read_command(f"{launcher} a/b {flag} {values.get(flag, '2')}")
        assert migrated.left_out or len(migrated.replaced) > 1 or flag in ("--model", "--model-path"), flag
        load_documents(yaml.safe_dump(migrated.manifest()), flag)


@pytest.mark.parametrize(
    "value", ["--dtype int3", "--max-model-len lots", "--max-num-seqs many", "--kv-cache-dtype fp8_e5m2"]
)
def test_a_value_that_no_field_takes_is_left_out_with_a_reason(value: str) -> None:
    migrated = read_command(f"vllm serve a/b {value}")
    assert [argument for argument, _ in migrated.left_out] == [value]


@pytest.mark.parametrize(
    "command",
    [
        "sudo vllm serve a/b --max-model-len 2k",
        "HF_HOME=/x uv run vllm serve a/b --max-model-len 2k",
        "python3.12 -m vllm.entrypoints.openai.api_server --model a/b --max-model-len=2k",
        "docker run --gpus all -v /m/vllm:/x vllm/vllm-openai:v0.11 --model a/b --max-model-len 2k",
        "podman run lmsysorg/sglang:latest python3 -m sglang.launch_server --model a/b --context-length 2k",
        "cd /x && exec vllm serve a/b --max-model-len 2k; sleep 9",
        "bash -lc 'vllm serve a/b --max-model-len 2k > log 2>&1 &'",
    ],
)
def test_a_command_is_found_behind_what_starts_it(command: str) -> None:
    assert read_command(command).spec["model"] == {"uri": "hf://a/b", "maxModelLen": 2000}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--served-model-name", "it has no value"),
        ("--served-model-name x y", "aliases of a MambaGateway"),
        ("--max-num-seqs lots", "lots is no whole number"),
        ("--gpu-memory-utilization most", "most is no number"),
        ("--config x.yaml", "write its arguments into the command"),
        ("-tp2", "one GPU"),
        ("“--dtype” half", "text processor"),
        ("--max-model-len 2048 && reboot", "words of the shell"),
    ],
)
def test_an_odd_argument_is_left_out_for_a_reason_that_helps(arguments: str, reason: str) -> None:
    assert reason in read_command(f"vllm serve a/b {arguments}").left_out[0][1]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("vllm serve 'a/b", "close each quote"),
        ("vllm bench serve a/b", "Known are: vllm serve"),
        ("llama-server -m x.gguf", "in quotes"),
        ("vllm serve a/b --max-num-seqs 0", "(from --max-num-seqs 0)"),
    ],
)
def test_a_command_that_cannot_be_planned_is_refused_in_words(source: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        migration_plans(source, PlanFlags(None, None, None, {}))
    assert words in str(refused.value)


def test_a_command_without_quotes_is_told_from_arguments_of_plan() -> None:
    result = CliRunner().invoke(
        application("plan"), ["plan", "vllm", "serve", "a/b", "--max-model-len", "2k"]
    )
    assert isinstance(result.exception, InvalidInput)
    assert "mambaserve plan 'vllm serve …' --gpu H100" in str(result.exception)


def test_a_path_of_a_model_is_no_name_of_the_hub() -> None:
    assert read_command("vllm serve models/team/nano").spec["model"] == {"uri": "file://./models/team/nano"}
    assert read_command("vllm serve team/nano").spec["model"] == {"uri": "hf://team/nano"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{apiVersion: serving.kserve.io/v1beta1, kind: InferenceService, spec: {predictor: [1]}}",
         "InferenceService: spec.predictor must be an object"),
        ("{apiVersion: kubeai.org/v1, kind: Model, metadata: [a], spec: {url: hf://a/b}}",
         "Model: metadata must be an object"),
        ("{apiVersion: kubeai.org/v1, kind: Model, spec: {url: hf://a/b, args: '--x 1'}}",
         "args must be a list"),
        ("{apiVersion: kubeai.org/v1, kind: Model, spec: null}", "names no model"),
        ("{apiVersion: v1, kind: Pod, spec: {containers: {}}}", ""),
        ("{apiVersion: [1], kind: {a: b}}", ""),
    ],
)  # fmt: skip
def test_an_object_of_another_shape_is_refused_in_words_or_skipped(text: str, words: str) -> None:
    if not words:
        assert read_manifests(text) == []
        return
    with pytest.raises(InvalidInput, match=words):
        read_manifests(text)


VALUES = """
modelArtifacts: {uri: "hf://a/b", name: nano}
decode:
  replicas: 2
  parallelism: {tensor: 2}
  containers: [{name: vllm, modelCommand: vllmServe, args: [--enforce-eager]}]
prefill: {replicas: 1}
---
apiVersion: v1
kind: List
items:
- apiVersion: serving.kserve.io/v1alpha1
  kind: LLMInferenceService
  metadata: {name: shell}
  spec:
    model: {uri: "hf://a/b"}
    replicas: 3
    prefill: null
    template:
      containers:
      - args: [/bin/sh, -c, "exec vllm serve /mnt/models --max-model-len 2048"]
        resources: {limits: {nvidia.com/gpu: "0.5", nvidia.com/mig-3g.20gb: 1}}
"""


def test_values_of_a_chart_and_items_of_a_list_become_objects() -> None:
    chart, item = read_manifests(VALUES)
    assert chart.spec == {
        "model": {"uri": "hf://a/b", "servedName": "nano"}, "engine": {"decodeGraphs": "Off"},
        "disaggregation": {"prefill": {"replicas": 1}, "decode": {"replicas": 2}},
    }  # fmt: skip
    assert [argument for argument, _ in chart.left_out] == ["decode.parallelism.tensor: 2"]
    assert item.spec == {"model": {"uri": "hf://a/b", "maxModelLen": 2048}, "replicas": 3}
    reasons = dict(item.left_out)
    assert "one whole GPU" in reasons["nvidia.com/gpu: 0.5"]
    assert "--device-memory" in reasons["nvidia.com/mig-3g.20gb: 1"]


OBJECTS = """
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: granite}
spec:
  url: hf://ibm-granite/granite-4.0-h-tiny
  engine: VLLM
  args: [--max-model-len=4096]
  resourceProfile: nvidia-gpu-l4:1
  minReplicas: 0
  maxReplicas: 3
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: nano}
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: huggingface}
      args: [--model_name=nano, --model_id=nvidia/NVIDIA-Nemotron-Nano-9B-v2, --max-num-seqs, "16"]
      resources: {limits: {nvidia.com/gpu: "2"}}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: "gs://iris"}}}
---
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: split}
spec:
  model: {uri: hf://Qwen/Qwen3-Next-80B-A3B-Instruct, name: qwen}
  replicas: 4
  prefill: {replicas: 2}
  router: {}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: plain}
spec:
  replicas: 3
  template:
    spec:
      containers:
        - image: vllm/vllm-openai:v0.20.0
          args: [--model, ibm-granite/granite-4.0-h-tiny, --enforce-eager]
---
apiVersion: v1
kind: Pod
metadata: {name: shell}
spec:
  containers:
    - image: lmsysorg/sglang
      command: [/bin/bash, -c, "exec python3 -m sglang.launch_server --model a/b --page-size 32"]
"""


def test_objects_of_other_platforms_become_deployments_of_the_same_name() -> None:
    specs = {migrated.name: migrated.spec for migrated in read_manifests(OBJECTS)}
    assert specs == {
        "granite": {
            "model": {"uri": "hf://ibm-granite/granite-4.0-h-tiny", "maxModelLen": 4096},
            "scaling": {"minReplicas": 0, "maxReplicas": 3},
        },
        "nano": {
            "model": {"uri": "hf://nvidia/NVIDIA-Nemotron-Nano-9B-v2", "servedName": "nano"},
            "engine": {"maxRunningRequests": 16},
            "scaling": {"minReplicas": 1},
        },
        "split": {
            "model": {"uri": "hf://Qwen/Qwen3-Next-80B-A3B-Instruct", "servedName": "qwen"},
            "disaggregation": {"prefill": {"replicas": 2}, "decode": {"replicas": 4}},
        },
        "plain": {
            "model": {"uri": "hf://ibm-granite/granite-4.0-h-tiny"},
            "engine": {"decodeGraphs": "Off"},
            "replicas": 3,
        },
        "shell": {"model": {"uri": "hf://a/b"}, "engine": {"pageSize": 32}},
    }
    for migrated in read_manifests(OBJECTS):
        load_documents(yaml.safe_dump(migrated.manifest()), migrated.name)


def test_a_file_with_an_object_of_another_platform_is_planned(nano: Path) -> None:
    file = nano.parent / "model.yaml"
    manifest = {"apiVersion": "kubeai.org/v1", "kind": "Model", "metadata": {"name": "x"}}
    file.write_text(yaml.safe_dump({**manifest, "spec": {"url": f"file://{nano}", "engine": "VLLM"}}))
    assert document(str(file), "--gpu", "H100")["mambaDeployment"]["metadata"] == {"name": "x"}
