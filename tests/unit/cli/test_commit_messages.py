"""The commit-msg hook that `make setup` installs: what it accepts and refuses, and where it stays away."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = ("commit-msg", "commit_rules.py", "commit_verbs.txt", "install_hooks")
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a git checkout with the project's rules and the tools of this environment."""
    for name in (
        ".gitlint",
        "scripts/commit-msg",
        "scripts/commit_rules.py",
        "scripts/commit_verbs.txt",
        "scripts/install_hooks",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/gitlint").symlink_to(Path(sys.executable).parent / "gitlint")
    run(tmp_path, "git", "init", "-q")
    run(tmp_path, "git", "config", "user.name", "Somebody")
    run(tmp_path, "git", "config", "user.email", "somebody@example.com")
    return tmp_path


def commit(checkout: Path, message: str, path: str = "docs/page.md") -> subprocess.CompletedProcess[str]:
    (checkout / path).parent.mkdir(parents=True, exist_ok=True)
    (checkout / path).write_text(message)
    run(checkout, "git", "add", path)
    return run(checkout, "git", "commit", "-m", message)


def test_a_commit_whose_message_keeps_the_rules_is_made(checkout: Path) -> None:
    run(checkout, "scripts/install_hooks")
    done = commit(checkout, "Add a page\n\nIt says what nobody said before.\n")
    assert done.returncode == 0, done.stderr
    assert run(checkout, "git", "log", "--format=%s").stdout == "Add a page\n"


@pytest.mark.parametrize(
    ("message", "path", "rule"),
    [
        ("Added a page", "docs/page.md", "imperative"),
        ("A page about nothing", "docs/page.md", "imperative"),
        ("Add a page; fix a link", "docs/page.md", "one change"),
        (f"Add a page {'with a long subject ' * 4}", "docs/page.md", "72"),
        ("Serve another model", "server/mamba_server/models.py", "body"),
    ],
)
def test_a_commit_whose_message_breaks_a_rule_is_refused(
    checkout: Path, message: str, path: str, rule: str
) -> None:
    run(checkout, "scripts/install_hooks")
    done = commit(checkout, message, path)
    assert done.returncode != 0
    assert rule in done.stderr + done.stdout
    assert run(checkout, "git", "log").returncode != 0


def test_a_hook_of_somebody_else_stays(checkout: Path) -> None:
    hook = checkout / ".git/hooks/commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n")
    done = run(checkout, "scripts/install_hooks")
    assert done.returncode == 0
    assert hook.read_text() == "#!/bin/sh\n"
    assert "scripts/commit-msg" in done.stderr


def test_nothing_is_installed_where_hooks_are_configured(checkout: Path) -> None:
    run(checkout, "git", "config", "core.hooksPath", "elsewhere")
    assert run(checkout, "scripts/install_hooks").returncode == 0
    assert not (checkout / "elsewhere").exists()
    assert not (checkout / ".git/hooks/commit-msg").exists()


def test_a_source_tree_inside_of_another_checkout_leaves_its_hooks_alone(checkout: Path) -> None:
    inner = checkout / "vendor/mambaserve"
    (inner / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/install_hooks", inner / "scripts/install_hooks")
    assert run(inner, "scripts/install_hooks").returncode == 0
    assert not (checkout / ".git/hooks/commit-msg").exists()


def test_a_source_tree_without_git_is_set_up_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/install_hooks", tmp_path / "scripts/install_hooks")
    assert run(tmp_path, "scripts/install_hooks").returncode == 0
