"""A chart that is pushed to a registry is the file in dist/, and comes back by `helm pull`."""

import os
from pathlib import Path

import pytest

from model_stores import registry
from release import build
from release.errors import CannotRelease
from release.packages import run_program
from release.version import Checkout
from small_checkout import small_checkout
from testcluster.build import cache_root, inputs_hash, sources

HELM = cache_root() / inputs_hash(sources(), os.uname().machine) / "bin/helm"


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("MAMBASERVE_GATES") != "large", reason="a registry and helm: make gates")
@pytest.mark.skipif(not HELM.exists(), reason="there is no helm yet: `make kube` builds it")
def test_a_pushed_chart_is_the_file_of_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = small_checkout(tmp_path / "project")
    # Packages have tests of their own, and cost more than the rest.
    monkeypatch.setattr(build, "build_packages", lambda *_: None)
    monkeypatch.setenv("PATH", f"{HELM.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "registry").mkdir()
    with registry(tmp_path / "registry") as store:
        charts = f"oci://{store.host}/charts"
        monkeypatch.setenv("HELM_REGISTRY_CONFIG", str(tmp_path / "config.json"))
        with pytest.raises(CannotRelease, match="helm push"):
            build.build(project, tmp_path / "dist", charts=charts, plain_http=True)
        assert (tmp_path / "dist" / build.SUMS).exists()
        (tmp_path / "config.json").write_text(store.login)
        build.build(project, tmp_path / "dist", charts=charts, plain_http=True)
        run_program(["helm", "pull", f"{charts}/mambaserve", "--plain-http"], tmp_path)
    pulled, packed = tmp_path / "mambaserve-0.1.0.tgz", tmp_path / "dist/mambaserve-0.1.0.tgz"
    assert pulled.read_bytes() == packed.read_bytes()


@pytest.mark.parametrize(
    ("charts", "changed", "message"),
    [
        ("registry.test/charts", False, "write oci://HOST/PATH"),
        ("oci://registry.test/charts", True, "commit them"),
    ],
)
def test_a_push_that_cannot_succeed_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, charts: str, changed: bool, message: str
) -> None:
    facts = Checkout("0" * 40, 0, last="0.0.1", changed=changed)
    monkeypatch.setattr(build, "read_checkout", lambda _: facts)
    with pytest.raises(CannotRelease, match=message):
        build.build(build.ROOT, tmp_path / "dist", charts=charts)
    assert not (tmp_path / "dist").exists()
