"""`served_progress`: serves the progress of a download, in bytes, at `/metrics` while it runs.

The operator reads the numbers from the loader's pod and reports them in the status of the deployment.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from mamba_api import names


class DownloadMetrics:
    """The metrics of one download, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._fetched = Gauge(
            names.METRIC_DOWNLOADED, "Bytes that the download has fetched.", registry=self.registry
        )
        self._total = Gauge(
            names.METRIC_TO_DOWNLOAD, "Bytes that the download fetches in all.", registry=self.registry
        )

    def set_progress(self, fetched: int, total: int) -> None:
        """Set the bytes fetched and the bytes in all."""
        self._fetched.set(fetched)
        self._total.set(total)


@contextmanager
def served_progress(port: int | None) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes (bytes fetched, bytes in all) and serve both on `port` of every address.

    With `port` None, nothing is served. An unusable port gives a warning, and the download goes on.
    """
    metrics, server = DownloadMetrics(), None
    if port is not None:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - a pod's own network
        try:
            server, thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            typer.echo(f"warning: no download metrics on port {port}: {error.strerror}", err=True)
    try:
        yield metrics.set_progress
    finally:
        if server is not None:
            server.shutdown()
            thread.join()
            server.server_close()
