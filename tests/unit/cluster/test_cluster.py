"""The handles that tests hold on a cluster: commands fail with what was said, manifests arrive whole."""

import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from testcluster.api import ApiClient
from testcluster.cluster import Cluster
from testcluster.errors import ClusterError, CommandFailed, Refused
from testcluster.free_ports import free_port
from testcluster.kubectl import Kubectl, Manifest
from testcluster.pki import Authority, Certificate, Identity

SCRIPT = """\
#!/bin/sh
case "$1" in
  fail) echo "Error from server (NotFound): no such thing" >&2; exit 4 ;;
  get) echo '{"args": "'"$*"'"}' ;;
  slow) exec sleep 5 ;;
  *) echo "$KUBECONFIG" ;;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    program = tmp_path / "kubectl"
    program.write_text(SCRIPT)
    program.chmod(0o755)
    return Kubectl(program, tmp_path / "config")


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Certificate]:
    authority = Authority(tmp_path_factory.mktemp("keys") / "pki")
    return authority, authority.issue(Identity("both", "/CN=both", ("IP:127.0.0.1",)))


POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "there"}}
WIDGET = {"apiVersion": "test.io/v2", "kind": "Widget", "metadata": {"name": "w"}}
PODS = {
    "resource": "pods", "singularResource": "pod", "shortNames": ["po"], "scope": "Namespaced",
    "responseKind": {"kind": "Pod"},
}  # fmt: skip
WIDGETS = {
    "resource": "widgets", "singularResource": "widget", "scope": "Cluster",
    "responseKind": {"kind": "Widget"},
}  # fmt: skip
CLUSTER = {
    "/api": {"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [PODS]}]}]},
    "/apis": {
        "items": [
            {"metadata": {"name": "test.io"}, "versions": [{"version": "v2", "resources": [WIDGETS]}]},
        ]
    },
    "/api/v1/namespaces/ns/pods/there": {"kind": "Pod", "metadata": {"name": "there"}},
    "/api/v1/namespaces/ns/pods?labelSelector=app%3Dweb": {
        "apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "there"}}],
    },
    "/apis/test.io/v2/widgets": {
        "apiVersion": "test.io/v2", "kind": "WidgetList", "items": [{"metadata": {"name": "w"}}],
    },
}  # fmt: skip


APPLIED: list[tuple[str, Any]] = []


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers by path, and says what it was sent."""

    def do_GET(self) -> None:
        if self.path == "/cut":
            return
        if self.path.endswith("/bad"):
            self.answer(HTTPStatus.FORBIDDEN, json.dumps({"message": "broken"}))
            return
        if self.path in CLUSTER:
            self.answer(HTTPStatus.OK, json.dumps(CLUSTER[self.path]))
            return
        found = self.path in ("/readyz", "/json")
        text = json.dumps({"path": self.path}) if self.path == "/json" else "ok"
        self.answer(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND, text)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(HTTPStatus.CREATED, json.dumps({"sent": body, "type": self.headers["Content-Type"]}))

    def do_PATCH(self) -> None:
        APPLIED.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        taken = self.headers["Content-Type"] == "application/apply-patch+yaml" and "/bad?" not in self.path
        status = HTTPStatus.CREATED if taken else HTTPStatus.FORBIDDEN
        self.answer(status, json.dumps({"message": "broken"}))

    def answer(self, status: HTTPStatus, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if text.startswith("{") else "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


SETUP = Answers.setup


@pytest.fixture
def client(identity: tuple[Authority, Certificate]) -> Iterator[ApiClient]:
    """Yield a client of a server that requires its certificate."""
    authority, pair = identity
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.root.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pair.certificate, pair.key)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        address = f"https://127.0.0.1:{server.server_address[1]}"
        made = ApiClient(address, authority.root.certificate, pair)
        yield made
        made.close()
        server.shutdown()
        thread.join()


def test_a_command_finds_its_cluster_by_the_kubeconfig(kubectl: Kubectl, tmp_path: Path) -> None:
    assert kubectl("version") == f"{tmp_path / 'config'}\n"


def test_a_failing_command_says_what_it_said(kubectl: Kubectl) -> None:
    with pytest.raises(CommandFailed, match=r"`kubectl fail now` ended with 4: .*no such thing") as caught:
        kubectl("fail", "now")

    assert caught.value.returncode == 4
    assert "NotFound" in caught.value.stderr


def test_a_command_that_does_not_end_is_an_error(kubectl: Kubectl) -> None:
    with pytest.raises(CommandFailed, match=r"did not end within 0\.2 s"):
        kubectl("slow", timeout=0.2)


def test_json_asks_for_json(kubectl: Kubectl) -> None:
    assert kubectl.json("get", "pods")["args"] == "get pods -o json"


@pytest.mark.parametrize(
    "manifest",
    [[WIDGET, POD], f"{json.dumps(WIDGET)}\n---\n# nothing\n---\n{json.dumps(POD)}\n"],
    ids=["objects", "text"],
)
def test_objects_are_applied_where_the_server_keeps_their_kind(
    kubectl: Kubectl, client: ApiClient, tmp_path: Path, manifest: Manifest
) -> None:
    cluster = Cluster(tmp_path / "config", kubectl, client)
    APPLIED.clear()

    cluster.apply(manifest, "ns")

    assert [path.partition("?")[0] for path, _ in APPLIED] == [
        "/apis/test.io/v2/widgets/w", "/api/v1/namespaces/ns/pods/there",
    ]  # fmt: skip
    assert [body for _, body in APPLIED] == [WIDGET, POD]


def test_a_namespace_of_its_own_counts_more_and_what_the_server_says_is_told(
    kubectl: Kubectl, client: ApiClient, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path / "config", kubectl, client)
    elsewhere = {**POD, "metadata": {"name": "bad", "namespace": "elsewhere"}}
    APPLIED.clear()

    with pytest.raises(Refused, match=r"Pod bad: 403 broken"):
        cluster.apply(elsewhere, "ns")

    assert APPLIED[0][0].startswith("/api/v1/namespaces/elsewhere/pods/bad?")


def test_a_missing_object_is_none_and_another_error_is_one(
    kubectl: Kubectl, client: ApiClient, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path / "config", kubectl, client)

    assert cluster.get("pod", "missing", "ns") is None
    assert cluster.get("po", "there", "ns") == {"kind": "Pod", "metadata": {"name": "there"}}
    with pytest.raises(ClusterError, match="broken"):
        cluster.get("Pod", "bad", "ns")
    with pytest.raises(ClusterError, match="no resource 'gadgets'"):
        cluster.list("gadgets")


def test_objects_of_several_kinds_are_listed_with_their_kind(
    kubectl: Kubectl, client: ApiClient, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path / "config", kubectl, client)
    assert cluster.list("pods", "ns", selector="app=web") == [POD]
    assert cluster.list("widgets.test.io", "ns") == [WIDGET]
    assert cluster.list("widgets,widget") == [WIDGET, WIDGET]


def test_waiting_returns_the_first_true_value(kubectl: Kubectl, client: ApiClient, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "config", kubectl, client)
    answers = iter([0, 0, 7])

    assert cluster.wait_for(lambda: next(answers), "seven") == 7
    with pytest.raises(ClusterError, match=r"waited 0.2 s for the moon; last seen: \[\]"):
        cluster.wait_for(list[int], "the moon", timeout=0.2)


def test_the_client_parses_json_and_leaves_text(client: ApiClient) -> None:
    assert client.request("GET", "/json") == (200, {"path": "/json"})
    assert client.request("GET", "/readyz") == (200, "ok")
    assert client.request("GET", "/nowhere")[0] == 404


def test_the_client_sends_json_of_the_kind_that_is_asked_for(client: ApiClient) -> None:
    status, answer = client.request("POST", "/", {"a": 1}, content_type="application/merge-patch+json")

    assert status == 201
    assert answer == {"sent": {"a": 1}, "type": "application/merge-patch+json"}


def test_only_a_server_that_says_ok_answers(client: ApiClient) -> None:
    assert client.answers()
    assert not client.answers("/nowhere")
    assert not client.answers("/cut")


def test_a_server_that_hangs_up_is_an_os_error(client: ApiClient) -> None:
    with pytest.raises(OSError, match="GET /cut"):
        client.request("GET", "/cut")


def test_what_is_read_goes_over_one_connection_and_over_another_when_the_server_ended_it(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "protocol_version", "HTTP/1.1")
    connections = []
    monkeypatch.setattr(Answers, "setup", lambda self: (connections.append(self), SETUP(self)))

    assert [client.request("GET", "/readyz")[0] for _ in range(3)] == [200] * 3
    assert len(connections) == 1
    connections[0].connection.shutdown(socket.SHUT_RDWR)
    assert client.request("GET", "/readyz") == (200, "ok")
    assert client.request("POST", "/", {})[0] == 201
    assert len(connections) == 3


def test_nobody_answers_where_nobody_listens(identity: tuple[Authority, Certificate]) -> None:
    authority, pair = identity
    silent = ApiClient(f"https://127.0.0.1:{free_port()}", authority.root.certificate, pair)

    assert not silent.answers()
