"""`mambaserve rollout`: a person sees the canary and asks for exactly the candidate that the status shows."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from mamba_api import names
from mamba_cli.errors import CliError
from mamba_cli.main import application

PATH = "/apis/serving.mambaserve.io/v1alpha1/namespaces/models/mambadeployments/nano"
CANARY = {
    "revision": "0123456789", "stableRevision": "abcdefghij", "phase": "Waiting", "step": 2, "steps": 3,
    "weight": 25, "engines": "1/1", "requests": 420,
    "verdict": "the comparison has found nothing against the candidate",
    "comparisons": [{"measure": "errors", "candidate": "1 of 420", "stable": "3 of 1260", "looks": 9}],
}  # fmt: skip


class Cluster:
    """An API server that holds one MambaDeployment and keeps what is patched."""

    def __init__(self, folder: Path) -> None:
        self.status: dict[str, Any] = {"canary": CANARY, "rollout": {"readyRevision": "abcdefghij"}}
        self.patches: list[dict[str, Any]] = []
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                known = self.path.partition("?")[0] == PATH
                self.send_response(200 if known else 404)
                self.end_headers()
                meta = {"name": "nano", "namespace": "models"}
                self.wfile.write(json.dumps({"metadata": meta, "status": cluster.status}).encode())

            def do_PATCH(self) -> None:
                assert self.path.partition("?")[0] == PATH
                cluster.patches.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        config = {
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
        }  # fmt: skip
        self.config = folder / "kubeconfig"
        self.config.write_text(json.dumps(config))

    def run(self, *command: str, name: str = "nano") -> str:
        """Return what the command prints. Raises the error with which it ends."""
        arguments = ["rollout", *command, name, "-n", "models", "--kubeconfig", str(self.config)]
        return CliRunner().invoke(application(arguments[0]), arguments, catch_exceptions=False).output


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.server.shutdown()
    cluster.server.server_close()


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("pause", "pause 0123456789"),
        ("resume", "resume 0123456789 2"),
        ("promote", "promote 0123456789"),
        ("abort", "abort 0123456789"),
    ],
)
def test_a_request_names_the_candidate_that_is_shown(cluster: Cluster, verb: str, text: str) -> None:
    assert f"asked the operator to {verb} the canary of revision 0123456789" in cluster.run(verb)
    assert cluster.patches == [{"metadata": {"annotations": {names.ANNOTATION_CANARY: text}}}]


def test_the_status_has_the_step_and_the_numbers_behind_the_verdict(cluster: Cluster) -> None:
    words = " ".join(cluster.run("status").split())
    for part in ("revision 0123456789 beside abcdefghij", "step 2 of 3", "weight 25%", "requests 420",
                 "errors 1 of 420; beside it 3 of 1260 (9 looks)"):  # fmt: skip
        assert part in words
    assert json.loads(cluster.run("status", "--output", "json"))["canary"] == CANARY
    answers = {"measure": "answers", "candidate": "3 of 40 (7.5%) texts differ", "stable": "the client's"}
    copied = {"step": 0, "weight": 0, "shadow": 10, "comparisons": [answers]}
    cluster.status = {"canary": {**CANARY, **copied}}
    words = " ".join(cluster.run("status").split())
    for part in ("step copies, before the first of 3 steps", "copies 10% of the conversations",
                 "requests 420 compared", "answers 3 of 40 (7.5%) texts differ"):  # fmt: skip
        assert part in words
    cluster.run("resume")
    assert cluster.patches == [
        {"metadata": {"annotations": {names.ANNOTATION_CANARY: "resume 0123456789 0"}}}
    ]
    cluster.status = {"rollout": {
        "readyRevision": "a", "failedRevision": "b", "reason": "TtftRose", "message": "it was slow",
    }}  # fmt: skip
    assert "revision b was taken back: TtftRose: it was slow" in cluster.run("status")


@pytest.mark.parametrize(
    ("verb", "status", "words"),
    [
        ("abort", {}, "no canary is under way"),
        ("promote", {"canary": {**CANARY, "phase": "Promoting"}}, "promoted already"),
        ("resume", {"canary": {**CANARY, "phase": "Running"}}, "neither paused nor waiting"),
    ],
)
def test_what_cannot_apply_is_refused_and_nothing_is_written(
    cluster: Cluster, verb: str, status: dict[str, Any], words: str
) -> None:
    cluster.status = status
    with pytest.raises(CliError, match=words):
        cluster.run(verb)
    assert cluster.patches == []


def test_a_deployment_that_does_not_exist_is_named(cluster: Cluster) -> None:
    with pytest.raises(CliError, match="there is no MambaDeployment other"):
        cluster.run("pause", name="other")
