"""Ports for servers of tests that cannot choose their own."""

import random
import socket

FIRST, LAST = 10_000, 14_500
"""The ports that are tried. Each port that a Redis Cluster's nodes use among themselves is 10,000 higher. All
of them lie below those that the kernel gives to outgoing connections, and those of `mambaserve up`."""
BUS = 10_000
_random = random.SystemRandom()  # processes that are forked from one would draw the same ports


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return different ports of `host` on which nobody listens, nor on port + 10,000.

    Other tests open and close connections all the time. A port from the range of outgoing connections, such
    as the kernel gives to a listener that asks for any, may belong to one of them when the server binds it.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _random.randrange(FIRST, LAST)
        if port not in ports and _is_free(host, port) and _is_free(host, port + BUS):
            ports.append(port)
    return ports


def free_port(host: str = "127.0.0.1") -> int:
    """Return one such port."""
    return free_ports(1, host)[0]


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True
