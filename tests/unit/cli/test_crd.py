"""`mambaserve crd` through the command line."""

import os
import subprocess
from pathlib import Path

import pytest

from mamba_api.v1alpha1.schema import CUSTOM_KINDS, all_crds_yaml, crd_yaml
from mamba_cli.commands.crd import CHART, CRDS, command
from mamba_cli.errors import InvalidInput, RunFailed
from prefork import FORK_SERVER

FILES = [
    path for kind in CUSTOM_KINDS for path in (CRDS / f"{kind.name}.yaml", CHART / f"crd-{kind.plural}.yaml")
]
CRD_FILE, CHART_FILE = FILES[:2]


def mambaserve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return FORK_SERVER.run("-m", "mamba_cli", *arguments, env={**os.environ, **environment})


def test_the_crd_goes_to_standard_output_alone() -> None:
    done = mambaserve("crd")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == all_crds_yaml()
    assert done.stdout.count("\nkind: CustomResourceDefinition\n") == len(CUSTOM_KINDS)


def test_writing_elsewhere_than_into_the_source_tree_is_wrong_usage(tmp_path: Path) -> None:
    done = mambaserve("crd", "--write", "--directory", str(tmp_path))
    assert done.returncode == 2
    assert "--directory" in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_all_copies_are_written_once_and_again_after_an_edit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").touch()
    command(write=True, directory=tmp_path)
    assert capsys.readouterr().err == "".join(f"wrote {path}\n" for path in FILES)
    assert (tmp_path / CRD_FILE).read_text() == crd_yaml()
    command(write=True, directory=tmp_path)
    assert capsys.readouterr().err == ""
    (tmp_path / CRD_FILE).write_text("edited: true\n")
    command(write=True, directory=tmp_path)
    assert (tmp_path / CRD_FILE).read_text() == crd_yaml()


def test_the_environment_can_name_the_directory(tmp_path: Path) -> None:
    done = mambaserve("crd", "--write", MAMBASERVE_CRD_DIRECTORY=str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr.replace("\n", "")


def test_an_error_is_an_exception_for_callers_in_python(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="root of the source tree"):
        command(write=True, directory=tmp_path)


@pytest.mark.parametrize("blocked", [CHART_FILE, CRD_FILE.parent], ids=["file", "folder"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, blocked: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    if blocked.suffix:
        (tmp_path / blocked).mkdir(parents=True)
    else:
        (tmp_path / blocked).touch()
    with pytest.raises(RunFailed, match=r"\.yaml cannot be written: ") as caught:
        command(write=True, directory=tmp_path)
    assert str(tmp_path / blocked) in str(caught.value)
