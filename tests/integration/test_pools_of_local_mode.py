"""Both pools of a deployment as processes of `mambaserve up`, and a state that goes from one to the other."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from servers import Command

pytestmark = pytest.mark.slow

POOLS = {
    "apiVersion": "serving.mambaserve.io/v1alpha1",
    "kind": "MambaDeployment",
    "metadata": {"name": "two"},
    "spec": {
        "model": {"uri": "builtin://tiny-recall"},
        "resources": {"gpus": 0},
        # Pages with the head's layer go from pool to pool.
        "engine": {"speculation": "Mtp"},
        "memory": {"arena": "16Mi"},
        "stateCache": {"hostMemory": "16Mi"},
        "disaggregation": {"decode": {"stateCache": {"strategy": "ExtraBuffer"}}},
    },
}
PROMPT = {"prompt": "the colour of the house is blue. " * 12, "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start `up` with two pools and return the folder with the settings of its engines."""
    folder = tmp_path_factory.mktemp("two")
    file = folder / "two.yaml"
    file.write_text(yaml.safe_dump(POOLS))
    # Records of what runs are in a folder of this test, so that no other `two` of this user is stopped.
    own = {"XDG_RUNTIME_DIR": str(folder)}
    with Command("up", str(file), "--port", "0", "--logs", str(folder), "--no-color", env=own) as command:
        command.wait_for("two is ready")
        yield folder
        with Command("ps", "-o", "json", env=own) as ps:
            assert ps.wait() == 0
        [listed] = json.loads(ps.output)
        assert (listed["name"], listed["pid"], listed["model"]) == ("two", command.process.pid, "two")
        with Command("stop", "two", env=own) as stop:
            assert stop.wait() == 0, stop.output
        assert command.wait() == 0, command.output


def settings(logs: Path, pool: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((logs / f"two-{pool}.json").read_text())
    return document


def answer(port: int, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
    names = {
        "content-type": "application/json",
        **{key.replace("_", "-"): value for key, value in headers.items()},
    }
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, names)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def test_each_engine_runs_with_the_role_and_the_plan_of_its_pool(logs: Path) -> None:
    for pool in ("prefill", "decode"):
        engine = settings(logs, pool)
        plan = answer(engine["admin_port"], "/admin/plan")
        assert answer(engine["port"], "/readyz")["transfer"]["role"] == pool
        assert (plan["role"], plan["stateDtype"]) == (pool, engine["state_dtype"])
        assert (plan["strategy"], plan["arenaBytes"]) == (engine["strategy"], engine["arena_bytes"])
        assert plan["tiers"][0]["bytes"] == 16 << 20


def test_a_prompt_of_the_prefill_pool_is_resumed_by_the_decode_pool(logs: Path) -> None:
    prefill, decode = settings(logs, "prefill")["port"], settings(logs, "decode")["port"]
    alone = answer(prefill, "/v1/completions", PROMPT)
    given = answer(prefill, "/v1/completions", PROMPT, x_mambaserve_hand_over="export")["handover"]
    header = "address={address};incarnation={incarnation};export={export};depth={depth}".format(**given)
    resumed = answer(decode, "/v1/completions", PROMPT, x_mambaserve_hand_over=header)

    assert resumed["usage"]["prompt_tokens_details"]["cached_tokens"] == given["depth"] > 0
    assert resumed["choices"][0]["text"] == alone["choices"][0]["text"]
