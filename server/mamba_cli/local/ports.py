"""Ports on this machine: is one free, and which are. The answer can be stale by the time it is used."""

import errno
import socket

from mamba_cli.errors import InvalidInput, RunFailed


def front_ports(host: str, first: int, count: int) -> list[int]:
    """`count` consecutive ports from `first`; 0 = any free ones.

    Raises `RunFailed` when one is taken, `InvalidInput` when they run past 65535 or the host is not ours.
    """
    if not host:
        raise InvalidInput("--host: is empty: give an address, such as 127.0.0.1 or 0.0.0.0")
    if first == 0:
        return free_ports(count, host)
    if first + count - 1 > 65535:
        raise InvalidInput(f"--port: {count} ports from {first} on run past 65535")
    wanted = list(range(first, first + count))
    for port in wanted:
        with _socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                raise _foreign(host, error) or RunFailed(
                    f"port {port} of {host} is taken: end what uses it, or give another --port (0 = any free)"
                ) from error
    return wanted


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different free ports. Raises like `front_ports`."""
    probes = [_socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    except OSError as error:
        raise _foreign(host, error) or RunFailed(f"no free port on {host}: {error}") from error
    finally:
        for probe in probes:
            probe.close()


def _foreign(host: str, error: OSError) -> InvalidInput | None:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return InvalidInput(f"--host: {host} is no address of this machine")
    return None


def _socket() -> socket.socket:
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return probe
