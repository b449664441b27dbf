"""`/metrics` of engines and gateways, as the product's own registries write it, over HTTP on loopback.

For clusters without nodes: each pod gets an address of its own at which the port of its kind is answered.
"""

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest

from mamba_api import names
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_server.api.metrics.engine_metrics import EngineMetrics
from mamba_server.api.metrics.request_metrics import RequestMetrics
from mamba_server.wire import EngineStats, Ready

PLACES = 64


def engine_text(
    *, running: int, waiting: int, checkpoints: int = 0, room: int = 0, prompt_tokens: int = 0
) -> str:
    """Return the metrics of an engine whose state slots are as full as its batch.

    `room`: states that it can take. `prompt_tokens`: tokens of the prompts that wait.
    """
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, "m")
    RequestMetrics(registry, "m")
    metrics.on_ready(Ready(1, 1, (), {}))
    gauges = {
        "requests_running": running, "requests_waiting": waiting, "max_running_requests": PLACES,
        "state_usage": running / PLACES, "kv_usage": 0.1, "arena_usage": 0.1, "checkpoints": checkpoints,
        "prompt_tokens_waiting": prompt_tokens, "prefill_tokens_per_second": 9000,
        "transfer_credits": room,
    }  # fmt: skip
    metrics.on_stats(EngineStats({}, {name: float(value) for name, value in gauges.items()}, [], []))
    return generate_latest(registry).decode()


class CountingEngine:
    """An engine whose registries count the requests that a test says it has served."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._engine = EngineMetrics(self._registry, "m")
        self._requests = RequestMetrics(self._registry, "m")
        self._engine.on_ready(Ready(1, 1, (), {}))
        self._admitted = self._shared = 0.0
        self.running = 0

    def serve(self, requests: int, prompt_tokens: int, output_tokens: int, shared: float | None) -> None:
        """Record requests that came and ended.

        `shared`: prompts' shared tokens; None: no memory of prompts.
        """
        for _ in range(requests):
            self._requests.submitted(prompt_tokens)
            self._requests.finished("stop", 1.0, tokens=output_tokens)
        counters: dict[str, float] = {}
        if shared is not None:
            self._admitted += requests * prompt_tokens
            self._shared += requests * prompt_tokens * shared
            counters = {
                "admitted_prompt_tokens_total": self._admitted, "shared_prompt_tokens_total": self._shared,
            }  # fmt: skip
        gauges = {"requests_running": float(self.running), "requests_waiting": 0.0}
        self._engine.on_stats(EngineStats(counters, gauges, [], []))

    def text(self) -> str:
        """Return the text of `/metrics`."""
        return generate_latest(self._registry).decode()


def gateway_text(*, in_flight: int, attempts: Mapping[str, tuple[int, int]] | None = None) -> str:
    """Return the metrics of a gateway without waiting requests.

    `attempts`: by engine, answered and failed ones.
    """
    endpoints = tuple(
        Endpoint(
            url=f"http://{name}",
            name=name,
            ready=True,
            draining=False,
            models=None,
            running=0,
            waiting=0,
            kv_usage=0.0,
            in_flight=0,
            in_flight_at_report=0,
            answered=answered,
            failed=failed,
        )
        for name, (answered, failed) in (attempts or {}).items()
    )
    metrics = GatewayMetrics(lambda: endpoints)
    metrics.in_flight.set(in_flight)
    return generate_latest(metrics.registry).decode()


class PodAddresses:
    """Addresses that answer; `texts` may be changed at any time."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(254) + 1}"
        self._count = 0
        self.texts: dict[str, Callable[[], str]] = {}

    def add(self, text: Callable[[], str]) -> str:
        """Add a pod that answers with the text and return its address."""
        self._count += 1
        address = f"{self._net}.{self._count}"
        self.texts[address] = text
        texts = self.texts

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = texts[address]().encode()
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer((address, names.HTTP_PORT), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self._stack.callback(thread.join, 10)
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)
        return address


@contextmanager
def pod_addresses() -> Iterator[PodAddresses]:
    """Yield the addresses of pods for the length of the block."""
    with ExitStack() as stack:
        yield PodAddresses(stack)
