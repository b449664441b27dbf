"""The operator as a user starts it: `mambaserve operator` as a process of its own, against a test cluster."""

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from eventually import PATIENCE
from prefork import FORK_SERVER, ForkedProcess

ROOT = Path(__file__).parents[2]


class OperatorProcess:
    """One running operator."""

    def __init__(self, process: ForkedProcess, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def text(self) -> str:
        """Return the log so far."""
        return self.log.read_text(errors="replace")

    @property
    def port(self) -> int:
        """Port of its probes."""
        match = re.search(r'"liveness": "127\.0\.0\.1:(\d+)"', self.text)
        assert match, f"the operator has not started:\n{self.text[-2000:]}"
        return int(match[1])

    def get(self, path: str) -> str:
        """Return the body of one GET on the probe server."""
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def counted(self, name: str) -> float:
        """Return one of its metrics, `mambaserve_operator_NAME`, summed over its labels."""
        series = re.compile(rf"^mambaserve_operator_{name}(?:_total)?(?:{{.*}})? (\S+)$", re.MULTILINE)
        return sum(float(value) for value in series.findall(self.get("/metrics")))

    def asked(self) -> float:
        """Return the number of requests to the API server, without watches and the lease."""
        series = r'^mambaserve_operator_requests_total{method="\w+",resource="(?!leases)\w+"} (\S+)$'
        return sum(map(float, re.findall(series, self.get("/metrics"), re.MULTILINE)))

    def wait_for(self, words: str, timeout: float = 20.0) -> None:
        """Wait until `words` appear in the log."""
        deadline = time.monotonic() + timeout
        while words not in self.text:
            assert self.process.poll() is None, f"the operator ended:\n{self.text[-4000:]}"
            assert time.monotonic() < deadline, f"never logged {words!r}:\n{self.text[-4000:]}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a crash would: no clean-up of any kind."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        """End it as the kubelet would; gives the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextmanager
def running_operator(
    kubeconfig: Path, log: Path, arguments: Sequence[str] = (), **environment: str
) -> Iterator[OperatorProcess]:
    """Run an operator for the length of the block; its lease survives pauses of a busy machine."""
    settings = {"MAMBASERVE_LEASE_DURATION": "30", "MAMBASERVE_RENEW_EVERY": "0.5", "OMP_NUM_THREADS": "1"}
    # The log is for reading after a failure too: no buffering.
    with log.open("ab", buffering=0) as out:
        process = FORK_SERVER.start(
            "-m", "mamba_cli", "operator", "--kubeconfig", str(kubeconfig),
            "--liveness-port", "0", *arguments,
            env={**os.environ, **settings, **environment}, cwd=ROOT,
            stdout=out.fileno(), stderr=out.fileno(),
        )  # fmt: skip
        running = OperatorProcess(process, log)
        try:
            yield running
        finally:
            if process.poll() is None:
                running.stop()
