"""A small JSON client of the Kubernetes API: what readiness probes and fixtures ask many times a second.

Tests that check what a user does go through kubectl; each start of that program costs a tenth of a second.
"""

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
    """Sends each request over a connection of its own, so that a restart of the server is no special case."""

    def __init__(
        self,
        server: str,
        authority: Path,
        client: Certificate,
        dial: Dial = socket.create_connection,
    ) -> None:
        split = urlsplit(server)
        self._host, self._port = split.hostname or "", split.port or 443
        self._dial = dial
        self._context = ssl.create_default_context(cafile=authority)
        self._context.load_cert_chain(client.certificate, client.key)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = 10.0,
    ) -> tuple[int, Any]:
        """(status, body): parsed if it is JSON, text otherwise. Raises OSError when the server is away."""
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.sock = self._context.wrap_socket(
            self._dial((self._host, self._port), timeout), server_hostname=self._host
        )
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": content_type, "Accept": accept})
            answer = connection.getresponse()
            text = answer.read().decode()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        is_json = (answer.getheader("Content-Type") or "").startswith("application/json")
        return answer.status, json.loads(text) if is_json else text

    def answers(self, path: str = "/readyz") -> bool:
        """Whether GET `path` says 200."""
        try:
            return self.request("GET", path, timeout=2.0)[0] == http.HTTPStatus.OK
        except OSError:
            return False
