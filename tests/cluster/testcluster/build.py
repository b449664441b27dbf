"""The Go programs of the test clusters: what they are built from, and their cache.

They are kept in `<cache>/<hash of all inputs>/bin`, so that a change of the sources or of a pin builds them
anew and nothing else does. A build happens in a folder of its own that is renamed when it is complete,
under a lock: two runs never build the same twice, and a killed one leaves nothing that counts.
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
from pathlib import Path

from testcluster.errors import BuildFailed
from testcluster.toolchain import find_go

SOURCES = Path(__file__).parents[1] / "hyperkube"
KUBERNETES = "v1.34.4"
PACKAGES = (".", "./coredns", "./pause", "helm.sh/helm/v3/cmd/helm", "k8s.io/kubernetes/cmd/kubectl")
"""Packages to build: each becomes a binary with the last part of its name, `.` the one that the links lead
to.

kubectl is built alone: started hundreds of times, it takes half as long without the other components.
"""
MULTICALL = "hyperkube"
LINKS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
)
MAJOR, MINOR, _ = KUBERNETES.removeprefix("v").split(".")
VARIABLES = {
    # Without a version the components call themselves v0.0.0-master and clients complain.
    "k8s.io/component-base/version.gitVersion": KUBERNETES,
    "k8s.io/client-go/pkg/version.gitVersion": KUBERNETES,
    # What helm takes for the cluster when it renders without one; 1.20 otherwise.
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": MAJOR,
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": MINOR,
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": MAJOR,
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": MINOR,
}
LINKER = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in VARIABLES.items())])
FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", LINKER)
PROGRESS_SECONDS = 15.0

Report = Callable[[str], None]


def inputs_hash(sources: Mapping[str, bytes], machine: str) -> str:
    """Hash of all that decides the binaries: sources with their pins, packages, flags and the processor."""
    digest = hashlib.sha256(repr((PACKAGES, LINKS, FLAGS, machine)).encode())
    for name in sorted(sources):
        digest.update(f"\0{name}\0{len(sources[name])}\0".encode())
        digest.update(sources[name])
    return digest.hexdigest()[:16]


def sources(folder: Path = SOURCES) -> dict[str, bytes]:
    """Return the contents of our own module: Go files and pins by their path in it."""
    paths = [*folder.rglob("*.go"), folder / "go.mod", folder / "go.sum"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the binaries are kept: `$XDG_CACHE_HOME/mambaserve/cluster`, outside of any checkout."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "mambaserve" / "cluster"


def say(line: str) -> None:
    print(f"cluster: {line}", file=sys.stderr, flush=True)


def ensure(*, root: Path | None = None, report: Report = say) -> Path:
    """Return the folder with the binaries; build them if they do not exist yet.

    Raises BuildFailed with the compiler's last lines, ToolMissing when no Go can be had.
    """
    root = root or cache_root()
    target = root / inputs_hash(sources(), os.uname().machine)
    if (target / "bin").is_dir():
        return target / "bin"
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f"{target.name}.lock", report):
        if not (target / "bin").is_dir():
            work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=root))
            try:
                _build(work, find_go(root, report), report)
                work.chmod(0o755)
                work.rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return target / "bin"


@contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another run is building; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(work: Path, go: Path, report: Report) -> None:
    binaries = work / "bin"
    binaries.mkdir()
    argv = [str(go), "build", "-v", *FLAGS, "-o", f"{binaries}/", *PACKAGES]
    # Without C code no compiler but Go's is needed, and the binaries run on any distribution.
    environ = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    report(f"building Kubernetes {KUBERNETES} and helm: about six minutes on two cores, then cached")
    began = time.monotonic()
    log = work / "build.log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, cwd=SOURCES, env=environ, stdout=out, stderr=subprocess.STDOUT)
        try:
            while (code := _wait(process, PROGRESS_SECONDS)) is None:
                report(f"  {progress(log.read_text(errors='replace'))}, {time.monotonic() - began:.0f} s")
        finally:
            process.kill()
            process.wait()
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise BuildFailed(
            f"`{' '.join(argv)}` ended with {code}. It needs the module proxy that `go env GOPROXY` names "
            f"and about 6 GB of disk. Its last lines:\n{tail}"
        )
    for link in LINKS:
        (binaries / link).symlink_to(MULTICALL)
    report(f"built in {time.monotonic() - began:.0f} s")


def progress(log: str) -> str:
    """Return a build's progress from the output of `go build -v`, which names each package."""
    lines = log.splitlines()
    fetched = sum(line.startswith("go: downloading") for line in lines)
    return f"{fetched} modules downloaded, {len(lines) - fetched} packages compiled"


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
