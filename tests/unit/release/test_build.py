"""`make release` on a small checkout: the same bytes twice, all files named, and what it refuses."""

import hashlib
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from parsed_yaml import load_yaml
from release import build
from release.errors import CannotRelease
from release.notes import release_notes
from release.version import Checkout
from small_checkout import NOTES, git, small_checkout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkout(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def dist(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    assert build.build(project, folder, library=False) == "0.1.0"
    return folder


@pytest.mark.slow
def test_a_release_has_every_file_and_its_checksum(dist: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (dist / build.SUMS).read_text().splitlines())
    assert set(sums) == {
        "mambaserve-0.1.0-py3-none-any.whl", "mambaserve-0.1.0.tar.gz", "mambaserve-0.1.0.tgz",
        "mambaserve-0.1.0.yaml", "mambaserve-crds-0.1.0.yaml", "mambaserve-0.1.0.cdx.json",
        "release-notes-0.1.0.md",
    }  # fmt: skip
    for name, digest in sums.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
    assert (dist / "release-notes-0.1.0.md").read_text() == "## 0.1.0 (2026-12-01)\n\n- first\n"
    kinds = yaml.safe_load_all((dist / "mambaserve-crds-0.1.0.yaml").read_text())
    assert {one["spec"]["names"]["kind"] for one in kinds} == {"MambaDeployment", "MambaGateway"}
    materials = json.loads((dist / "mambaserve-0.1.0.cdx.json").read_text())
    torch = next(each for each in materials["components"] if each["name"] == "torch")
    assert torch["hashes"]
    assert torch["properties"] == [{"name": "mambaserve:lock", "value": "server"}]


@pytest.mark.slow
def test_another_clone_elsewhere_gives_the_same_bytes(project: Path, dist: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(project), "clone")
    clone = tmp_path / "clone"
    for path in clone.rglob("*"):
        if ".git" not in path.parts and path.is_file():
            # As another umask would have it, and at another time.
            path.chmod(0o600)
            os.utime(path, (1, 1))
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / build.SUMS).write_text("0  mambaserve-0.0.9.tgz\n")
    (tmp_path / "dist/mambaserve-0.0.9.tgz").write_text("an earlier release")
    (tmp_path / "dist/site.html").write_text("no file of a release")
    build.build(clone, tmp_path / "dist", library=False)
    assert (tmp_path / "dist" / build.SUMS).read_text() == (dist / build.SUMS).read_text()
    assert not (tmp_path / "dist/mambaserve-0.0.9.tgz").exists()
    assert (tmp_path / "dist/site.html").exists()


@pytest.mark.slow
def test_a_commit_after_the_tag_is_a_development_version_everywhere(project: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(project), "clone")
    clone = tmp_path / "clone"
    (clone / "libs/mamba_api/new.py").write_text('"""A file that was not committed."""\n')
    (clone / "libs/mamba_api/cache.pyc").write_text("a file that git ignores")
    (clone / ".git/info/exclude").write_text("*.pyc\n")
    version = build.build(clone, tmp_path / "dist", library=False)
    assert version.startswith("0.1.1.dev0+g")
    assert version.endswith(".changed")
    [wheel] = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        listed = archive.namelist()
        names = archive.read("mamba_api/names.py").decode()
    assert "mamba_api/new.py" in listed
    assert "mamba_api/cache.pyc" not in listed
    [chart] = (tmp_path / "dist").glob("*.tgz")
    with tarfile.open(chart) as archive_of_chart:
        first = archive_of_chart.next()
        assert first is not None
        assert first.name == "mambaserve/Chart.yaml"
        content = archive_of_chart.extractfile(first)
        assert content is not None
        about = load_yaml(content.read().decode())
    assert chart.name == f"mambaserve-{about['version']}.tgz"
    # The operator's default images are those of the chart.
    assert f'mambaserve:{about["appVersion"]}"' in names
    with pytest.raises(CannotRelease, match="commit them before a chart is pushed"):
        build.build(clone, tmp_path / "dist", charts="oci://127.0.0.1:9/charts")


@pytest.mark.parametrize(
    ("text", "version", "message"),
    [
        (NOTES, "0.3.0", r"no section 0\.3\.0"),
        (NOTES, "0.2.0", "has no date"),
        ("# Changelog\n\n## 0.1.0 (2026-12-01)\n\n", "0.1.0", "is empty"),
        ("# Changelog\n", "0.1.0", "has no section"),
    ],
)
def test_a_tag_without_a_whole_section_of_the_changelog_is_refused(
    text: str, version: str, message: str
) -> None:
    with pytest.raises(CannotRelease, match=message):
        release_notes(text, version, released=True)


@pytest.mark.slow
def test_a_failed_build_leaves_the_release_before_it(project: Path, dist: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(project), "clone")
    (tmp_path / "clone/README.md").unlink()
    before = {path.name: path.read_bytes() for path in dist.iterdir()}
    with pytest.raises(CannotRelease, match="README"):
        build.build(tmp_path / "clone", dist, library=False)
    assert {path.name: path.read_bytes() for path in dist.iterdir()} == before


def test_an_image_lies_beside_its_bill_under_the_tag_that_the_chart_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "built.tar").write_text("an image")
    (tmp_path / "built.cdx.json").write_text("its bill")
    (tmp_path / "files").mkdir()
    monkeypatch.setattr(build, "run_program", lambda *_, **__: f"{tmp_path}/built.tar\n")
    checkout = Checkout("0" * 40, 0)
    build._images(build.Release(tmp_path, tmp_path / "files", "0.2.0.dev7+g012345678", checkout))
    assert {path.name: path.read_text() for path in (tmp_path / "files").iterdir()} == {
        f"{name}-0.2.0-dev.7.g012345678{ending}": content
        for name in ("mambaserve", "mambaserve-control-plane")
        for ending, content in ((".oci.tar", "an image"), (".oci.cdx.json", "its bill"))
    }
