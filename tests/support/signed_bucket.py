"""An address of Google's buckets that reads only for a service account: it checks each request's signature.

It stands in front of a store that speaks the buckets' XML, and forwards what is signed. The client signs a
token of its own with the account's key, which Google's buckets accept without another service.
"""

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from testcluster.pki import Authority, Identity

READER = "reader@project.iam.gserviceaccount.com"
PASSED_ON = ("Range", "If-Match")
SCOPES = {
    "https://www.googleapis.com/auth/devstorage.full_control",
    "https://www.googleapis.com/auth/devstorage.read_only",
    "https://www.googleapis.com/auth/cloud-platform",
}
"""Scopes of which one allows to read."""


class SignedBucket(NamedTuple):
    """A running store."""

    url: str
    certificate: Path
    """Certificate of the authority that clients have to trust."""
    key: rsa.RSAPrivateKey
    """Key of the account that may read."""
    reads: list[str]
    """Paths of the requests with a right signature."""

    def account(self, key: rsa.RSAPrivateKey | None = None) -> str:
        """Return the JSON of the service account, with its own key or another one."""
        private = (key or self.key).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return json.dumps(
            {
                "type": "service_account", "client_email": READER, "private_key_id": "k1",
                "private_key": private.decode(), "gcs_base_url": self.url,
            }
        )  # fmt: skip


def new_key() -> rsa.RSAPrivateKey:
    """Return a new key of an account."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@contextmanager
def signed_bucket(store: str, folder: Path) -> Iterator[SignedBucket]:
    """Run the address in front of the store at the URL `store`; its authority is in `folder`."""
    key = new_key()
    reads: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if not _is_signed(token, key.public_key()):
                self._answer(401, b"<Error><Code>InvalidToken</Code></Error>", {})
                return
            reads.append(self.path)
            headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
            request = urllib.request.Request(store + self.path, headers=headers, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    self._answer(answer.status, answer.read(), dict(answer.headers.items()))
            except urllib.error.HTTPError as error:
                self._answer(error.code, error.read(), {})

        do_HEAD = do_GET  # noqa: N815 - the name that the server looks up

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                    self.send_header(name, value)
            if not any(name.lower() == "content-length" for name in headers):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    authority = Authority(folder / "pki")
    own = authority.issue(Identity("bucket", "/CN=127.0.0.1", ("IP:127.0.0.1",)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"https://127.0.0.1:{server.server_address[1]}"
        yield SignedBucket(url, authority.root.certificate, key, reads)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _is_signed(token: str, key: rsa.RSAPublicKey) -> bool:
    """Return whether the account that may read has signed the token, for reading and for now."""
    parts = token.split(".")
    if len(parts) != 3:
        return False
    try:
        key.verify(_decoded(parts[2]), f"{parts[0]}.{parts[1]}".encode(), padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    head, claims = (json.loads(_decoded(part)) for part in parts[:2])
    return (
        (head["alg"], head["kid"], claims["iss"]) == ("RS256", "k1", READER)
        and claims["iat"] - 60 <= time.time() < claims["exp"]
        and not SCOPES.isdisjoint(claims["scope"].split())
    )


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
