"""The Go programs of the test clusters: what they are built from, and their cache.

Each tool is kept in `<cache>/<name>-<hash of its inputs>/bin`, so that a change of its sources or its pin
builds it anew and nothing else does. A build happens in a folder of its own that is renamed when it is
complete, under a lock: two runs never build the same twice, and a killed one leaves nothing that counts.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testcluster.errors import BuildFailed
from testcluster.toolchain import find_go

SOURCES = Path(__file__).parents[1] / "hyperkube"
KUBERNETES = "v1.34.4"
COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
FLAGS = ("-trimpath", "-buildvcs=false")
PROGRESS_SECONDS = 15.0

Report = Callable[[str], None]


@dataclass(frozen=True)
class Tool:
    """One Go program."""

    name: str
    package: str
    """Import path; relative ones lie in our own module, others need a version."""
    version: str = ""
    """Module version of a foreign package; our own module pins its dependencies in go.sum."""
    links: tuple[str, ...] = ()
    """Further names the program is called by; it picks its part by them."""
    ldflags: str = "-s -w"
    minutes: str = "a few seconds"
    """How long a first build takes on two cores, for the progress line."""


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "hyperkube",
            ".",
            links=COMPONENTS,
            # Without these the components call themselves v0.0.0-master and clients complain.
            ldflags=f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}"
            f" -X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES}",
            minutes="three to five minutes",
        ),
        Tool("pause", "./pause"),
        Tool("helm", "helm.sh/helm/v3/cmd/helm", version="v3.19.0", minutes="about a minute"),
        Tool("coredns", "github.com/coredns/coredns", version="v1.12.4", minutes="one to two minutes"),
    )
}


def inputs_hash(tool: Tool, sources: Mapping[str, bytes]) -> str:
    """Hash of all that decides a tool's binary: pins, flags, platform and, for our own, `sources`."""
    digest = hashlib.sha256(repr((tool, FLAGS, os.uname().machine)).encode())
    for name in sorted(sources):
        digest.update(f"\0{name}\0{len(sources[name])}\0".encode())
        digest.update(sources[name])
    return digest.hexdigest()[:16]


def own_sources(tool: Tool) -> dict[str, bytes]:
    """The files of our own module that a tool is built from; none for a foreign package."""
    if tool.version:
        return {}
    folder = SOURCES / tool.package
    paths = [*folder.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"]
    return {path.relative_to(SOURCES).as_posix(): path.read_bytes() for path in paths}


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the tools are kept: `$XDG_CACHE_HOME/mambaserve/cluster`, outside of any checkout."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "mambaserve" / "cluster"


def say(line: str) -> None:
    print(f"cluster: {line}", file=sys.stderr, flush=True)


def ensure(tool: Tool, *, root: Path | None = None, report: Report = say) -> Path:
    """The folder with a tool's binary and links, built if it is not there yet.

    Raises BuildFailed with the compiler's last lines, ToolMissing when no Go can be had.
    """
    root = root or cache_root()
    target = root / f"{tool.name}-{inputs_hash(tool, own_sources(tool))}"
    if (target / "bin").is_dir():
        return target / "bin"
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f"{target.name}.lock", tool, report):
        if not (target / "bin").is_dir():
            work = Path(tempfile.mkdtemp(prefix=f".{tool.name}-", dir=root))
            try:
                _build(tool, work, find_go(root, report), report)
                work.chmod(0o755)
                work.rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return target / "bin"


@contextmanager
def _locked(path: Path, tool: Tool, report: Report) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another run is building {tool.name}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(tool: Tool, work: Path, go: Path, report: Report) -> None:
    binaries = work / "bin"
    binaries.mkdir()
    environ = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(binaries), "GOWORK": "off"}
    flags = [*FLAGS, "-v", "-ldflags", tool.ldflags]
    if tool.version:
        argv = [str(go), "install", *flags, f"{tool.package}@{tool.version}"]
    else:
        output = str(binaries / tool.name)
        argv = [str(go), "build", *flags, "-mod=readonly", "-o", output, tool.package]
    report(f"building {tool.name} {tool.version or KUBERNETES}: {tool.minutes} the first time, then cached")
    began = time.monotonic()
    log = work / "build.log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, cwd=SOURCES, env=environ, stdout=out, stderr=subprocess.STDOUT)
        try:
            while (code := _wait(process, PROGRESS_SECONDS)) is None:
                lines = log.read_bytes().splitlines()
                compiled = sum(b"downloading" not in line for line in lines)
                report(f"  {tool.name}: {compiled} packages compiled, {time.monotonic() - began:.0f} s")
        finally:
            process.kill()
            process.wait()
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise BuildFailed(
            f"`{' '.join(argv)}` ended with {code}. It needs the module proxy that `go env GOPROXY` names "
            f"and about 6 GB of disk. Its last lines:\n{tail}"
        )
    for link in tool.links:
        (binaries / link).symlink_to(tool.name)
    report(f"built {tool.name} in {time.monotonic() - began:.0f} s")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
