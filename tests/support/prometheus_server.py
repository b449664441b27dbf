"""A real Prometheus for tests: the one on the PATH, else Debian's package, unpacked beside the other caches.

Needs no root: the package is downloaded and unpacked, not installed. Without a source of packages the test
that wants it is skipped, and says why.
"""

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from debian_packages import PackageMissing, unpacked
from eventually import wait_until
from testcluster.free_ports import free_port

PROGRAMS = ("prometheus", "promtool")


@cache
def programs() -> dict[str, Path]:
    """Return the paths of prometheus and promtool; skips the test where there are none."""
    here = {name: Path(path) for name in PROGRAMS if (path := shutil.which(name))}
    if len(here) == len(PROGRAMS):
        return here
    try:
        folder = unpacked("prometheus")
    except PackageMissing as missing:
        pytest.skip(f"there is no prometheus on the PATH: {missing}")
    return {name: folder / "usr/bin" / name for name in PROGRAMS}


class Prometheus:
    """One that runs at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression now.

        Raises AssertionError with what Prometheus says against it.
        """
        return list(self._get("query", query=expression)["result"])

    def range(self, expression: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """Return the samples between two times (Unix seconds), `step` seconds apart."""
        times = {"start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        return list(self._get("query_range", query=expression, **times)["result"])

    def alerts(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of the alerts that fire, by name."""
        firing: dict[str, list[dict[str, str]]] = {}
        for one in self._get("alerts")["alerts"]:
            if one["state"] == "firing":
                firing.setdefault(one["labels"]["alertname"], []).append(one["labels"])
        return firing

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules, with their health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def targets_up(self) -> int:
        """Return the number of targets that were scraped successfully."""
        return sum(one["health"] == "up" for one in self._get("targets")["activeTargets"])

    def _get(self, what: str, **query: str) -> Any:
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{query or what}: {error.read().decode()}") from None


@contextmanager
def prometheus(
    folder: Path, jobs: dict[str, str], rules: dict[str, Any], interval: str
) -> Iterator[Prometheus]:
    """Run one that scrapes these addresses, `interval` apart; a job is the namespace of its target."""
    scrapes = [
        {
            "job_name": job,
            "static_configs": [{"targets": [url.removeprefix("http://")], "labels": {"namespace": job}}],
        }
        for job, url in jobs.items()
    ]
    every = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": scrapes}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    process, url = _started(folder)
    try:
        yield Prometheus(url)
    finally:
        process.kill()
        process.wait()


def _started(folder: Path) -> "tuple[subprocess.Popen[bytes], str]":
    """Start one that is ready, and another where somebody else took its port meanwhile."""
    for port in (free_port() for _ in range(3)):
        url = f"http://127.0.0.1:{port}"
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(
                [programs()["prometheus"], f"--config.file={folder / 'prometheus.yaml'}",
                 f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"],
                stdout=log, stderr=log, env={**os.environ, "GOMAXPROCS": "1"},
            )  # fmt: skip
        try:
            wait_until(partial(_is_ready_or_gone, process, url), "prometheus")
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.poll() is None:
            return process, url
    raise AssertionError((folder / "prometheus.log").read_text()[-2000:])


def _is_ready_or_gone(process: "subprocess.Popen[bytes]", url: str) -> bool:
    if process.poll() is not None:
        return True  # it has ended, which its caller sees
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
