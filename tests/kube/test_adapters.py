"""A change of adapters on a real API server: a real engine loads them, and no pod is replaced."""

import base64
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mamba_server
from mamba_api import names
from operator_objects import nano_config
from operator_process import OperatorProcess, running_operator
from servers import Server, call
from testcluster.control_plane import ControlPlane
from testmodels.adapters import shapes_in, write_adapter

pytestmark = pytest.mark.kube
assert mamba_server.__file__ is not None
TINY = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"


@pytest.fixture
def operator(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running_operator(plane.kubeconfig, tmp_path / "operator.log", ["--namespace", namespace]) as running:
        yield running


@pytest.fixture
def uris(tmp_path: Path) -> dict[str, str]:
    shapes = shapes_in(TINY, "q_proj")
    paths = {
        name: write_adapter(tmp_path / name, shapes, seed=seed, size=0.25)
        for seed, name in enumerate(("sql", "sql-v2", "french"))
    }
    paths["other"] = write_adapter(tmp_path / "other", {"model.layers.0.mixer.q_proj": (8, 8)})
    return {name: f"file://{path}" for name, path in paths.items()}


def deployment(**adapters: str) -> dict[str, Any]:
    listed = [{"name": name, "uri": uri} for name, uri in adapters.items()]
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "nano"},
        "spec": {
            "model": {"uri": "pvc://models/nano", "config": nano_config(), "adapters": listed},
            "memory": {"deviceMemory": "80Gi"},
        },
    }


@pytest.mark.slow
def test_adapters_change_in_a_running_engine_and_one_that_cannot_be_loaded_loses_nothing(
    plane: ControlPlane, namespace: str, operator: OperatorProcess, uris: dict[str, str], tmp_path: Path
) -> None:
    def pods() -> list[dict[str, Any]]:
        return plane.list("pods", namespace)

    def token() -> str | None:
        found = plane.list("secrets", namespace)
        data = [one["data"] for one in found if one["metadata"]["name"].startswith("nano-admin-")]
        return base64.b64decode(data[0][names.ADMIN_TOKEN_KEY]).decode() if data else None

    def condition(type_: str) -> tuple[str, str, str]:
        status = (plane.get("mdep", "nano", namespace) or {}).get("status", {})
        for one in status.get("conditions", ()):
            if one["type"] == type_:
                return one["status"], one["reason"], one["message"]
        return "", "", ""

    def settings() -> list[str]:
        config = plane.get("configmap", "nano-engine", namespace) or {}
        return list(json.loads(config["data"]["engine.json"]).get("lora", ()))

    def wait(look: Callable[[], Any], what: str) -> Any:
        return plane.wait_for(look, f"{what}; {operator.text[-2000:]}", timeout=60.0)

    plane.apply(deployment(sql=uris["sql"], old=uris["french"]), namespace)
    wait(lambda: len(pods()) == 2, "the pods")
    file = tmp_path / "token"
    file.write_text(wait(token, "the token"))
    address = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(254) + 1}.1"
    with Server(
        TINY, "--lora", f"sql={uris['sql']}", "--lora", f"old={uris['french']}", "--max-loras", "4",
        "--admin-host", address, "--admin-port", str(names.ADMIN_PORT), "--admin-token-file", str(file),
        "--arena-bytes", "16Mi", "--served-model-name", "nano",
    ) as engine:  # fmt: skip

        def served() -> set[str]:
            return {card["id"] for card in call(engine.url + "/v1/models")[1]["data"]}

        for pod in pods():
            ready = [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ]
            status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
            path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
            plane.api.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
        wait(lambda: condition("UpToDate")[0] == "True", "the engine")
        before = {pod["metadata"]["uid"] for pod in pods()}

        plane.apply(deployment(sql=uris["sql-v2"], french=uris["french"]), namespace)
        wait(lambda: settings() == [f"sql={uris['sql-v2']}", f"french={uris['french']}"], "the adapters")
        assert served() == {"nano", "sql", "french"}
        names_file = (plane.get("configmap", "nano-engine", namespace) or {})["data"]["adapters.txt"]
        assert names_file == "sql\nfrench\n"
        wait(lambda: condition("UpToDate")[0] == "True", "the end of the change")

        plane.apply(deployment(sql=uris["sql-v2"], wrong=uris["other"]), namespace)
        wait(lambda: condition("Degraded")[1] == "AdapterNotLoaded", "the refusal")
        assert condition("UpToDate")[:2] == ("False", "SwitchingAdapters")
        engine_pod = next(pod for pod in pods() if "-engine-" in pod["metadata"]["name"])["metadata"]["name"]
        assert f"engine {engine_pod}: adapter wrong: " in condition("Degraded")[2]
        assert served() == {"nano", "sql", "french"}
        assert settings() == [f"sql={uris['sql-v2']}", f"french={uris['french']}"]
        assert condition("Ready")[0] == "True"
        assert {pod["metadata"]["uid"] for pod in pods()} == before, "no pod was replaced"
