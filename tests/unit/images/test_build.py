"""Images have the names that charts ask for and the tests' versions, and are made anew when they must be."""

import re
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from images import build
from images.build import TARGETS, Bases, digest
from mamba_api import names
from parsed_yaml import load_yaml

ROOT = Path(build.__file__).parents[1]


def pins(name: str) -> set[tuple[str, str]]:
    """Return packages and versions of one lock file; some have one version for each version of Python."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return set(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", text, re.MULTILINE))


def test_images_have_the_names_that_objects_and_the_chart_ask_for() -> None:
    chart = load_yaml((ROOT / "charts/mambaserve/values.yaml").read_text())
    release = load_yaml((ROOT / "charts/mambaserve/Chart.yaml").read_text())["appVersion"]

    assert f"{TARGETS['control'].repository}:{build.version()}" == names.CONTROL_PLANE_IMAGE
    assert f"{TARGETS['server'].repository}:{build.version()}" == names.IMAGE
    assert f"{chart['image']['repository']}:{release}" == names.CONTROL_PLANE_IMAGE


@pytest.mark.parametrize("name", ["control", "server", "build"])
def test_an_image_has_the_versions_that_the_tests_ran_with(name: str) -> None:
    assert pins(name) - pins("dev") == set()


def test_the_control_image_has_no_torch_and_both_have_what_their_processes_need() -> None:
    control, server = ({package for package, _ in pins(name)} for name in ("control", "server"))

    assert "torch" not in control
    assert {"kopf", "kubernetes", "fastapi", "redis", "opentelemetry-sdk", "grpcio"} <= control
    assert {"torch", "triton", "aiohttp", "fastapi", "redis", "opentelemetry-sdk"} <= server


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small tree from which an image is built."""
    for name in (*build.FILES, *(f"{folder}/one.py" for folder in build.SOURCES), "tests/one.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    return tmp_path


def test_an_image_is_made_anew_for_other_sources_modes_and_bases_only(sources: Path) -> None:
    control = TARGETS["control"]
    first = digest(control, None)
    (sources / "tests/one.py").write_text("changed")
    (sources / "requirements/dev.lock").write_text("changed")

    assert digest(control, None) == first
    assert digest(TARGETS["server"], None) != first
    assert digest(control, Bases("python", "python:slim")) != first
    (sources / "server/one.py").chmod(0o755)
    changed = digest(control, None)
    assert changed != first
    (sources / "server/one.py").write_text("changed")
    assert digest(control, None) not in {first, changed}


BUILDAH = """#!/bin/sh
shift 6
echo "$1" >>"$BUILDS"
for last; do :; done
case "$1" in
  mount) dirname "$BUILDS" ;;
  push) touch "$(echo "$last" | cut -d: -f2)" ;;
esac
"""
"""Writes down what it is asked for, and writes empty archives."""


def test_of_two_builds_at_once_one_waits_and_takes_the_image_of_the_other(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "buildah").write_text(BUILDAH)
    (sources / "buildah").chmod(0o755)
    monkeypatch.setenv("PATH", str(sources), prepend=":")
    monkeypatch.setenv("BUILDS", str(sources / "builds"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(sources / "cache"))
    monkeypatch.setattr(build.bill, "of_materials", lambda *_: "{}")
    monkeypatch.setattr(build, "FILES", ("LICENSE",))
    monkeypatch.setattr(build, "version", lambda: "1")
    both = Barrier(2)

    def ask() -> Path:
        both.wait()
        return build.ensure_built(TARGETS["control"], Bases("one", "two"))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(ask), pool.submit(ask)
        assert first.result() == second.result()
    assert first.result().is_file()
    assert (sources / "builds").read_text().split().count("build") == 1


def test_the_builder_sees_every_package_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    roots = {package.partition("/")[0] for package in packages}
    visible = {line[1:] for line in build.IGNORED.read_text().splitlines() if line.startswith("!")}
    assert roots <= visible
    assert roots <= set(build.SOURCES)
