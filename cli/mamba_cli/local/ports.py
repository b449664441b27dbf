"""Free ports on this machine. A port can be taken between the check and its use."""

import errno
import socket

from mamba_cli.errors import InvalidInput, RunFailed
from mamba_edge.listener import bound


def front_ports(host: str, first: int, count: int) -> list[int]:
    """Return `count` consecutive ports from `first`; 0 = any free ports.

    Raises `RunFailed` when a port is in use, `InvalidInput` when the ports exceed 65535 or the host is no
    address of this machine.
    """
    if not host:
        raise InvalidInput("--host: is empty: give an address, such as 127.0.0.1 or 0.0.0.0")
    if first == 0:
        return free_ports(count, host)
    if first + count - 1 > 65535:
        raise InvalidInput(f"--port: {count} ports from {first} exceed 65535")
    ports = list(range(first, first + count))
    for port in ports:
        try:
            bound(host, port).close()
        except OSError as error:
            raise _foreign(host, error) or RunFailed(
                f"port {port} of {host} {_why_not(error)}, or give another --port (0 = any free)"
            ) from error
    return ports


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different free ports. Raises the errors of `front_ports`."""
    probes: list[socket.socket] = []
    try:
        for _ in range(count):
            probes.append(bound(host, 0))  # noqa: PERF401 - the sockets before a failure must be closed
        return [int(probe.getsockname()[1]) for probe in probes]
    except OSError as error:
        raise _foreign(host, error) or RunFailed(f"no free port on {host}: {error}") from error
    finally:
        for probe in probes:
            probe.close()


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
