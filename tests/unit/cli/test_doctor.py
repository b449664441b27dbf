"""`mambaserve doctor` in real set-ups: it names each broken one, and says what to do about it."""

import json
import os
import resource
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from mamba_api.v1alpha1.schema import crd_yaml
from mamba_cli.doctor import engine
from mamba_cli.doctor.engine import Torch
from prefork import FORK_SERVER
from testcluster.control_plane import ControlPlane

CLOSED = "http://127.0.0.1:9"


def doctor(
    *options: str, limit: Callable[[], None] | None = None, **variables: str
) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the command; return its exit code and its findings by subject."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAMBASERVE_", "HF_"))}
    environment = {**clean, "HF_HUB_OFFLINE": "1", "KUBECONFIG": "", **variables}
    words = ("-m", "mamba_cli", "doctor", "--output", "json", *options)
    if limit is None:
        done = FORK_SERVER.run(*words, env=environment)
    else:
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120,
            preexec_fn=limit,
        )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, {finding["subject"]: finding for finding in json.loads(done.stdout)}


@pytest.mark.slow
def test_a_sound_machine_has_nothing_broken() -> None:
    code, findings = doctor()
    assert code == 0
    for subject in ("system", "packages", "torch", "environment"):
        assert findings[subject]["verdict"] == "ok", findings[subject]
    assert findings["cluster"]["verdict"] == findings["Redis"]["verdict"] == "note"


def test_each_wrong_address_file_and_variable_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not needed here')")
    file = tmp_path / "file"
    file.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, findings = doctor(
            "--port", str(taken.getsockname()[1]), "--timeout", "2",
            MAMBASERVE_KERNELS="fastest", MAMBASERVE_PORTT="1", MAMBASERVE_REDIS_URL="redis://127.0.0.1:9/0",
            HF_HUB_CACHE=str(file / "below"), HF_HUB_OFFLINE="0", HF_ENDPOINT=CLOSED,
            KUBECONFIG=str(tmp_path / "no-such-file"), TMPDIR=str(tmp_path / "nowhere"),
            PYTHONPATH=str(tmp_path),
        )  # fmt: skip
    assert code == 1
    expected = {
        "kernels": ("broken", "choose auto"),
        "environment": ("warning", "MAMBASERVE_PORT"),
        "Redis": ("broken", "MAMBASERVE_REDIS_URL"),
        "model cache": ("broken", "HF_HOME"),
        "Hub": ("warning", "HF_ENDPOINT"),
        "cluster": ("broken", "KUBECONFIG"),
        "temporary files": ("warning", "TMPDIR"),
        "port": ("warning", "--port"),
    }
    for subject, (verdict, cure) in expected.items():
        assert findings[subject]["verdict"] == verdict, findings[subject]
        assert cure in findings[subject]["cure"], findings[subject]


class RefusingHub(BaseHTTPRequestHandler):
    """A Hub that accepts no token."""

    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        pass


def test_a_broken_torch_a_missing_compiler_low_limits_and_a_refused_token_are_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    with HTTPServer(("127.0.0.1", 0), RefusingHub) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        code, findings = doctor(
            limit=limit, PYTHONPATH=str(tmp_path), CXX="no-such-compiler", XDG_CACHE_HOME=str(tmp_path),
            HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}", HF_HUB_OFFLINE="0", HF_TOKEN="hf_old",
        )  # fmt: skip
        thread.join()
    assert code == 1
    assert findings["torch"]["verdict"] == "broken"
    assert "libcudart.so.13" in findings["torch"]["text"]
    assert (findings["compiler"]["verdict"], findings["open files"]["verdict"]) == ("warning", "warning")
    assert "no-such-compiler" in findings["compiler"]["text"]
    assert findings["memory"]["verdict"] == "broken"
    assert "ulimit" in findings["memory"]["cure"]
    assert findings["Hub"]["verdict"] == "broken"
    assert "HF_TOKEN" in findings["Hub"]["cure"]


OLD_TORCH = """
__version__ = "2.8.1+cu126"
class version:
    cuda = "12.6"
class cuda:
    @staticmethod
    def is_available():
        raise RuntimeError("the NVIDIA driver on your system is too old")
"""
SILENT_CLUSTER = """
apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: here, context: {cluster: here, user: me}}]
users: [{name: me, user: {token: none}}]
current-context: here
"""


def test_an_old_torch_an_old_driver_a_kernel_cache_that_is_a_file_and_a_silent_cluster_are_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "torch.py").write_text(OLD_TORCH)
    (tmp_path / "cluster").write_text(SILENT_CLUSTER)
    (tmp_path / "file").touch()
    code, findings = doctor(
        "--timeout", "2", "--kubeconfig", str(tmp_path / "cluster"),
        PYTHONPATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "file"),
    )  # fmt: skip
    assert code == 1
    expected = {
        "torch": ("broken", "pip install --upgrade 'torch>=2.9'"),
        "GPU": ("broken", "nvidia-smi"),
        "kernels": ("warning", "XDG_CACHE_HOME"),
        "cluster": ("broken", "kubectl cluster-info"),
    }
    for subject, (verdict, cure) in expected.items():
        assert findings[subject]["verdict"] == verdict, findings[subject]
        assert cure in findings[subject]["cure"], findings[subject]
    assert "too old" in findings["GPU"]["text"]


def test_a_torch_is_as_new_as_the_wheel_wants_it_and_sees_the_gpu_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert f"torch>={'.'.join(map(str, engine.OLDEST_TORCH))}" in declared["optional-dependencies"]["server"]
    for version in ("2.9.0", "2.15.0+cpu", "3.0.0a0"):
        assert engine.torch(Torch(version, "13.2", [], "")).verdict == "ok"
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidia0")
    blind = engine.gpu(Torch("2.15.0", "", [], ""))
    assert (blind.verdict, "torch for CUDA" in blind.cure) == ("broken", True)


@pytest.mark.kube
@pytest.mark.slow
def test_a_cluster_without_the_crd_or_with_an_older_one_is_broken(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not needed here')")

    def crd() -> dict[str, Any]:
        return doctor("--kubeconfig", str(control_plane.kubeconfig), PYTHONPATH=str(tmp_path))[1]["CRD"]

    assert crd()["verdict"] == "broken"
    older = yaml.safe_load(crd_yaml())
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["plan"]["properties"]["headroom"]
    control_plane.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(older))
    found = crd()
    assert found["verdict"] == "broken"
    assert "status.plan.headroom" in found["text"]
