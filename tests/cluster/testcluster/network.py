"""The network namespace a node lives in: bridge, addresses and packet rules exist in it and vanish with it.

Processes enter it with nsenter, not with `ip netns exec`, which hides /sys/fs/cgroup. Our own connections
into it are opened by a thread that enters the namespace and hands the socket out.
"""

import ctypes
import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testcluster.errors import CommandFailed

BRIDGE = "pods"
ADDRESS = "10.88.0.1"
POD_RANGE = "10.88.0.0/16"
CLONE_NEWNET = 0x40000000
SETTINGS = (
    "net/ipv4/ip_forward",
    # Without it answers from one pod to another on the same bridge would pass by the Service rules.
    "net/bridge/bridge-nf-call-iptables",
)


class NetworkNamespace:
    """One named network namespace with a bridge for pods."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = Path("/run/netns") / name
        self.prefix = ("nsenter", f"--net={self.path}", "--")

    def create(self) -> None:
        """Makes the namespace, its bridge and its routes. Raises CommandFailed."""
        run("ip", "netns", "add", self.name)
        for words in (
            "link set lo up",
            f"link add {BRIDGE} type bridge",
            f"address add {ADDRESS}/16 dev {BRIDGE}",
            f"link set {BRIDGE} up",
            # Service addresses need a route to reach the rules that rewrite them.
            f"route add default dev {BRIDGE}",
        ):
            run("ip", "-n", self.name, *words.split())
        for setting in SETTINGS:
            shell = f"test ! -e /proc/sys/{setting} || echo 1 > /proc/sys/{setting}"
            run(*self.prefix, "sh", "-c", shell)

    def delete(self) -> None:
        """Removes the namespace; one that is not there is no error."""
        if self.path.exists():
            run("ip", "netns", "del", self.name)

    def processes(self) -> list[int]:
        """The ids of the processes in it."""
        if not self.path.exists():
            return []
        return [int(pid) for pid in run("ip", "netns", "pids", self.name).split()]

    def dial(self, address: tuple[str, int], timeout: float) -> socket.socket:
        """A TCP connection from inside the namespace, usable from anywhere. Raises OSError."""
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
    """Standard output of a command of the machine. Raises CommandFailed with what it said."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        raise CommandFailed(
            f"`{' '.join(argv)}` ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}",
            returncode=done.returncode,
            stderr=done.stderr,
        )
    return done.stdout
