"""Wrong input of users of `up` and `plan`: refused with a message before anything is started."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from mamba_cli.errors import InvalidInput, NoFittingPlan, RunFailed
from mamba_cli.local.bring_up import bring_up
from mamba_cli.local.documents import read_deployments
from mamba_cli.local.model_facts import facts_of_model, local_uri
from mamba_cli.local.planning import PlanFlags, gpu_memory, plan_deployment, plan_directory, size_option
from mamba_cli.local.ports import front_port
from mamba_planner import Device
from parsed_yaml import load_yaml

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def document(name: str = "one", namespace: str | None = None, **spec: Any) -> str:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    # JSON of this file has an infinity, for which YAML has another word.
    config = json.loads((CONFIGS / "nemotron-nano-9b-v2.json").read_text())
    config = {key: value for key, value in config.items() if key != "time_step_limit"}
    model = {"uri": "file://./model", "config": config, "maxModelLen": 4096}
    body = {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": metadata,
        "spec": {"model": model, "memory": {"arena": "2Gi"}, "resources": {"gpus": 0}, **spec},
    }
    return yaml.safe_dump(body)


def up(*files: Path, host: str = "127.0.0.1", port: int = 0, logs: Path | None = None) -> str:
    """Bring up with a launcher that would tell of its start; what was printed."""
    output = io.StringIO()
    bring_up(
        list(files), host=host, port=port, once=True, demo=False, logs=logs,
        console=Console(file=output, width=200), launcher=("/bin/sh", "-c", "echo started >&2; exit 2"),
    )  # fmt: skip
    return output.getvalue()


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Free bytes of the machine; a test may put others in."""
    free = [64 << 30]
    monkeypatch.setattr("mamba_cli.local.planning.available_bytes", lambda: free[-1])
    return free


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mamba.yaml"
    path.write_text(document())
    return path


def test_one_file_given_twice_is_refused_instead_of_run_twice(file: Path) -> None:
    with pytest.raises(InvalidInput, match=r"mamba\.yaml: one is also defined in .*mamba\.yaml"):
        up(file, file)


def test_one_name_in_two_namespaces_cannot_run_on_one_machine(file: Path) -> None:
    file.write_text(document() + "---\n" + document(namespace="elsewhere"))
    with pytest.raises(InvalidInput, match="several namespaces have a deployment named one"):
        up(file)


def test_one_name_in_two_namespaces_can_be_planned(file: Path) -> None:
    file.write_text(document() + "---\n" + document(namespace="elsewhere"))
    assert [each.deployment.namespace for each in read_deployments([file])] == ["default", "elsewhere"]


def test_one_name_in_two_files_is_refused_whatever_the_namespace(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(document(namespace="elsewhere"))
    with pytest.raises(InvalidInput, match=r"other\.yaml: one is also defined in .*mamba\.yaml"):
        read_deployments([file, other])


def test_logs_that_cannot_be_written_are_refused(file: Path) -> None:
    with pytest.raises(RunFailed, match=r"--logs: the directory cannot be created: .*File exists"):
        up(file, logs=file)
    with pytest.raises(RunFailed, match="--logs: the directory cannot be created: "):
        up(file, logs=file / "below")


def test_an_arena_that_the_machine_has_no_room_for_is_not_started(file: Path, free: list[int]) -> None:
    file.write_text(document(memory={"arena": "100Gi"}))
    with pytest.raises(NoFittingPlan):
        up(file)
    free.append(200 << 30)
    assert "started" in up(file)
    assert plan_deployment(read_deployments([file])[0], PlanFlags()).plan is not None  # of another machine


def test_engines_that_fit_one_by_one_and_not_together_are_not_started(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    for path, name in ((file, "one"), (other, "two")):
        path.write_text(document(name, memory={"arena": "30Gi"}))
        assert plan_deployment(
            read_deployments([path])[0], PlanFlags(), Device("cpu", 64 << 30, declared=False)
        ).plan
    with pytest.raises(NoFittingPlan, match=r"one, two together need .* but 64\.0Gi are free"):
        up(file, other)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no MambaDeployment in it"),
        (b"---\n---\n", "no MambaDeployment in it"),
        (b"# nothing but a comment\n", "no MambaDeployment in it"),
        (b"\xff\xfek\x00i\x00", "cannot be read: 'utf-8' codec"),
        (b"kind: \x00", "not valid YAML"),
        (b"kind: [", "line 1, column 8: not valid YAML"),
        (b"- a\n- b\n", "a Kubernetes object is a mapping, this is a list"),
        (b"just words", "a Kubernetes object is a mapping, this is a str"),
        (b"a: &x 1\nb: *x\n", "aliases"),
        (b'{"model_type": "bamba"}', "kind is missing: write apiVersion: serving.mambaserve.io/v1alpha1"),
        (b"apiVersion: apps/v1\nkind: Deployment\n", "no MambaDeployment in it"),
        (b"apiVersion: serving.mambaserve.io/v1\nkind: MambaDeployment\n", "is not served: write serving"),
    ],
)  # fmt: skip
def test_a_file_of_something_else_is_named_with_what_it_should_be(
    file: Path, content: bytes, words: str
) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        read_deployments([file])
    assert str(caught.value).startswith(str(file))
    assert words in str(caught.value)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + document().replace("\n", "\r\n").encode())
    [found] = read_deployments([file])
    assert found.deployment.name == "one"


@pytest.mark.parametrize("make", ["directory", "link", "long"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, make: str) -> None:
    path = tmp_path / (make if make != "long" else "x" * 300)
    if make == "directory":
        path.mkdir()
    elif make == "link":
        path.symlink_to(tmp_path / "gone")
    words = {"directory": "is a directory", "link": "no such file", "long": "cannot be read"}[make]
    with pytest.raises(InvalidInput, match=words) as caught:
        read_deployments([path])
    assert str(path) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(file: Path) -> None:
    file.chmod(0)
    with pytest.raises(InvalidInput, match=r"mamba\.yaml: cannot be read: .*Permission denied"):
        read_deployments([file])


@pytest.mark.parametrize("host", ["2001:db8::1", "192.0.2.1", "no.such.host.invalid"])
@pytest.mark.parametrize("port", [0, 8123])
def test_a_host_that_is_not_ours_is_wrong_usage_whatever_the_port(host: str, port: int) -> None:
    with pytest.raises(InvalidInput, match=rf"^--host: {host} is not an address of this machine$"):
        front_port(host, port)


@pytest.mark.parametrize("port", [0, 8123])
def test_an_empty_host_does_not_open_the_endpoint_to_everybody(file: Path, port: int) -> None:
    with pytest.raises(InvalidInput, match="--host: is empty"):
        up(file, host="", port=port)


@pytest.mark.parametrize(
    "text", ["", " ", "80 Gi b", "-5Gi", "1e400", "\u0663Gi", "80Gib", "0x10", "nan", "Gi"]
)
def test_a_size_that_is_none_names_its_option(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--device-memory: "):
        size_option("--device-memory", text)


def test_an_escaped_character_in_a_relative_path_is_the_character(tmp_path: Path) -> None:
    """Expect the same as in an absolute file URI."""
    file = tmp_path / "mamba.yaml"
    assert local_uri("file://./my%20model", file) == str(tmp_path / "my model")
    assert local_uri("file://./100%", file) == str(tmp_path / "100%")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": None}, "field vocab_size is missing"),
        ({"layer_types": []}, "layer_types: is empty"),
        ({"model_type": ["granitemoehybrid"], "architectures": None}, "is not supported"),
        ({"num_attention_heads": 0}, "num_attention_heads: must be at least 1"),
    ],
)
def test_a_mistake_in_an_inline_configuration_names_file_and_field(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    config = {**load_yaml((CONFIGS / "granite-4.0-h-350m.json").read_text()), **changes}
    with pytest.raises(InvalidInput, match=rf"f\.yaml: spec\.model\.config: .*{words}"):
        facts_of_model("hf://a/b", config, tmp_path / "f.yaml")


def test_a_directory_with_damaged_weights_is_not_planned(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((CONFIGS / "granite-4.0-h-350m.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"<html>sign in to download</html>")
    with pytest.raises(
        InvalidInput, match=r"model\.safetensors: the file is truncated, or not a safetensors file"
    ):
        plan_directory(tmp_path, PlanFlags(device_memory=8 << 30))


@pytest.mark.parametrize("said", ["[N/A]", "", "No devices were found", "-1", "1.5"])
def test_a_driver_that_names_no_size_is_no_gpu(said: str, tmp_path: Path) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\necho '{said}'\n")
    script.chmod(0o755)
    assert gpu_memory([str(script)]) is None


@pytest.mark.parametrize("uri", ["builtin://tiny-recall", "hf://a/b"])
def test_a_model_in_the_place_of_a_file_is_told_what_serves_it(uri: str) -> None:
    with pytest.raises(InvalidInput, match=f"mambaserve serve {uri}"):
        up(Path(uri))


def test_a_directory_in_the_place_of_a_file_is_told_as_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"{tmp_path}: is a directory"):
        up(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInput, match=f"mambaserve serve {tmp_path}"):
        up(tmp_path)
