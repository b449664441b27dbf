"""The library is made once for each state of its sources, whole or not at all; without one torch computes."""

import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from eventually import wait_until
from mamba_kernels.cpu import build
from mamba_kernels.cpu import library as libraries
from mamba_kernels.cpu.build import CannotBuild, ensure_built
from mamba_kernels.cpu.library import Library, open_library
from mamba_kernels.dispatch.backend import compiles_first
from mamba_kernels.kernel_choice import VARIABLE, UnknownKernels


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """Return an instant compiler that records its arguments and writes its outputs."""
    path = tmp_path / "compiler"
    path.write_text(
        "#!/bin/sh\n"
        'case "$1" in --version) cat "$0.version"; exit;; esac\n'
        'echo "$@" >> "$0.log"\n'
        '[ ! -e "$0.kills" ] || kill -9 $PPID\n'
        '[ ! -e "$0.waits" ] || { sleep 3600 & echo $! >> "$0.pids"; wait; }\n'
        '[ ! -e "$0.fails" ] || { echo "it does not like it"; exit 1; }\n'
        'while [ "$1" != -o ]; do shift; done; echo made > "$2"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    Path(f"{path}.version").write_text("compiler 1")
    return path


@pytest.fixture
def environment(compiler: Path, tmp_path: Path) -> dict[str, str]:
    return {"CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}


def builds(compiler: Path) -> int:
    log = Path(f"{compiler}.log")
    return sum("-shared" in line for line in log.read_text().splitlines()) if log.exists() else 0


def test_the_same_sources_are_built_once(compiler: Path, environment: dict[str, str]) -> None:
    first = ensure_built(environment)
    assert first.read_text() == "made\n"
    assert ensure_built(environment) == first
    assert builds(compiler) == 1
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".lock", ".so"]


def test_what_an_image_ships_needs_no_compiler_but_only_for_these_sources(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "shipped")
    shipped = build.ship(environment)
    bare = {"PATH": str(tmp_path)}
    assert ensure_built(bare) == shipped
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DOTHER"))
    with pytest.raises(CannotBuild, match="compiler"):
        ensure_built(bare)


def test_another_compiler_other_flags_or_other_sources_make_another_library(
    compiler: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {ensure_built(environment), ensure_built(environment, sanitize=True)}
    Path(f"{compiler}.version").write_text("compiler 2")
    made.add(ensure_built(environment))
    sources = tmp_path / "src"
    sources.mkdir()
    for path in build.SOURCES.iterdir():
        (sources / path.name).write_text(path.read_text())
    (sources / "linear.h").write_text("// other")
    monkeypatch.setattr(build, "SOURCES", sources)
    made.add(ensure_built(environment))
    assert len(made) == 4


def test_who_asks_at_once_gets_one_library(compiler: Path, environment: dict[str, str]) -> None:
    got: list[Path] = []
    asking = [threading.Thread(target=lambda: got.append(ensure_built(environment))) for _ in range(3)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(got) == 3
    assert len(set(got)) == 1
    assert builds(compiler) == 1


def test_a_build_that_fails_says_why_and_leaves_nothing(compiler: Path, environment: dict[str, str]) -> None:
    Path(f"{compiler}.fails").touch()
    with pytest.raises(CannotBuild, match="it does not like it"):
        ensure_built(environment)
    assert list(build.cache_root(environment).glob("*.so")) == []


def test_it_is_known_beforehand_whether_anything_will_be_compiled(environment: dict[str, str]) -> None:
    cpu = torch.device("cpu")
    assert compiles_first(cpu, torch.bfloat16, environment)
    assert not compiles_first(cpu, torch.float64, environment)
    assert not compiles_first(cpu, torch.bfloat16, {**environment, VARIABLE: "torch"})
    assert not compiles_first(cpu, torch.bfloat16, {**environment, "CXX": "no-such-compiler"})
    assert not compiles_first(torch.device("cuda"), torch.bfloat16, environment)
    ensure_built(environment)
    assert not compiles_first(cpu, torch.bfloat16, environment)


def test_what_a_build_that_was_killed_has_left_goes_with_the_next(
    compiler: Path, environment: dict[str, str]
) -> None:
    Path(f"{compiler}.kills").touch()
    code = "from mamba_kernels.cpu.build import ensure_built; import os; ensure_built(os.environ)"
    killed = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not build.is_built(environment)
    folder = build.cache_root(environment)
    assert [path for path in folder.iterdir() if path.is_dir()]
    Path(f"{compiler}.kills").unlink()
    ensure_built(environment)
    assert build.is_built(environment)
    assert [path for path in folder.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_interrupted_ends_its_compilers_and_what_they_started(
    number: signal.Signals, compiler: Path, environment: dict[str, str]
) -> None:
    Path(f"{compiler}.waits").touch()
    started = Path(f"{compiler}.pids")
    process = subprocess.Popen(
        [sys.executable, "-m", "mamba_kernels.cpu.build"],
        env={**os.environ, **environment}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: started.exists() and len(started.read_text().split()) == len(build.UNIT_FLAGS))
    process.send_signal(number)
    assert process.wait(60) in (128 + number, -number)
    running = [int(pid) for pid in started.read_text().split()]
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in running))


def test_where_nothing_can_be_written_the_error_says_what_to_set(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "no-directory"
    file.touch()

    def homeless() -> Path:
        raise RuntimeError("no home")

    with pytest.raises(CannotBuild, match="XDG_CACHE_HOME"):
        ensure_built({"CXX": str(compiler), "XDG_CACHE_HOME": str(file)})
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(CannotBuild, match="XDG_CACHE_HOME"):
        ensure_built({"CXX": str(compiler)})


def test_without_a_compiler_torch_computes_and_one_warning_says_so(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {**environment, "CXX": "no-such-compiler", VARIABLE: "auto"}.items():
        monkeypatch.setenv(name, value)
    libraries.library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert libraries.library() is None
            assert libraries.library() is None
    finally:
        libraries.library.cache_clear()
    assert ["no-such-compiler" in record.getMessage() for record in caplog.records] == [True]


def test_what_was_asked_for_by_name_is_never_replaced(environment: dict[str, str]) -> None:
    assert open_library({VARIABLE: "torch"}) is None
    with pytest.raises(UnknownKernels, match="auto, torch, triton, avx2"):
        open_library({VARIABLE: "mmx"})
    with pytest.raises(UnknownKernels, match="no-such-compiler"):
        open_library({**environment, VARIABLE: "avx2", "CXX": "no-such-compiler"})


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16"])
def test_an_instruction_set_that_this_cpu_lacks_is_refused(name: str) -> None:
    if name in Path("/proc/cpuinfo").read_text():
        assert Library(ensure_built(), name).name == name
    else:
        with pytest.raises(CannotBuild, match=name):
            Library(ensure_built(), name)
    Library(ensure_built())


def test_by_itself_it_takes_the_matrix_unit_then_the_widest_registers_with_or_without_pairs() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    wide = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags
    lanes = {"avx512", *({"avx512_bf16"} & flags)} if wide else {"avx2"}
    unit = wide and {"amx_bf16", "amx_tile"} <= flags
    assert Library(ensure_built()).name in ({"amx_bf16"} if unit else lanes)
