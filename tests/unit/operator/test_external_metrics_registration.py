"""Registration of the external metrics API: its certificate, the next one, and its address."""

import asyncio
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from aggregation_layer import API, NAME, Client, Cluster, Pki, shown
from eventually import until
from mamba_operator.external_metrics.certificate import serving_certificate
from mamba_operator.external_metrics.registration import Registration, RegistrationSettings
from testcluster.pki import Authority, Identity


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


def test_a_certificate_is_for_one_server_name_and_one_purpose(tmp_path: Path) -> None:
    made = serving_certificate(NAME, datetime.now(UTC), timedelta(days=1))
    for name, text in (("ca", made.authority), ("crt", made.certificate)):
        (tmp_path / name).write_bytes(text)

    def verified(*options: str) -> bool:
        argv = ["openssl", "verify", "-x509_strict", "-CAfile", tmp_path / "ca", *options, tmp_path / "crt"]
        return subprocess.run(argv, capture_output=True).returncode == 0

    assert verified("-verify_hostname", NAME, "-purpose", "sslserver")
    assert not verified("-verify_hostname", "other.sys.svc")
    assert not verified("-purpose", "sslclient")


async def test_a_certificate_is_followed_by_the_next_while_both_are_trusted(pki: Pki) -> None:
    cluster = Cluster(pki.authority.root.certificate)
    of = RegistrationSettings(
        "sys", "ext", "127.0.0.1", 0, "192.0.2.1", valid_for=3600, check_interval=0.02, overlap=0.05
    )
    clock = [datetime.now(UTC)]
    registration = Registration(cluster, shown(), of, wall=lambda: clock[0])  # type: ignore[arg-type]
    task = asyncio.create_task(registration.run())
    try:
        await until(lambda: cluster.bundles)
        port = cluster.slices[0]["ports"][0]["port"]
        first = cluster.bundles[-1]
        assert len(x509.load_pem_x509_certificates(first)) == 1
        await Client(port, first).get(API, show=pki.proxy)

        clock[0] += timedelta(seconds=1900)
        trusted: set[bytes] = set()
        while cluster.bundles[-1] == first or len(x509.load_pem_x509_certificates(cluster.bundles[-1])) == 2:
            # Whoever trusts what the cluster was told last is served at any moment.
            trusted.add(cluster.bundles[-1])
            assert (await Client(port, cluster.bundles[-1]).get(API, show=pki.proxy))[0] == 200
        last = cluster.bundles[-1]

        assert any(len(x509.load_pem_x509_certificates(each)) == 2 for each in trusted)
        assert (await Client(port, last).get(API, show=pki.proxy))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await Client(port, first).get(API, show=pki.proxy)
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_another_authority_of_the_api_server_is_taken_up_on_the_same_port(
    pki: Pki, tmp_path: Path
) -> None:
    cluster = Cluster(pki.authority.root.certificate)
    of = RegistrationSettings("sys", "ext", "127.0.0.1", 0, "192.0.2.1", check_interval=0.02)
    task = asyncio.create_task(Registration(cluster, shown(), of).run())  # type: ignore[arg-type]
    next_one = Authority(tmp_path / "next")
    client = next_one.issue(Identity("proxy", "/CN=front-proxy-client", ("DNS:x",)))
    try:
        await until(lambda: cluster.bundles)
        port = cluster.slices[0]["ports"][0]["port"]
        assert cluster.config_map
        cluster.config_map = Cluster(next_one.root.certificate).config_map

        # Asked twice in a row: it listens anew. Registered then: it listens.
        await until(lambda: "get get apply" in " ".join(cluster.calls))
        assert (await Client(port, cluster.bundles[-1]).get(API, show=client))[0] == 200
        with pytest.raises((aiohttp.ClientError, OSError)):
            await Client(port, cluster.bundles[-1]).get(API, show=pki.proxy)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
