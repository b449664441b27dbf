"""A small JSON client of the Kubernetes API: what readiness probes and fixtures ask many times a second.

Tests that check what a user does go through kubectl; each start of that program costs a tenth of a second.
"""

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from testcluster.pki import Certificate

Dial = Callable[[tuple[str, int], float], socket.socket]
"""Opens a TCP connection: (host, port), timeout in seconds."""


class ApiClient:
    """Keeps connections for what is read, which is asked again and again: a handshake costs more than that.

    What is written goes over a connection of its own, so that a restart of the server is no special case.
    """

    def __init__(
        self,
        server: str,
        authority: Path,
        client: Certificate | str,
        dial: Dial = socket.create_connection,
    ) -> None:
        """Prepare connections; client: certificate or bearer token."""
        split = urlsplit(server)
        self._host, self._port = split.hostname or "", split.port or 443
        self._dial = dial
        self._context = ssl.create_default_context(cafile=authority)
        self._headers: dict[str, str] = {}
        if isinstance(client, str):
            self._headers["Authorization"] = f"Bearer {client}"
        else:
            self._context.load_cert_chain(client.certificate, client.key)
        self._kept: list[http.client.HTTPConnection] = []
        """Unused connections whose last answer was read to its end."""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = 120.0,
    ) -> tuple[int, Any]:
        """Send a request; return (status, body), parsed if JSON. Raises OSError when the server is away."""
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type, "Accept": accept, **self._headers}
        request_parts = method, path, payload, headers
        while method == "GET" and self._kept:
            # The server ends those it has waited long for, or that were from before its restart.
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = self._kept.pop()
                return self._ask(connection, request_parts, timeout)
        try:
            return self._ask(self._connection(timeout), request_parts, timeout)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.sock = self._context.wrap_socket(
            self._dial((self._host, self._port), timeout), server_hostname=self._host
        )
        return connection

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        request: tuple[str, str, str | None, dict[str, str]],
        timeout: float,
    ) -> tuple[int, Any]:
        method, _, _, _ = request
        kept = False
        try:
            connection.sock.settimeout(timeout)
            connection.request(*request)
            answer = connection.getresponse()
            text = answer.read().decode()
            kept = method == "GET" and not answer.will_close
        finally:
            self._kept.append(connection) if kept else connection.close()
        is_json = (answer.getheader("Content-Type") or "").startswith("application/json")
        return answer.status, json.loads(text) if is_json else text

    def answers(self, path: str = "/readyz") -> bool:
        """Return whether GET `path` says 200."""
        try:
            return self.request("GET", path, timeout=2.0)[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def close(self) -> None:
        """Close the connections; another request opens new ones."""
        while self._kept:
            self._kept.pop().close()
