"""A prefill engine behind relays, two decode engines and a gateway, as processes that a test may strike.

Tests of hand-overs arm the relays' trigger with what happens at a message, send a `Request`, and look at what
the engines hold afterwards.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psutil

import mamba_server
from eventually import wait_until
from hand_over_wire import relays
from servers import Command, Server, call
from testcluster.free_ports import free_port

SILENCE = 10.0
"""Seconds without a heartbeat after which a server replaces its engine process."""
TOKENS = 24
WORDS = " ".join(f"word{number}" for number in range(40))


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
        """Send it, and read the answer to its end."""
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
    """A prefill engine behind relays, two decode engines, and a gateway.

    Attributes:
        trigger: trigger of the relays, at which a test arms what happens.
        readers: the decode engine that opened a transfer, by the port of its connection.
    """

    def __init__(self, stack: ExitStack, *, lease: float) -> None:
        """Start all of them; `lease` is that of exports, in seconds."""
        self._stack, self._lease = stack, lease
        port = free_port()
        self.prefill = self._engine("prefill", port)
        self.decoders = [self._engine("decode", 0) for _ in range(2)]
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
        self._numbers, self._transfer_port = count(100), port
        self.readers: dict[int, Server] = {}

    @property
    def engines(self) -> list[Server]:
        """Return all engines."""
        return [self.prefill, *self.decoders]

    def _engine(self, role: str, port: int, api_port: int = 0) -> Server:
        assert mamba_server.__file__ is not None
        engine = Server(
            Path(mamba_server.__file__).parent / "builtin" / "tiny-recall",
            "--role", role, "--transfer-port", str(port), "--transfer-lease", str(self._lease), "--seed", "1",
            "--arena-bytes", "16Mi", "--batch-invariant", "--engine-silence", str(SILENCE),
            "--port", str(api_port),
        )  # fmt: skip
        return self._stack.enter_context(engine)

    def replace(self, engine: Server) -> None:
        """Start another engine in the place of one that was killed, with its ports, as a pod would be."""
        api_port = urlsplit(engine.url).port or 0
        if engine is self.prefill:
            self.prefill = self._engine("prefill", self._transfer_port, api_port)
        else:
            self.decoders[self.decoders.index(engine)] = self._engine("decode", 0, api_port)

    def request(self) -> Request:
        """Return a request whose prompt no engine has cached."""
        number = next(self._numbers)
        return Request(self.url, f"{number} {WORDS} {number * 7}")

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
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                for process in psutil.Process(engine.process.pid).children():
                    if port in {each.laddr.port for each in process.net_connections("tcp")}:
                        self.readers[port] = engine


def signal_whole(engine: Server, number: signal.Signals) -> None:
    """Send a signal to all processes of an engine: the server of the API and the one that computes."""
    server = psutil.Process(engine.process.pid)
    for process in (*server.children(recursive=True), server):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def assert_right(fleet: Fleet, request: Request) -> None:
    """Compare the answer, or what came of it, with that of one engine."""
    body = {"prompt": request.prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    status, answer = call(f"{fleet.decoders[1].url}/v1/completions", body)
    assert status == 200
    expected = answer["choices"][0]["text"]
    if request.left or request.error:
        assert expected.startswith(request.text)
    else:
        assert (request.text, request.done) == (expected, True)
