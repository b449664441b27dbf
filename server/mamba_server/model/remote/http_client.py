"""`HttpClient`: requests to web servers and registries, with their failures in words.

`web_store` and `registry_store` use it, from several threads. It follows redirects, and sends credentials to
no other host. The variables HTTPS_PROXY, HTTP_PROXY, NO_PROXY and SSL_CERT_FILE are respected.
"""

import ssl
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError

from mamba_server.model.remote.errors import (
    AccessDenied,
    FilesChanged,
    Interrupted,
    MissingFiles,
    RemoteError,
)

CHUNK = 1 << 20
REQUESTS = 4
"""Requests that are made for one small answer while the server is away or overloaded."""
REQUEST_PAUSE_SECONDS = 0.5
SMALL_ANSWER = 16 << 20
"""Bytes above which a document, such as a manifest, is refused."""
_CONNECTIONS = 16
_TIMEOUT = urllib3.Timeout(connect=15, read=60)
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
USER_AGENT = "mambaserve"


class HttpClient:
    """Connections to the hosts of one model."""

    def __init__(self, uri: str) -> None:
        """Prepare requests for the model at `uri`, which messages name."""
        self._uri = uri
        context = ssl.create_default_context()
        self._direct = urllib3.PoolManager(maxsize=_CONNECTIONS, block=True, ssl_context=context)
        self._proxies = {
            scheme: urllib3.ProxyManager(address, maxsize=_CONNECTIONS, block=True, ssl_context=context)
            for scheme, address in getproxies().items()
            if scheme in ("http", "https") and address.startswith(("http://", "https://"))
        }

    def answer(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> "Answer":
        """Return a whole small answer of any status but a temporary failure. Raises Interrupted."""
        for attempt in range(REQUESTS):
            try:
                return self._answer(method, url, headers)
            except Interrupted:
                if attempt == REQUESTS - 1:
                    raise
            time.sleep(REQUEST_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _answer(self, method: str, url: str, headers: Mapping[str, str] | None) -> "Answer":
        try:
            with self._open(method, url, headers) as response:
                if response.status in _TEMPORARY:
                    raise self.refusal(response.status, url)
                content = b"" if method == "HEAD" else response.read(SMALL_ANSWER + 1)
        except HTTPError as error:
            raise self._unreachable(url, error) from error
        if len(content) > SMALL_ANSWER:
            raise MissingFiles(f"{self._uri}: {url} is no document of a model: it is too large")
        return Answer(response.status, dict(response.headers.items()), content, url)

    def part(self, url: str, start: int, end: int, headers: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the bytes of [start, end) of a file.

        A server that sends whole files only is read from the beginning. Raises RemoteError.
        """
        try:
            response = self._open("GET", url, {**headers, "Range": f"bytes={start}-{end - 1}"})
            with response:
                if response.status not in (200, 206):
                    raise self.refusal(response.status, url)
                offset = 0 if response.status == 200 else start
                left = end - start
                for chunk in response.stream(CHUNK, decode_content=False):
                    piece = chunk[max(start - offset, 0) :]
                    offset += len(chunk)
                    piece = piece[:left]
                    left -= len(piece)
                    if piece:
                        yield piece
                    if not left:
                        return
        except HTTPError as error:
            raise self._unreachable(url, error) from error
        if left:
            raise Interrupted(f"{self._uri}: {_short(url)} ended early")

    def refusal(self, status: int, url: str, advice: str = "") -> RemoteError:
        """Return the error for a status other than success."""
        text = f"{self._uri}: {_short(url)} answers {status}"
        if status in (401, 403):
            return AccessDenied(f"{text}: access is refused: {advice or 'check the credentials'}")
        if status in (404, 410):
            return MissingFiles(f"{text}: it is not there: {advice or 'check the URI'}")
        if status == 412:
            return FilesChanged(f"{text}: the file was replaced during the download: start again")
        if status in _TEMPORARY:
            return Interrupted(f"{text}: the server is overloaded or broken: try again later")
        return MissingFiles(f"{text}: check the URI")

    def _open(self, method: str, url: str, headers: Mapping[str, str] | None) -> urllib3.BaseHTTPResponse:
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme)
        pool = proxy if proxy is not None and not proxy_bypass(parts.netloc) else self._direct
        return pool.request(
            method,
            url,
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **(headers or {})},
            preload_content=False,
            redirect=True,
            retries=urllib3.Retry(total=None, connect=0, read=0, redirect=5, status=0, other=0),
            timeout=_TIMEOUT,
        )

    def _unreachable(self, url: str, error: HTTPError) -> RemoteError:
        cause = error.reason if isinstance(error, MaxRetryError) and error.reason else error
        return Interrupted(
            f"{self._uri}: {_short(url)} cannot be reached ({type(cause).__name__}: {str(cause)[:200]}): "
            "check the network, the address and the proxy"
        )


class Answer:
    """One answer of a server, with its whole content."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes, url: str) -> None:
        self.status, self.content, self.url = status, content, url
        self._headers = {name.lower(): value for name, value in headers.items()}

    def header(self, name: str) -> str:
        """Return a header; empty = it is absent."""
        return self._headers.get(name.lower(), "")


def _short(url: str) -> str:
    """Return the URL without its query, which may hold a signature."""
    return url.partition("?")[0]
