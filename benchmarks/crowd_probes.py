"""The processes that `crowd` has beside its clients: one asks for probes, one answers them and has no crowd.

The clients of a crowd keep an event loop busy, so what they measure is their own loop. `watch` asks from
plain sockets until its standard input ends, one probe after another, and writes milliseconds and statuses as
JSON; it asks a second server at the same time, whose times say what the machine added. `answer` is that one.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time
from urllib.parse import urlsplit

EVERY = 0.02
"""Seconds between two rounds."""


def asked(url: str, path: str) -> tuple[int, float]:
    """Return the status and milliseconds of a probe on a connection of its own."""
    parts = urlsplit(url)
    begin = time.perf_counter()
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as connection:
        connection.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    return int(answer[9:12]), 1e3 * (time.perf_counter() - begin)


def watch(url: str, control: str, paths: list[str]) -> None:
    """Ask until nobody wants to know any more."""
    with contextlib.suppress(OSError):
        os.nice(-10)  # where it may: the clients of the crowd take all processors
    probes, controls = [], []
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        probes += [asked(url, path) for path in paths]
        controls.append(asked(control, "/"))
    print(json.dumps({"probes": probes, "controls": controls}))


def answer() -> None:
    """Answer each connection, one after another."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"ready at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        answer()
