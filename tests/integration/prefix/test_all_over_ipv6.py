"""A node without IPv4: engine, gateway, Redis and the receivers of spans talk over IPv6 alone."""

import urllib.request
from collections.abc import Callable

import pytest

from eventually import wait_until
from ipv6 import has_ipv6
from otlp_receiver import grpc_receiver, http_receiver
from redis_server import RedisServer
from servers import Command, Server, call

pytestmark = [pytest.mark.redis, pytest.mark.slow]
HERE = "::1"


def metric(url: str, sample: str) -> float:
    """Return the value of one sample; 0 where there is none yet."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{sample} ")), 0.0)


@pytest.mark.skipif(not has_ipv6(), reason="this kernel has no IPv6")
def test_prefixes_and_spans_of_a_request_arrive(
    start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    redis = start_redis(host=HERE)
    with http_receiver(HERE) as over_http, grpc_receiver(HERE) as over_grpc:
        shared = (
            "--host",
            HERE,
            "--redis-url",
            redis.url,
            "--prefix-index-scope",
            "s",
            "--trace-sampling",
            "1",
        )
        with (
            Server(
                "builtin://tiny-recall", "--admin-host", HERE, *shared,
                "--otlp-endpoint", over_grpc.url, "--otlp-protocol", "grpc",
            ) as engine,
            Command(
                "gateway", "--port", "0", "--backend", engine.url, *shared, "--otlp-endpoint", over_http.url
            ) as gateway,
        ):  # fmt: skip
            url = gateway.wait_for(r"ready at (http://\[::1\]:\d+)")[1]
            assert engine.url.startswith("http://[::1]:")
            body = {"model": engine.model, "prompt": list(range(5, 205)), "max_tokens": 2, "ignore_eos": True}
            status, answer = call(f"{url}/v1/completions", body)
            assert status == 200, answer
            wait_until(lambda: metric(url, "mambaserve_prefix_index_entries") > 0, "what Redis tells")
            assert metric(url, "mambaserve_prefix_index_redis_up") == 1
            status, answer = call(f"{url}/v1/completions", body)
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            wait_until(lambda: over_http.spans and over_grpc.spans, "the spans of gateway and engine")
            assert {span.service for span in over_http.spans} == {"mambaserve-gateway"}
            assert {span.service for span in over_grpc.spans} == {"mambaserve"}
