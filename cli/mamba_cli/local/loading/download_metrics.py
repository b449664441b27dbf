"""`served_progress`: how many bytes of a download are here, at `/metrics` for as long as it takes.

The operator reads them from the loader's pod and says them in the status of the deployment.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from mamba_api import names


class DownloadMetrics:
    """The series of one download, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._fetched = Gauge(names.METRIC_DOWNLOADED, "Bytes that it has fetched.", registry=self.registry)
        self._total = Gauge(names.METRIC_TO_DOWNLOAD, "Bytes that it fetches in all.", registry=self.registry)

    def set_progress(self, fetched: int, total: int) -> None:
        """Bytes fetched, of bytes in all."""
        self._fetched.set(fetched)
        self._total.set(total)


@contextmanager
def served_progress(port: int | None) -> Iterator[Callable[[int, int], None]]:
    """A function to tell (bytes fetched, bytes in all); they are served on `port` of every address.

    None: they are not served. A port that cannot be had is no reason not to download.
    """
    metrics, server = DownloadMetrics(), None
    if port is not None:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - a pod's own network
        try:
            server, thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            typer.echo(f"warning: port {port} does not tell how far it is: {error.strerror}", err=True)
    try:
        yield metrics.set_progress
    finally:
        if server is not None:
            server.shutdown()
            thread.join()
            server.server_close()
