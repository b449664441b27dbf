"""What `mambaserve up` runs on this machine: a file for each process that serves, which other commands read.

The files are in a folder of the user's own, `$XDG_RUNTIME_DIR/mambaserve` or `mambaserve-UID` in the
temporary directory. A file whose process has gone counts for nothing and is removed.
"""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mamba_cli.local.unit import Unit


@dataclass(frozen=True, slots=True)
class RunningDeployment:
    """One deployment that an `up` of this user serves."""

    name: str
    file: str
    """The absolute path of its YAML; empty where it came from standard input."""
    url: str
    port: int
    """What `up` got as --port: the port of its first deployment."""


def folder() -> Path | None:
    """Return the folder of the files, made where it is missing; None = there is none that is only ours."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base) / "mambaserve" if base else Path(tempfile.gettempdir()) / f"mambaserve-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    # In a temporary directory anybody may have made it: what others wrote is not believed.
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return path if ours else None


@contextlib.contextmanager
def noted(units: Sequence[Unit], port: int) -> Iterator[None]:
    """Let other commands find `units` while they run. Where no file can be written they run all the same."""
    place, born = folder(), _born(os.getpid())
    if place is None or born is None:
        yield
        return
    file = place / f"{os.getpid()}.json"
    served = [asdict(_running(unit, port)) for unit in units]
    with contextlib.suppress(OSError):
        file.write_text(json.dumps({"born": born, "deployments": served}), encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def running() -> list[RunningDeployment]:
    """Return what runs, the process that started last first."""
    found: list[tuple[int, RunningDeployment]] = []
    for file in place.glob("*.json") if (place := folder()) is not None else ():
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            born = int(document["born"])
            if born != _born(int(file.stem)):
                file.unlink()
                continue
            found += [(born, RunningDeployment(**each)) for each in document["deployments"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it ends or begins just now, or another version wrote it
    return [each for _, each in sorted(found, key=lambda pair: -pair[0])]


def urls_of_file(file: Path, names: Sequence[str], port: int | None) -> list[str]:
    """Return the URLs of the deployments called `names` of `file`, all of one `up`.

    `port` chooses among several that serve it; without it the one that started last is meant. Empty where
    none does.
    """
    chosen = [each for each in running() if each.file == str(file.resolve()) and port in (None, each.port)]
    urls = {each.name: each.url for each in chosen if each.port == chosen[0].port}
    return [urls[name] for name in names if name in urls]


def _running(unit: Unit, port: int) -> RunningDeployment:
    path = unit.loaded.path
    file = "" if str(path) == "-" else str(path.resolve())
    return RunningDeployment(unit.name, file, unit.url, port)


def _born(pid: int) -> int | None:
    """Return when the process began, in clock ticks since the machine did; None = there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
