"""The network namespace a node lives in: bridge, addresses and packet rules exist in it and vanish with it.

Processes enter it with nsenter, not with `ip netns exec`, which hides /sys/fs/cgroup. Our own connections
into it are opened by a thread that enters the namespace and hands the socket out.
"""

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testcluster.errors import CommandFailed

BRIDGE = "pods"
CLONE_NEWNET = 0x40000000
SETTINGS = (
    "net/ipv4/ip_forward",
    # Without it answers from one pod to another on the same bridge would pass by the Service rules.
    "net/bridge/bridge-nf-call-iptables",
)


@dataclass(frozen=True)
class Subnet:
    """The addresses of a node and its pods, by the node's number from 0 on."""

    number: int

    @property
    def address(self) -> str:
        """The node's own."""
        return f"10.{88 + self.number}.0.1"

    @property
    def pods(self) -> str:
        """The range of its pods."""
        return f"10.{88 + self.number}.0.0/16"


FIRST = Subnet(0)
CLUSTER_RANGE = "10.88.0.0/13"
"""The ranges of eight nodes."""


class NetworkNamespace:
    """One named network namespace with a bridge for pods."""

    def __init__(self, name: str, subnet: Subnet = FIRST) -> None:
        self.name, self.subnet = name, subnet
        self.path = Path("/run/netns") / name
        self.prefix = ("nsenter", f"--net={self.path}", "--")

    def create(self) -> None:
        """Create the namespace, its bridge and its routes. Raises CommandFailed."""
        run("ip", "netns", "add", self.name)
        for words in (
            "link set lo up",
            f"link add {BRIDGE} type bridge",
            f"address add {self.subnet.address}/16 dev {BRIDGE}",
            f"link set {BRIDGE} up",
            # Service addresses need a route to reach the rules that rewrite them.
            f"route add default dev {BRIDGE}",
        ):
            run("ip", "-n", self.name, *words.split())
        for setting in SETTINGS:
            shell = f"test ! -e /proc/sys/{setting} || echo 1 > /proc/sys/{setting}"
            run(*self.prefix, "sh", "-c", shell)

    def connect(self, other: "NetworkNamespace") -> None:
        """Connect two nodes, so that they and their pods reach each other, until either is deleted.

        Raises CommandFailed.
        """
        here, peer = self._device(other), "control-plane"
        cable = f"link add {here} netns {self.name} type veth peer name {peer} netns {other.name}"
        run("ip", *cable.split())
        number = other.subnet.number
        run("ip", "-n", self.name, *f"address add 10.97.{number}.1/30 dev {here}".split())
        run("ip", "-n", other.name, *f"address add 10.97.{number}.2/30 dev {peer}".split())
        run("ip", "-n", other.name, *f"link set {peer} up".split())
        self._plug_in(other)
        run("ip", "-n", other.name, *f"route add {self.subnet.pods} via 10.97.{number}.1".split())

    @contextmanager
    def cut_off(self, other: "NetworkNamespace") -> Iterator[None]:
        """Cut the connection to the other node for the length of the block: packets are lost."""
        run("ip", "-n", self.name, *f"link set {self._device(other)} down".split())
        try:
            yield
        finally:
            self._plug_in(other)

    def _plug_in(self, other: "NetworkNamespace") -> None:
        run("ip", "-n", self.name, *f"link set {self._device(other)} up".split())
        # Routes go with a device that is down.
        route = f"route replace {other.subnet.pods} via 10.97.{other.subnet.number}.2"
        run("ip", "-n", self.name, *route.split())

    def _device(self, other: "NetworkNamespace") -> str:
        return f"node-{other.subnet.number}"

    def delete(self) -> None:
        """Remove the namespace; a missing one is no error."""
        if self.path.exists():
            run("ip", "netns", "del", self.name)

    def processes(self) -> list[int]:
        """Return the ids of the processes in the namespace."""
        if not self.path.exists():
            return []
        return [int(pid) for pid in run("ip", "netns", "pids", self.name).split()]

    def dial(self, address: tuple[str, int], timeout: float) -> socket.socket:
        """Open a TCP connection from inside the namespace, usable from anywhere. Raises OSError."""
        # A namespace belongs to a thread: this one enters it and ends, ours stays where it is.
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(self._dial_inside, address, timeout).result()

    def _dial_inside(self, address: tuple[str, int], timeout: float) -> socket.socket:
        with self.path.open() as handle:
            if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(self.path))
        return socket.create_connection(address, timeout)


def run(*argv: str, stdin: str | None = None) -> str:
    """Run a command of the machine and return its standard output.

    Raises CommandFailed with its error output.
    """
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        raise CommandFailed(
            f"`{' '.join(argv)}` ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}",
            returncode=done.returncode,
            stderr=done.stderr,
        )
    return done.stdout
