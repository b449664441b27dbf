"""Listening sockets, the URLs that lead to them, and the line that announces a ready server."""

import errno
import ipaddress
import socket
from typing import TextIO

from mamba_api.names import authority
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


class CannotListen(OSError):
    """An address that is in use, belongs to another machine or is invalid.

    `option` is the name of the setting that has the address.
    """

    def __init__(self, message: str, option: str = "--port") -> None:
        super().__init__(message)
        self.option = option


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address and does not listen yet; port 0 takes a free one.

    `::` is every address of this machine, including IPv4. Raises OSError, and gaierror for an invalid
    address.
    """
    everywhere = host == "::"
    if everywhere and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104 - requested; a kernel without IPv6 has no other
    info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(info[0], socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if everywhere and listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(info[4])
    except OSError:
        listener.close()
        raise
    return listener


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket at an address of the form that `bound` takes. Raises CannotListen."""
    try:
        listener = bound(host, port)
        try:
            listener.listen(2048)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        message = f"cannot listen on {authority(host, port)}: {error.strerror or error}"
        not_here = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        raise CannotListen(message, "--host" if not_here else "--port") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL by which a browser on this machine reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    return url_at(host, port)


def url_at(host: str, port: int) -> str:
    """Return the URL by which a browser on this machine reaches a server at an address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(host, host)  # noqa: S104 - shown, not bound
    return f"http://{authority(host, port)}"


def is_loopback(host: str) -> bool:
    """Return whether an address is only reachable from this machine (or network namespace)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def tell_ready(line: str, stream: TextIO) -> None:
    """Write `line` to `stream` at once. A failure to write it is only logged.

    Engine and gateway write the line once they serve. A full disk or a pipe without a reader is no reason to
    stop serving.
    """
    try:
        stream.write(line + "\n")
        stream.flush()
    except OSError as error:
        log.warning("ready_line_lost", line=line, reason=error.strerror)
