"""The command that an error names for a missing extra changes the environment in which the error came up."""

import sys
from pathlib import Path

import pytest

from mamba_cli.extras import install


@pytest.mark.parametrize(
    ("mark", "command"),
    [
        ("uv-receipt.toml", "uv tool install"),
        ("pipx_metadata.json", "pipx install --force"),
        ("pyvenv.cfg", "uv pip install"),
    ],
)
def test_the_remedy_is_of_the_tool_that_made_the_environment(
    mark: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "mambaserve-1-py3-none-any.whl"
    wheel.touch()
    record = tmp_path / "site/mambaserve-1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: mambaserve\nVersion: 1\n")
    (record / "INSTALLER").write_text("uv")
    (record / "direct_url.json").write_text(f'{{"url": "{wheel.as_uri()}"}}')
    (tmp_path / mark).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    assert install("server") == f"{command} '{wheel}[server]'"
    wheel.unlink()
    assert install("server") == f"{command} 'mambaserve[server]'"
