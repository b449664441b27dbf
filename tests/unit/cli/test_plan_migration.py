"""`mambaserve plan` of another server's command line or object: its MambaDeployment, and its plan."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from mamba_api.v1alpha1.documents import load_documents
from mamba_cli.migration.command_line import read_command
from mamba_cli.migration.manifests import read_manifests
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
