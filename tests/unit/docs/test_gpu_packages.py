"""The measurement of a GPU and the tests that need one run with the packages that their page names."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from benchmarks.gpu.__main__ import environment

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "howto" / "measure-a-gpu.md"
IMAGE = ("torch", "triton", "numpy", "safetensors", "pytest")
"""Packages of the image, which bring those that they depend on."""
IMPORT_ALL = """
import pkgutil, benchmarks.gpu, benchmarks.gpu.stages
for package in (benchmarks.gpu, benchmarks.gpu.stages):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            __import__(module.name)
"""
COLLECT = "-m pytest -q --collect-only -p no:cacheprovider -c tests/gpu/pytest.ini tests/gpu"


def with_dependencies(names: list[str]) -> set[str]:
    """Return the installed packages `names` and what they depend on without extras."""
    seen: set[str] = set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in seen:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        seen.add(name)
        names += [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in requires if "extra ==" not in each]
    return seen


def link_packages(names: set[str], folder: Path) -> None:
    """Link the files of the installed packages `names` into `folder`, and nothing else."""
    for name in names:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            target = Path(str(distribution.locate_file(top)))
            if top != "__pycache__" and target.exists() and not (folder / top).exists():
                (folder / top).symlink_to(target)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["measurement", "tests"])
def test_the_packages_that_the_page_names_are_enough(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = re.search(r"pip download --no-deps -d wheels (.+)", PAGE.read_text(encoding="utf-8"))
    assert line is not None
    link_packages(with_dependencies([*IMAGE]) | set(line[1].split()), tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    more = (
        environment("cpu")
        if what == "measurement"
        else {"MAMBASERVE_TEST_DEVICE": "cpu", "TRITON_INTERPRET": "1"}
    )
    # Without `site`, neither the packages of the environment nor the project's own installation are there.
    ran = subprocess.run(
        [sys.executable, "-S", *(["-c", IMPORT_ALL] if what == "measurement" else COLLECT.split())],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **more,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
