"""Free ports on this machine. A port can be taken between the check and its use."""

import errno
import random
import socket
from itertools import chain, repeat
from pathlib import Path

from mamba_cli.errors import InvalidInput, RunFailed
from mamba_edge.listener import bound

_RANGE_OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MOST_TRIES = 256
_random = random.SystemRandom()  # processes that are forked from one would draw the same ports


def front_port(host: str, port: int) -> int:
    """Return `port`, or any free port if it is 0.

    Raises `RunFailed` when the port is in use, `InvalidInput` when the host is no address of this machine.
    """
    if not host:
        raise InvalidInput("--host: is empty: give an address, such as 127.0.0.1 or 0.0.0.0")
    if port == 0:
        return free_ports(1, host)[0]
    try:
        bound(host, port).close()
    except OSError as error:
        raise _foreign(host, error) or RunFailed(
            f"port {port} of {host} {_why_not(error)}, or give another --port (0 = any free)"
        ) from error
    return port


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different free ports. Raises the errors of `front_port`.

    They lie below the ports that the system gives to outgoing connections, where such ports are free: a
    connection cannot take one of them before its process does.
    """
    probes: list[socket.socket] = []
    try:
        candidates = chain(_below_connections(), repeat(0))
        while len(probes) < count:
            port = next(candidates)
            try:
                probes.append(bound(host, port))
            except OSError as error:
                if port == 0 or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
        return [int(probe.getsockname()[1]) for probe in probes]
    except OSError as error:
        raise _foreign(host, error) or RunFailed(f"no free port on {host}: {error}") from error
    finally:
        for probe in probes:
            probe.close()


def _below_connections() -> list[int]:
    """Return ports to try, in random order, so that two processes rarely try the same ones at once."""
    try:
        first = int(_RANGE_OF_CONNECTIONS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return []
    ports = range(max(1024, first - 8192), first)
    return _random.sample(ports, min(_MOST_TRIES, len(ports)))


def _foreign(host: str, error: OSError) -> InvalidInput | None:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return InvalidInput(f"--host: {host} is not an address of this machine")
    return None


def _why_not(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "is in use: end the process that uses it"
    if error.errno == errno.EACCES:
        return f"cannot be used: {error.strerror}: start as root"
    return f"cannot be used: {error.strerror or error}"
