"""Hand-overs that something happens to at each of their messages, in real engines behind a real gateway.

An engine process is killed, is stopped for good, or is stopped for longer than a lease; the client leaves; a
message is late by more than a lease. Every request ends with the right answer, or with an error within its
stream, and what either side held for it is free afterwards. That two leases are enough for this is shown by
their clock, in `tests/gates/test_leases_by_their_clock.py`: here the machine may be slow.
"""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

import mamba_server
from eventually import wait_until
from hand_over_wire import EXPORT_POINTS, TRANSFER_POINTS, relays
from matrix_size import LARGE
from servers import Command, Server, call

LEASE = 3.0
PAUSE = 1.5 * LEASE
SILENCE = 10.0
"""Seconds without a heartbeat after which a server replaces its engine process."""
TOKENS = 24
WORDS = " ".join(f"word{number}" for number in range(40))
POINTS = (*EXPORT_POINTS, *TRANSFER_POINTS)
HOLDINGS = (
    "slots_receiving", "slots_exported", "slots_quarantined", "pages_receiving", "pages_quarantined",
    "slots_live", "slots_tracking", "pages_sequence", "running", "waiting",
)  # fmt: skip
"""Names in the ledger of what transfers and requests hold."""
QUICK = {
    ("kill", "prefill", "bytes 2"), ("abort", "", "bytes 1"),
}  # fmt: skip
"""Cases that are no slow tests."""
REPRESENTATIVES = QUICK | {
    ("kill", "decode", "offer"), ("pause", "prefill", "export answered"), ("pause", "decode", "checksums"),
    ("stop", "prefill", "fetch"), ("stop", "decode", "bytes 3"), ("late", "", "valid"),
}  # fmt: skip
"""Each deed at each victim once, at points from the beginning to the end of a hand-over."""


def cases() -> Iterator[object]:
    """Yield every deed at every point; an engine that is stopped for good at every fourth."""
    every = [
        (deed, victim, point)
        for deed, victims in {
            "kill": ("prefill", "decode"), "pause": ("prefill", "decode"), "stop": ("prefill", "decode"),
            "abort": ("",), "late": ("",),
        }.items()
        for victim in victims
        for point in (POINTS[::4] if deed == "stop" else POINTS)
        # Before the prompt is computed no decode engine has the request.
        if not (victim == "decode" and point in EXPORT_POINTS)
    ]  # fmt: skip
    assert set(every) >= REPRESENTATIVES
    for case in every:
        if not (LARGE or case in REPRESENTATIVES):
            continue  # `make gates` has all of them: much of their time is waiting for leases
        marks = () if case in QUICK else (pytest.mark.slow,)
        yield pytest.param(*case, id="-".join(filter(None, case)).replace(" ", "_"), marks=marks)


@dataclass
class Request:
    """One streamed request of a client that may leave."""

    url: str
    prompt: str
    text: str = ""
    error: str = ""
    done: bool = False
    left: bool = False
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)

    def run(self) -> None:
        body = {
            "model": "tiny-recall", "prompt": self.prompt, "max_tokens": TOKENS, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        self._connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=120)
        try:
            self._connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            self._read(self._connection.getresponse())
        except (OSError, ValueError, http.client.HTTPException, AttributeError) as error:
            self.error = self.error or f"{type(error).__name__}: {error}"
        finally:
            self._connection.close()

    def _read(self, response: http.client.HTTPResponse) -> None:
        if response.status != 200:
            self.error = response.read().decode()
        for line in response:
            if line == b"data: [DONE]\n":
                self.done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    self.error = json.dumps(event["error"])
                for choice in event.get("choices", ()):
                    self.text += choice["text"]

    def leave(self) -> None:
        """Close the connection amid the answer, or before it."""
        self.left = True
        assert self._connection is not None
        self._connection.sock.shutdown(socket.SHUT_RDWR)


class Fleet:
    """A prefill engine behind relays, two decode engines, and a gateway."""

    def __init__(self, stack: ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.prefill = stack.enter_context(self._engine("prefill", port))
        self.decoders = [stack.enter_context(self._engine("decode", 0)) for _ in range(2)]
        self.engines = [self.prefill, *self.decoders]
        api_port = urlsplit(self.prefill.url).port
        assert api_port is not None
        export, self.trigger = stack.enter_context(relays(port, api_port, self._greeted))
        backends = [f"http://127.0.0.1:{export.port}", *(engine.url for engine in self.decoders)]
        self.gateway = stack.enter_context(
            Command(
                "gateway", "--port", "0", "--hand-over-tokens", "64", "--silence-timeout", "5",
                *(f"--backend={url}" for url in backends),
            )
        )  # fmt: skip
        self.url = self.gateway.wait_for(r"gateway ready at (http://\S+)")[1]
        self.numbers = count(100)
        self.readers: dict[int, Server] = {}

    @staticmethod
    def _engine(role: str, port: int) -> Server:
        assert mamba_server.__file__ is not None
        return Server(
            Path(mamba_server.__file__).parent / "builtin" / "tiny-recall",
            "--role", role, "--transfer-port", str(port), "--transfer-lease", str(LEASE), "--seed", "1",
            "--arena-bytes", "16Mi", "--batch-invariant", "--engine-silence", str(SILENCE),
        )  # fmt: skip

    def wait_until_ready(self) -> None:
        """Wait until every engine is ready, and the gateway may choose it."""

        def ready() -> bool:
            return bool(call(f"{self.url}/readyz")[1].get("endpoints", {}).get("ready") == 3)

        for engine in self.engines:
            wait_until(lambda engine=engine: call(f"{engine.url}/readyz")[0] == 200, "an engine to be ready")
        wait_until(ready, "all engines to be ready at the gateway")

    def _greeted(self, port: int) -> None:
        """Keep which decode engine opened a transfer from `port`, as long as the port is open."""
        for engine in self.decoders:
            for process in psutil.Process(engine.process.pid).children():
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    if port in {each.laddr.port for each in process.net_connections("tcp")}:
                        self.readers[port] = engine


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack)


def held(engine: Server) -> int | None:
    """Return the slots and pages that are held for transfers and requests; None = the engine is away."""
    status, ledger = call(f"{engine.admin}/admin/ledger")
    if status != 200:
        return None
    return int(sum(ledger[name] for name in HOLDINGS))


def wait_until_empty(engine: Server) -> None:
    """Wait until an engine holds nothing for transfers and requests."""
    wait_until(lambda: held(engine) == 0, f"the pools of {engine.url} to be empty")


def strike(deed: str, pid: int) -> None:
    os.kill(pid, signal.SIGKILL if deed == "kill" else signal.SIGSTOP)


@pytest.mark.parametrize(("deed", "victim", "point"), list(cases()))
def test_a_hand_over_that_is_struck_ends_right_and_leaves_nothing(
    fleet: Fleet, deed: str, victim: str, point: str
) -> None:
    fleet.wait_until_ready()
    number = next(fleet.numbers)
    request = Request(fleet.url, f"{number} {WORDS} {number * 7}")
    struck: list[Server] = []
    pids: list[int] = []

    def act(port: int) -> None:
        if deed == "abort":
            request.leave()
            time.sleep(LEASE / 8)  # so that the departure is noticed before the message goes on
        elif deed == "late":
            time.sleep(1.2 * LEASE)
        else:
            engine = fleet.prefill if victim == "prefill" else fleet.readers[port]
            struck.append(engine)
            pids.append(engine.engine_pid())
            strike(deed, pids[0])

    fleet.trigger.arm(point, act)
    client = threading.Thread(target=request.run)
    client.start()
    assert fleet.trigger.fired.wait(60), f"the hand-over did not come to {point!r}"
    since = time.monotonic()
    others = [engine for engine in fleet.engines if engine not in struck]
    if victim == "decode" and deed in ("pause", "stop"):
        wait_until_empty(fleet.prefill)
    if deed == "pause":
        time.sleep(max(0.0, since + PAUSE - time.monotonic()))
        os.kill(pids[0], signal.SIGCONT)
    client.join(60)
    assert not client.is_alive()
    for engine in others if deed in ("kill", "stop") else fleet.engines:
        wait_until_empty(engine)
    for engine in struck:
        wait_until(lambda engine=engine: held(engine) == 0, "the engine to come back by itself")
        assert (engine.engine_pid() == pids[0]) == (deed == "pause")
    assert_right(fleet, request)


def assert_right(fleet: Fleet, request: Request) -> None:
    """Compare the answer with that of one engine."""
    body = {"prompt": request.prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    status, answer = call(f"{fleet.decoders[1].url}/v1/completions", body)
    assert status == 200
    expected = answer["choices"][0]["text"]
    if request.left or request.error:
        assert expected.startswith(request.text)
    else:
        assert (request.text, request.done) == (expected, True)
