"""A Redis behind TLS: its own where it can speak it (Redis 7), and that of a proxy before one that cannot."""

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from eventually import until
from faulty_port import FaultyPort
from mamba_prefix.redis_url import url_from
from real_index_world import real_world
from redis_server import RedisServer
from testcluster.free_ports import free_port

pytestmark = pytest.mark.redis
PASSWORD = "secret"
Start = Callable[..., RedisServer]


@dataclass(frozen=True)
class Certificate:
    """For 127.0.0.1, its own authority."""

    path: Path
    key: Path

    @property
    def options(self) -> tuple[str, ...]:
        """Options of a redis-server that presents a certificate and requires none of its clients."""
        files = ("--tls-cert-file", self.path, "--tls-key-file", self.key, "--tls-ca-cert-file", self.path)
        return (*map(str, files), "--tls-auth-clients", "no")

    @property
    def context(self) -> ssl.SSLContext:
        """The server's side of it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path, self.key)
        return context


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    if (program := shutil.which("openssl")) is None:
        pytest.skip("there is no openssl: apt-get install openssl")
    made = Certificate(tmp_path / "certificate.pem", tmp_path / "key.pem")
    subprocess.run(
        [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(made.key), "-out", str(made.path)],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


def needs_tls(server: RedisServer) -> None:
    if b"tls-port" not in server.command("CONFIG", "GET", "tls-port"):
        pytest.skip("this redis-server was built without TLS")


@asynccontextmanager
async def proxied(start_redis: Start, certificate: Certificate) -> AsyncIterator[int]:
    node = start_redis("--requirepass", PASSWORD)
    async with FaultyPort(node.port, certificate.context) as port:
        yield port.port


@asynccontextmanager
async def by_itself(start_redis: Start, certificate: Certificate) -> AsyncIterator[int]:
    needs_tls(start_redis())
    port = free_port()
    start_redis("--requirepass", PASSWORD, "--tls-port", str(port), *certificate.options)
    yield port


@pytest.mark.slow
@pytest.mark.parametrize("speaks", [by_itself, proxied])
async def test_with_tls_the_authority_and_the_password_in_the_file_s_address_decide(
    speaks: Callable[..., AsyncIterator[int]], start_redis: Start, certificate: Certificate, tmp_path: Path
) -> None:
    async with speaks(start_redis, certificate) as port:
        trusted = f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs={certificate.path}"
        file = tmp_path / "url"
        file.write_text(trusted + "\n")
        url = url_from(None, str(file))
        assert url is not None
        async with real_world(url) as made:
            made.start("a").change(20)
            await until(lambda: made.agrees)
        for wrong in (trusted.partition("?")[0], trusted.replace(PASSWORD, "other")):
            async with real_world(wrong) as made:
                made.start("a").change(5)
                await until(lambda: made.index.failures > 1 and made.engines["a"].publisher.failures > 1)
                assert made.index.state == "unavailable"


async def test_a_cluster_with_tls_is_followed(start_redis: Start, certificate: Certificate) -> None:
    needs_tls(start_redis())
    port = free_port()
    node = start_redis(
        "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--tls-cluster", "yes",
        "--tls-port", str(port), *certificate.options,
    )  # fmt: skip
    node.command("CLUSTER", "ADDSLOTS", *map(str, range(16384)))
    url = f"rediss+cluster://127.0.0.1:{port}?ssl_ca_certs={certificate.path}"
    async with real_world(url) as made:
        made.start("a").change(20)
        await until(lambda: made.agrees)


@pytest.mark.parametrize("asks", [True, False], ids=["it asks for the password", "it asks for none"])
async def test_sentinels_with_tls_name_the_master_with_tls(
    start_redis: Start, certificate: Certificate, tmp_path: Path, asks: bool
) -> None:
    needs_tls(start_redis())
    master_port, sentinel_port = free_port(), free_port()
    start_redis("--requirepass", PASSWORD, "--tls-port", str(master_port), *certificate.options)
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"sentinel monitor main 127.0.0.1 {master_port} 1\nsentinel auth-pass main {PASSWORD}\n"
        + f"requirepass {PASSWORD}\n" * asks
    )
    sentinel = start_redis()
    sentinel.stop()
    sentinel.options = (
        "--sentinel", "--tls-port", str(sentinel_port), "--tls-replication", "yes", *certificate.options,
    )  # fmt: skip
    sentinel.leading = (str(config),)
    sentinel.start()
    url = f"rediss+sentinel://:{PASSWORD}@127.0.0.1:{sentinel_port}/main/0?ssl_ca_certs={certificate.path}"
    async with real_world(url) as made:
        made.start("a").change(20)
        await until(lambda: made.agrees)
