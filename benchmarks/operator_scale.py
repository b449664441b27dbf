"""Cost of the operator with a thousand MambaDeployments on a real API server.

Measured are the time until all are reconciled, the cost when nothing happens, and the time until one change
is applied.

Run as `python -m benchmarks.operator_scale [--objects N]`; writes JSON and Markdown to benchmarks/results.
The control plane is that of the tests (etcd, kube-apiserver, kube-controller-manager) on the same machine,
and its controllers make ReplicaSets and pods of what the operator makes: CPU time is given beside time.
The operator has the token of a ServiceAccount, as one that a chart installs; up to 2026-11-24 it had a
client's certificate, which the API server verifies with each request.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.cache.record import write
from benchmarks.gateway_idle import resident_bytes

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests/cluster"), str(ROOT / "tests/support")]

from mamba_api import names  # noqa: E402
from mamba_api.v1alpha1.schema import crd_yaml  # noqa: E402
from service_account import as_account  # noqa: E402 - a module of the tests
from testcluster.build import ensure  # noqa: E402 - a package of the tests
from testcluster.control_plane import ControlPlane, running_control_plane  # noqa: E402

MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
PATH = f"/apis/{names.API_VERSION}/namespaces/{{}}/{names.PLURAL}"


class OperatorUnderTest:
    """An operator process and what it says of itself."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def metrics(self) -> str:
        """Return all series of the operator."""
        match = re.search(r'"liveness": "127\.0\.0\.1:(\d+)"', self.log.read_text(errors="replace"))
        if match is None:
            return ""
        with urlopen(f"http://127.0.0.1:{match[1]}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def requests(self, *methods: str) -> float:
        """Count the requests to the API server without watches; of all methods, or of the named ones."""
        series = r'^mambaserve_operator_requests_total{method="(\w+)",resource="\w+"} (\S+)$'
        counts = re.findall(series, self.metrics(), re.MULTILINE)
        return sum(float(count) for method, count in counts if not methods or method in methods)

    def by_resource(self) -> str:
        """Return the operator's requests by method and resource, one a line, most first."""
        series = r'^mambaserve_operator_requests_total{method="(\w+)",resource="(\w+)"} (\S+)$'
        counts = re.findall(series, self.metrics(), re.MULTILINE)
        ordered = sorted(counts, key=lambda one: -float(one[2]))
        return "".join(f"  {float(number):6g} {method} {resource}\n" for method, resource, number in ordered)

    def changed(self, kind: str) -> int:
        """Count the written children of a kind."""
        series = rf'^mambaserve_operator_child_changes_total{{[^}}]*kind="{kind}"[^}}]*}} (\S+)$'
        return int(sum(map(float, re.findall(series, self.metrics(), re.MULTILINE))))

    def stated(self) -> int:
        """Count the written statuses."""
        series = r'^mambaserve_operator_requests_total{method="PATCH",resource="mambadeployments"} (\S+)$'
        return int(sum(map(float, re.findall(series, self.metrics(), re.MULTILINE))))

    def cpu_seconds(self) -> float:
        """Return the processor time it took since its start."""
        return cpu_seconds(self.process.pid)


def cpu_seconds(pid: int | None) -> float:
    """Return the user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def running_operator(plane: ControlPlane, log: Path, options: Sequence[str]) -> Iterator[OperatorUnderTest]:
    """Run an operator of the whole cluster with its own defaults."""
    namespace = plane.create_namespace("operator")
    plane.kubectl("create", "serviceaccount", "operator", "-n", namespace)
    plane.kubectl(
        "create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin",
        f"--serviceaccount={namespace}:operator",
    )  # fmt: skip
    kubeconfig = as_account(plane, namespace, "operator", log.with_suffix(".kubeconfig"))
    command = [sys.executable, "-m", "mamba_cli", "operator", "--kubeconfig", str(kubeconfig)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--liveness-port", "0", *options], cwd=ROOT, stdout=out, stderr=out
        )
    try:
        yield OperatorUnderTest(process, log)
    finally:
        process.terminate()
        process.wait(30)


def deployment(name: str) -> dict[str, Any]:
    """Return the smallest possible object: engines and a gateway."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"model": {"uri": "builtin://tiny-recall"}, "resources": {"gpus": 0}},
    }


def print_result(text: str) -> None:
    """Print progress next to the result."""
    print(text, file=sys.stderr, flush=True)


def until(read: Callable[[], int], target: int, what: str, timeout: float) -> float:
    """Return the seconds until `read` returns `target`; prints the progress."""
    began, reported = time.monotonic(), 0.0
    while (value := read()) < target:
        passed = time.monotonic() - began
        if passed > timeout:
            raise TimeoutError(f"{value} of {target} {what} after {timeout:g} s")
        if passed - reported > 5:
            reported = passed
            print_result(f"  {value} of {target} {what} after {passed:.0f} s")
        time.sleep(0.25)
    return time.monotonic() - began


def make(plane: ControlPlane, namespaces: Sequence[str], count: int) -> None:
    """Create `count` objects, spread over the namespaces."""

    def one(number: int) -> None:
        path = PATH.format(namespaces[number % len(namespaces)])
        status, answer = plane.api.request("POST", path, deployment(f"m{number}"))
        if status != 201:
            raise RuntimeError(f"m{number}: {status} {answer}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(count)))


def changed_within(plane: ControlPlane, namespace: str, name: str, replicas: int) -> float:
    """Return the seconds from a change of the object to the change of its child."""
    began = time.monotonic()
    patch = f'{{"spec":{{"gateway":{{"replicas":{replicas}}}}}}}'
    plane.kubectl("patch", "mdep", name, "-n", namespace, "--type=merge", "-p", patch)
    changed_at = time.monotonic()
    until(
        lambda: int((plane.get("deployment", name, namespace) or {})["spec"]["replicas"] == replicas),
        1, "change", 60,
    )  # fmt: skip
    print_result(
        f"  applied {time.monotonic() - changed_at:.2f} s after kubectl, it took {changed_at - began:.2f} s"
    )
    return time.monotonic() - changed_at


def measure(
    count: int, idle: float, timeout: float, options: Sequence[str], *, controllers: bool
) -> dict[str, float]:
    """Return all figures; without `controllers` the API server and etcd have the machine alone."""
    record: dict[str, float] = {}
    with running_control_plane(ensure()) as plane, tempfile.TemporaryDirectory() as folder:
        plane.kubectl("apply", "--server-side", "-f", "-", stdin=crd_yaml())
        plane.wait_for(lambda: plane.api.answers(PATH.format("default")), "the CRD to be served")
        namespaces = [plane.create_namespace("scale") for _ in range(10)]
        print_result(f"making {count} objects")
        make(plane, namespaces, count)
        servers = [plane.etcd, plane.api_server]
        with running_operator(plane, Path(folder, "operator.log"), options) as operator:
            if controllers:
                servers.append(plane.controller_manager)
            else:  # it has given the namespaces their accounts, and is not needed any more
                plane.controller_manager.stop()
            print_result("reconciling all of them for the first time")
            before = sum(cpu_seconds(one.pid) for one in servers)
            began = time.monotonic()
            until(lambda: operator.changed("Deployment"), 2 * count, "Deployments", timeout)
            until(operator.stated, count, "statuses", timeout)
            record["first_reconcile_s"] = time.monotonic() - began
            record["first_reconcile_operator_cpu_s"] = operator.cpu_seconds()
            record["first_reconcile_cluster_cpu_s"] = sum(cpu_seconds(one.pid) for one in servers) - before
            record["first_reconcile_requests"] = operator.requests()
            missing = [one for one in plane.list("mambadeployments", None) if "status" not in one]
            assert not missing, f"{len(missing)} objects have no status"
            print_result("waiting until nothing is written any more")
            settle(operator, timeout)
            record["all_settled_s"] = time.monotonic() - began
            record["all_settled_requests"] = operator.requests()
            record["requests_per_object"] = operator.requests() / count
            print_result(operator.by_resource())
            record["all_settled_operator_cpu_s"] = operator.cpu_seconds()
            print_result(f"idle for {idle:g} s")
            marks = operator.requests(), operator.requests("PATCH", "POST", "DELETE"), operator.cpu_seconds()
            time.sleep(idle)
            record["idle_requests_per_s"] = (operator.requests() - marks[0]) / idle
            record["idle_writes"] = operator.requests("PATCH", "POST", "DELETE") - marks[1]
            record["idle_cpu_percent"] = 100 * (operator.cpu_seconds() - marks[2]) / idle
            record["resident_mib"] = resident_bytes(operator.process.pid) / MIB
            print_result("one change at a time")
            record["change_applied_s"] = max(
                changed_within(plane, namespaces[number], f"m{number}", 2) for number in range(5)
            )
    return record


def settle(operator: OperatorUnderTest, timeout: float) -> None:
    """Wait until ten seconds pass without a write other than the lease's."""
    began, last, since = time.monotonic(), -1.0, time.monotonic()
    while time.monotonic() - since < 10:
        now = operator.requests("PATCH", "POST", "DELETE")
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() - began > timeout:
            raise TimeoutError(f"there are writes after {timeout:g} s")
        time.sleep(0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_scale", description=__doc__)
    parser.add_argument("--objects", type=int, default=1000, help="MambaDeployments")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to watch it do nothing")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds that each part may take")
    parser.add_argument("--operator", default="", help="more options of `mambaserve operator`")
    parser.add_argument(
        "--no-controllers",
        action="store_true",
        help="stop the cluster's controllers, as if they ran elsewhere",
    )
    options = parser.parse_args(arguments)
    record = measure(
        options.objects,
        options.idle,
        options.timeout,
        options.operator.split(),
        controllers=not options.no_controllers,
    )
    record = {name: round(value, 2) for name, value in record.items()}
    rows = [f"| {name} | {value:g} |" for name, value in record.items()]
    lines = [f"{options.objects} MambaDeployments.", "", "| what | value |", "| --- | --- |", *rows]
    write("operator-scale", {"objects": options.objects, "found": record}, lines)


if __name__ == "__main__":
    main()
