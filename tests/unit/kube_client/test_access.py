"""The way into a cluster: a pod's account or a kubeconfig, and what a broken one is told."""

from pathlib import Path

import pytest
from kubernetes.aio.config import incluster_config, kube_config

from mamba_kube import access
from mamba_kube.access import load_access
from mamba_kube.errors import NoClusterAccess

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u%s}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.mark.parametrize(("context", "namespace"), [("", "default"), (", namespace: models", "models")])
async def test_the_namespace_is_the_context_s_or_default(
    context: str, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG % context)
    found = await load_access(str(file))
    assert (found.configuration.host, found.namespace) == ("https://127.0.0.1:9", namespace)


@pytest.mark.parametrize(
    "text", ["", "current-context: nowhere\ncontexts: []\n", "[1", "text", "clusters: 5\n"], ids=range(5)
)
async def test_an_unusable_kubeconfig_is_told_with_the_option_that_helps(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(NoClusterAccess, match="--kubeconfig FILE"):
        await load_access(str(file))


async def test_a_kubeconfig_that_is_not_there_is_said_to_be_none(tmp_path: Path) -> None:
    file = tmp_path / "absent"
    with pytest.raises(NoClusterAccess, match=f"--kubeconfig: {file}: no such file"):
        await load_access(str(file))


async def test_where_there_is_no_kubeconfig_at_all_the_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access, "SERVICE_ACCOUNT_NAMESPACE", tmp_path / "absent")
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", f"{tmp_path}/config:{tmp_path}/other")
    said = f"no usable Kubernetes configuration: {tmp_path}/config:{tmp_path}/other: no such file; pass "
    with pytest.raises(NoClusterAccess, match=said):
        await load_access(None)
    assert caplog.records == []
    (tmp_path / "other").write_text(KUBECONFIG % "")
    assert (await load_access(None)).configuration.host == "https://127.0.0.1:9"


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a pod of the namespace "models"; the token is `pod / "token"`."""
    (tmp_path / "namespace").write_text("models\n")
    (tmp_path / "token").write_text("t-1")
    (tmp_path / "ca.crt").write_text("a certificate")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


async def test_in_a_pod_its_account_and_namespace_are_used_unless_a_file_is_given(
    pod: Path, tmp_path: Path
) -> None:
    found = await load_access(None)
    assert (found.configuration.host, found.namespace) == ("https://10.0.0.1:443", "models")
    file = tmp_path / "config"
    file.write_text(KUBECONFIG % "")
    assert (await load_access(str(file))).namespace == "default"


async def test_in_a_pod_without_an_api_server_the_advice_is_the_same(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(variable)
    with pytest.raises(NoClusterAccess, match="--kubeconfig FILE"):
        await load_access(None)


async def test_a_kubeconfig_is_never_written(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG % "")
    file.chmod(0o400)
    before = file.stat().st_mtime_ns
    await load_access(str(file))
    assert file.stat().st_mtime_ns == before


def test_outside_of_a_pod_there_is_no_namespace_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "SERVICE_ACCOUNT_NAMESPACE", tmp_path / "absent")
    assert access.pod_namespace() is None
