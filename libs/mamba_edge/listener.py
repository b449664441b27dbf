"""Listening sockets and the URLs that lead to them."""

import errno
import ipaddress
import socket

from mamba_api.names import authority


class CannotListen(OSError):
    """The address is taken, not ours, or no address; the message names it, `option` who chose it."""

    def __init__(self, message: str, option: str = "--port") -> None:
        super().__init__(message)
        self.option = option


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address that does not listen yet; port 0 takes a free one. `::` is every address of this
    machine, of IPv4 too.

    Raises OSError; gaierror for what is no address.
    """
    everywhere = host == "::"
    if everywhere and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104 - asked for; a kernel without IPv6 has no other
    info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    made = socket.socket(info[0], socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if everywhere and made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(info[4])
    except OSError:
        made.close()
        raise
    return made


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, at an address as `bound` takes it. Raises CannotListen."""
    try:
        listener = bound(host, port)
        try:
            listener.listen(2048)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        said = f"cannot listen on {authority(host, port)}: {error.strerror or error}"
        not_here = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        raise CannotListen(said, "--host" if not_here else "--port") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a browser on this machine reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    return url_at(host, port)


def url_at(host: str, port: int) -> str:
    """Where a browser on this machine reaches what listens on an address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(host, host)  # noqa: S104 - shown, not bound
    return f"http://{authority(host, port)}"


def is_loopback(host: str) -> bool:
    """Whether an address is only reachable from this machine (or network namespace)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
