"""`mambaserve status`: what a gateway, its engines and one engine say of themselves, or nobody says."""

import json
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mamba_cli import main

Run = Callable[..., tuple[int, str, str]]

ENGINE = """
mambaserve_engine_up{model="m"} 1.0
mambaserve_engine_restarts_total{model="m"} 2.0
mambaserve_strategy_info{model="m",strategy="NoBuffer"} 1.0
mambaserve_requests_running{model="m"} 3.0
mambaserve_requests_waiting{model="m"} 4.0
mambaserve_slots{model="m",owner="live"} 5.0
mambaserve_slots{model="m",owner="cached"} 6.0
mambaserve_pages{model="m",owner="free"} 7.0
mambaserve_pages{model="m",owner="tree"} 8.0
mambaserve_prompt_tokens_total{model="m"} 200.0
mambaserve_cached_tokens_total{model="m"} 50.0
mambaserve_prefix_misses_total{cause="no_checkpoint",model="m"} 9.0
mambaserve_checkpoints{model="m"} 6.0
"""


class Site:
    """Servers that answer GETs with texts by path."""

    def __init__(self) -> None:
        self._servers: list[ThreadingHTTPServer] = []

    def start(self, answers: dict[str, str]) -> str:
        """Start a server with these answers (404 elsewhere) and return its address."""

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.send_response(200 if self.path in answers else 404)
                self.end_headers()
                self.wfile.write(answers.get(self.path, "{}").encode())

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        self._servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    def engine(self, role: str = "") -> str:
        ready = {"status": "ready", "transfer": {"role": role}} if role else {"status": "ready"}
        return self.start(
            {"/metrics": ENGINE, "/readyz": json.dumps(ready), "/version": '{"version": "1.2"}'}
        )

    def gateway(self, **ready: int) -> str:
        lines = [
            "mambaserve_gateway_in_flight 10.0",
            "mambaserve_gateway_queued 11.0",
            "mambaserve_gateway_held 0.0",
        ]
        for name, value in ready.items():
            lines.append(f'mambaserve_gateway_endpoint_ready{{endpoint="{name}"}} {value}')
            lines.append(f'mambaserve_gateway_endpoint_load{{endpoint="{name}"}} 12')
        told = {
            "status": "ready",
            "reasons": {name: "it loads" for name, value in ready.items() if not value},
        }
        return self.start({"/metrics": "\n".join(lines) + "\n", "/readyz": json.dumps(told)})

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()
    yield found
    found.close()


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mambaserve", "status", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def read(out: str) -> Any:
    return json.loads(out)


def test_an_engine_says_what_it_does(status: Run, site: Site) -> None:
    url = f"http://{site.engine()}"
    code, out, _ = status(f"{url}/v1")
    assert code == 0
    words = " ".join(out.split())
    for said in (
        f"engine {url} ready", "1.2", "strategy NoBuffer", "3 running, 4 waiting", "live 5, cached 6",
        "free 7, tree 8",
        "50 of 200 prompt tokens (25%)", "no_checkpoint 9", "restarts 2",
    ):  # fmt: skip
        assert said in words


def test_a_gateway_shows_each_engine_those_it_cannot_reach_by_what_the_gateway_knows(
    status: Run, site: Site
) -> None:
    engine = site.engine()
    url = f"http://{site.gateway(**{engine: 1, 'pod-a': 1, '127.0.0.1:9': 0})}"
    code, out, _ = status(url, "--output", "json")
    assert code == 0
    told = read(out)
    assert (told["kind"], told["ready"], told["in_flight"], told["queued"]) == ("gateway", 2, 10, 11)
    by_name = {each["name"]: each for each in told["engines"]}
    assert (by_name[engine]["strategy"], by_name[engine]["pages"]) == ("NoBuffer", {"free": 7, "tree": 8})
    assert (by_name["pod-a"]["ready"], by_name["pod-a"]["running"], by_name["pod-a"]["strategy"]) == (
        True,
        12,
        None,
    )
    assert (by_name["127.0.0.1:9"]["ready"], by_name["127.0.0.1:9"]["reason"]) == (False, "it loads")
    words = " ".join(status(url)[1].split())
    assert "2 of 3 engines ready; 10 in flight, 11 queued" in words
    assert "because it loads" in words


def test_engines_of_two_pools_are_shown_with_their_roles(status: Run, site: Site) -> None:
    prefill, decode = site.engine("prefill"), site.engine("decode")
    url = f"http://{site.gateway(**{prefill: 1, decode: 1})}"
    words = " ".join(status(url)[1].split())

    assert f"prefill engine {prefill} ready" in words
    assert f"decode engine {decode} ready" in words


def test_the_file_that_is_served_names_its_endpoints_and_those_that_are_away_are_said(
    status: Run, site: Site, tmp_path: Path
) -> None:
    port = site.engine().rpartition(":")[2]
    file = tmp_path / "f.yaml"
    body = {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": "one"},
        "spec": {"model": {"uri": "builtin://tiny-recall", "servedName": "m"}},
    }
    file.write_text(json.dumps(body))
    code, out, _ = status(str(file), "--port", port, "--output", "json")
    assert code == 0
    assert read(out)["url"] == f"http://127.0.0.1:{port}"
    body["spec"] = {"model": {"uri": "builtin://tiny-recall", "servedName": "other"}}
    file.write_text(json.dumps(body))
    code, out, err = status(str(file), "--port", port)
    assert (code, out) == (1, "")
    assert f"http://127.0.0.1:{port} serves m, not other" in err
    body["spec"] = {**body["spec"], "mode": "Plan"}  # type: ignore[dict-item]
    file.write_text(json.dumps(body))
    code, _, err = status(str(file))
    assert code == 1
    assert "nothing in it runs" in err


LIST = "/apis/serving.mambaserve.io/v1alpha1/namespaces/team-a/mambadeployments"
NANO = {
    "metadata": {"name": "nano", "namespace": "team-a", "generation": 3},
    "spec": {"model": {"uri": "hf://org/nano"}, "replicas": 2},
    "status": {
        "observedGeneration": 3, "readyReplicas": 2, "url": "http://nano.team-a.svc/v1",
        "plan": {"strategy": "ExtraBuffer", "slots": 40, "maxRunningRequests": 12, "headroom": "3.1Gi"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Serving", "message": "all is well"}],
    },
}  # fmt: skip
BROKEN = {
    "metadata": {"name": "broken", "namespace": "team-a", "generation": 2},
    "spec": {"model": {"uri": "hf://org/b"}},
    "status": {
        "observedGeneration": 1,
        "conditions": [
            {"type": "Degraded", "status": "True", "reason": "OutOfMemory", "message": "raise the memory"},
            {"type": "Available", "status": "True", "reason": "ReplicasAvailable", "message": "fine"},
            {"type": "Ready", "status": "False", "reason": "OutOfMemory", "message": "an engine was killed"},
        ],
    },
}
NEW: dict[str, Any] = {
    "metadata": {"name": "new", "namespace": "team-a"},
    "spec": {"model": {"uri": "hf://o/n"}},
}


@pytest.fixture
def cluster(site: Site, tmp_path: Path) -> list[str]:
    """Return the arguments that lead to an API server with three MambaDeployments, two on the first page."""
    answers = {
        f"{LIST}?limit=500": {"items": [NANO, BROKEN], "metadata": {"continue": "more"}},
        f"{LIST}?limit=500&continue=more": {"items": [NEW]},
        f"{LIST}/nano": NANO,
        LIST.replace("team-a", "empty") + "?limit=500": {"items": []},
    }
    return access(site, tmp_path, answers)


def access(site: Site, folder: Path, answers: dict[str, Any]) -> list[str]:
    """Return the arguments that lead to an API server with these answers by path."""
    server = site.start({path: json.dumps(answer) for path, answer in answers.items()})
    config = {
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://{server}"}}],
        "users": [{"name": "u", "user": {}}],
    }  # fmt: skip
    (folder / "kubeconfig").write_text(json.dumps(config))
    return ["--kubeconfig", str(folder / "kubeconfig"), "-n"]


def test_a_namespace_of_a_cluster_says_how_its_deployments_are(
    status: Run, cluster: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_URL", "http://127.0.0.1:9")  # of the other form: not a name
    code, out, _ = status(*cluster, "team-a", "-o", "json")
    assert code == 0
    broken, nano, new = read(out)
    assert (nano["ready"], nano["replicas"], nano["ready_replicas"], nano["slots"]) == ("True", 2, 2, 40)
    assert (broken["ready"], broken["reason"], broken["current"]) == ("False", "OutOfMemory", False)
    assert broken["troubles"] == {"Degraded": "raise the memory"}
    assert (new["ready"], new["message"]) == ("Unknown", "no operator has reconciled it yet")
    words = " ".join(status(*cluster, "team-a")[1].split())
    assert "nano ready 2 of 2 engines ready" in words
    assert "plan ExtraBuffer, 40 slots, 12 at once, 3.1Gi headroom" in words
    assert "because OutOfMemory: an engine was killed" in words
    assert "degraded raise the memory" in words
    assert "the operator has not seen the newest spec yet" in words


def test_two_pools_are_shown_with_the_plan_of_each(status: Run, site: Site, tmp_path: Path) -> None:
    plans = {"prefill": "NoBuffer", "decode": "ExtraBuffer"}
    pools = [
        {"name": name, "readyReplicas": 1, "desiredReplicas": 2, "plan": {"strategy": strategy, "slots": 40}}
        for name, strategy in plans.items()
    ]
    two = {**NANO, "status": {"pools": pools}}
    arguments = access(site, tmp_path, {f"{LIST}/nano": two})

    told = read(status("nano", *arguments, "team-a", "-o", "json")[1])
    assert (told["replicas"], [pool["name"] for pool in told["pools"]]) == (4, ["prefill", "decode"])
    words = " ".join(status("nano", *arguments, "team-a")[1].split())
    assert "prefill 1 of 2 engines ready; NoBuffer, 40 slots" in words
    assert "decode 1 of 2 engines ready; ExtraBuffer, 40 slots" in words


def test_one_deployment_of_a_cluster_is_asked_for_by_name(status: Run, cluster: list[str]) -> None:
    code, out, _ = status("nano", *cluster, "team-a", "-o", "json")
    assert (code, read(out)["name"]) == (0, "nano")
    code, out, err = status("other", *cluster, "team-a")
    assert (code, out) == (1, "")
    assert err == "error: there is no MambaDeployment other in the namespace team-a\n"
    assert status("http://x:1", *cluster, "team-a")[0] == 2


def test_an_empty_namespace_a_cluster_without_the_kind_and_no_cluster_are_told_apart(
    status: Run, cluster: list[str], tmp_path: Path
) -> None:
    code, out, err = status(*cluster, "empty")
    assert (code, out, err) == (0, "", "no MambaDeployment in the namespace empty\n")
    code, _, err = status(*cluster, "elsewhere")
    assert (code, "install the chart" in err) == (1, True)
    code, _, err = status("-n", "x", "--kubeconfig", str(tmp_path / "absent"))
    assert code == 2
    assert "absent: no such file" in err


def test_nobody_there_something_else_and_no_file_are_refused(status: Run, site: Site) -> None:
    code, out, err = status("http://127.0.0.1:9")
    assert (code, out) == (1, "")
    assert err.startswith("error: nothing answers at http://127.0.0.1:9")
    code, _, err = status(f"http://{site.start({'/metrics': 'up 1'})}", "-o", "json")
    assert code == 1
    assert "neither a gateway nor an engine" in err
    assert status("absent.yaml")[0] == 2


def test_an_address_without_its_scheme_is_told_how_it_is_written(status: Run) -> None:
    code, _, err = status("localhost:8000")
    assert (code, err) == (2, "error: localhost:8000 is not a URL: write http://localhost:8000\n")


def test_a_file_is_asked_where_its_endpoints_answer(status: Run, tmp_path: Path) -> None:
    file = tmp_path / "mamba.yaml"
    file.write_text(
        "apiVersion: serving.mambaserve.io/v1alpha1\nkind: MambaDeployment\nmetadata: {name: one}\n"
        "spec: {model: {uri: 'builtin://tiny-recall'}}\n"
    )
    code, _, err = status(str(file), "--host", "::1", "--port", "9")
    assert code == 1
    assert err.startswith("error: nothing answers at http://[::1]:9")
