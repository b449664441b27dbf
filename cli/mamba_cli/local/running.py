"""Records of what `mambaserve up` serves on this machine: a file for each process, which other commands read.

The files are in a folder that belongs to the user, `$XDG_RUNTIME_DIR/mambaserve` or `mambaserve-UID` in the
temporary directory. A file whose process has ended is ignored and removed.
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
    """Absolute path of the YAML file; empty for standard input."""
    url: str
    port: int
    """Port of the endpoint of that `up`, which all its deployments share."""
    admin_urls: tuple[str, ...] = ()
    """URLs of the admin servers of the engines that write answers."""
    model: str = ""
    """Name of the model that requests use."""
    pid: int = 0
    """Process id of the `up` that serves it; 0 in a record that is being written."""


def folder() -> Path | None:
    """Return the folder of the files, created if missing; None = no folder belongs to this user alone."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base) / "mambaserve" if base else Path(tempfile.gettempdir()) / f"mambaserve-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    # In a temporary directory, another user can have created the folder; its contents are not trusted.
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return path if ours else None


@contextlib.contextmanager
def noted(units: Sequence[Unit], port: int) -> Iterator[None]:
    """Let other commands find `units` while they run; without a writable folder, no command finds them."""
    place, born = folder(), _start_ticks(os.getpid())
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
    """Return the deployments that run; deployments of the newest process come first."""
    deployments: list[tuple[int, RunningDeployment]] = []
    for file in place.glob("*.json") if (place := folder()) is not None else ():
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            born = int(document["born"])
            if born != _start_ticks(int(file.stem)):
                file.unlink()
                continue
            deployments += [
                (born, RunningDeployment(**{**deployment, "pid": int(file.stem)}))
                for deployment in document["deployments"]
            ]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # the process begins or ends at this moment, or another version wrote the file
    return [deployment for _, deployment in sorted(deployments, key=lambda pair: -pair[0])]


def urls_of_file(file: Path, names: Sequence[str], port: int | None) -> list[str]:
    """Return the URLs of the deployments `names` in `file`, all served by one `up`.

    `port` chooses among several processes that serve the file; None = the newest one. The list is empty where
    no process serves the file.
    """
    chosen = [
        deployment
        for deployment in running()
        if deployment.file == str(file.resolve()) and port in (None, deployment.port)
    ]
    urls = {deployment.name: deployment.url for deployment in chosen if deployment.port == chosen[0].port}
    # Several deployments of one process have one address.
    return list(dict.fromkeys(urls[name] for name in names if name in urls))


def _running(unit: Unit, port: int) -> RunningDeployment:
    path = unit.loaded.path
    file = "" if str(path) == "-" else str(path.resolve())
    admin_urls = tuple(engine.admin_url for engine in unit.engines if engine.role != "prefill")
    return RunningDeployment(unit.name, file, unit.url, port, admin_urls, unit.model)


def _start_ticks(pid: int) -> int | None:
    """Return the start of a process in clock ticks since the machine booted; None = no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
