"""The version of a checkout follows from its tags, and sorts where it belongs."""

import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from release import version
from release.errors import CannotRelease
from release.stamp import PLACES, stamp
from release.version import Checkout, is_release, tag_of, version_of

ROOT = Path(version.__file__).parents[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def checkout(tag: str = "", last: str = "", *, changed: bool = False) -> Checkout:
    return Checkout(COMMIT, 0, (tag,) if tag else (), last, 0 if tag else 7, changed)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (checkout("0.2.0"), "0.2.0"),
        (checkout("0.2.0", changed=True), "0.2.1.dev0+g012345678.changed"),
        (checkout(), "0.2.0.dev7+g012345678"),
        (checkout(last="0.1.9"), "0.2.0.dev7+g012345678"),
        (checkout(last="0.2.0"), "0.2.1.dev7+g012345678"),
        (checkout(last="0.10.0"), "0.10.1.dev7+g012345678"),
        (checkout(last="0.2.0rc1", changed=True), "0.2.0.dev7+g012345678.changed"),
    ],
)
def test_only_an_unchanged_commit_with_a_tag_is_a_release(facts: Checkout, expected: str) -> None:
    assert version_of(facts, "0.2.0") == expected
    assert is_release(expected) == (expected == "0.2.0")
    if facts.last and not Version(facts.last).is_prerelease:
        assert Version(facts.last) < Version(expected)


def test_a_tag_that_the_files_do_not_name_is_refused_with_its_cure() -> None:
    with pytest.raises(CannotRelease, match=r"make version VERSION=0\.3\.0"):
        version_of(checkout("0.3.0"), "0.2.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.2.0", "0.2.0"),
        ("0.2.0rc1", "0.2.0-rc.1"),
        ("0.2.0.dev7+g012345678", "0.2.0-dev.7.g012345678"),
        ("0.2.0rc2.dev7+g012345678.changed", "0.2.0-rc.2.dev.7.g012345678.changed"),
    ],
)
def test_images_and_charts_have_the_version_without_a_plus_sign(text: str, expected: str) -> None:
    assert tag_of(text) == expected


def test_a_new_version_reaches_every_file_that_names_an_image_or_a_release(tmp_path: Path) -> None:
    for name, _ in PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    stamp(tmp_path, "7.8.9rc1")
    old = (ROOT / "pyproject.toml").read_text().partition('\nversion = "')[2].partition('"')[0]
    for name, _ in PLACES:
        text = (tmp_path / name).read_text()
        assert "7.8.9" in text, name
        assert f":{tag_of(old)}" not in text, name
    assert 'version = "7.8.9rc1"' in (tmp_path / "pyproject.toml").read_text()
    assert "version: 7.8.9-rc.1" in (tmp_path / "charts/mambaserve/Chart.yaml").read_text()
    # No other file of the product names an image with a version.
    pattern = rf"ghcr.io/mambaserve/[a-z-]*:{tag_of(old)}"
    lines = subprocess.run(
        ["grep", "-rlE", "--include=*.py", "--include=*.yaml", "--include=*.md", pattern,
         "libs", "operator", "server", "cli", "charts", "examples", "manifests", "docs", "README.md"],
        cwd=ROOT, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    assert set(lines) <= {name for name, _ in PLACES}


def test_a_file_that_names_no_version_any_more_is_reported(tmp_path: Path) -> None:
    for name, _ in PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "manifests/mambaserve.yaml").write_text("")
    with pytest.raises(CannotRelease, match=r"manifests/mambaserve\.yaml"):
        stamp(tmp_path, "7.8.9")
