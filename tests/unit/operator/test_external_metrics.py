"""The external metrics API: who is answered, what is said, and how one certificate follows another."""

import asyncio
import base64
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from multidict import CIMultiDict, CIMultiDictProxy
from prometheus_client import CollectorRegistry

from eventually import until
from mamba_operator.autoscale.config import Config
from mamba_operator.autoscale.decide import decide
from mamba_operator.autoscale.memory import Memory
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.errors import Forbidden
from mamba_operator.external_metrics import front_proxy as proxies
from mamba_operator.external_metrics.access_review import KEPT, AccessReview
from mamba_operator.external_metrics.certificate import serving_certificate, show
from mamba_operator.external_metrics.documents import NAMES, quantity
from mamba_operator.external_metrics.front_proxy import FrontProxy, NoFrontProxy, front_proxy
from mamba_operator.external_metrics.label_selector import SelectorInvalid, selector
from mamba_operator.external_metrics.registration import Registered, Registration
from mamba_operator.external_metrics.server import ExternalMetrics, serving
from mamba_operator.manifest import Key, Manifest
from scaled_fleet import seen
from testcluster.pki import Authority, Certificate, Identity

NAME = "ext.sys.svc"
API = "/apis/external.metrics.k8s.io/v1beta1"
DESIRED = "mambaserve_operator_scaling_desired_engines"
DEMAND = "mambaserve_operator_scaling_demand_engines"
SAYS = {"X-Remote-User": "hpa", "X-Remote-Group": "system:serviceaccounts"}


class Cluster:
    """What of the API server is used here. `allowed` are (user, resource or path)."""

    def __init__(self, authority: Path) -> None:
        self.allowed = {("hpa", DESIRED), ("hpa", DEMAND), ("hpa", API), ("hpa", "nothing")}
        self.reviews: list[Manifest] = []
        self.bundles: list[bytes] = []
        self.slices: list[Manifest] = []
        self.config_map: Manifest | None = {
            "data": {
                "requestheader-client-ca-file": authority.read_text(),
                "requestheader-allowed-names": '["front-proxy-client"]',
                "requestheader-username-headers": '["X-Remote-User"]',
                "requestheader-group-headers": '["X-Remote-Group"]',
                "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
            }
        }

    async def get(self, _kind: Any, namespace: str, name: str) -> Manifest | None:
        assert (namespace, name) == ("kube-system", "extension-apiserver-authentication")
        return self.config_map

    async def create(self, review: Manifest) -> Manifest:
        self.reviews.append(review)
        spec = review["spec"]
        about = spec.get("resourceAttributes", {}).get("resource") or spec["nonResourceAttributes"]["path"]
        return {"status": {"allowed": (spec["user"], about) in self.allowed}}

    async def apply(self, manifest: Manifest) -> Manifest:
        self.slices.append(manifest)
        return manifest

    async def merge(self, _kind: Any, _namespace: None, name: str, patch: Any) -> Manifest:
        assert name == "v1beta1.external.metrics.k8s.io"
        self.bundles.append(base64.b64decode(patch["spec"]["caBundle"]))
        return {}


class Pki:
    """The API server's client certificate, and one of a stranger."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "front-proxy")
        self.proxy = self.authority.issue(Identity("proxy", "/CN=front-proxy-client", ("DNS:x",)))
        self.other_name = self.authority.issue(Identity("other", "/CN=other", ("DNS:x",)))
        self.stranger = Authority(folder / "else").issue(
            Identity("stranger", "/CN=front-proxy-client", ("DNS:x",))
        )


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


def shown(at: float = 100.0) -> ScalingMetrics:
    """Of two deployments in one namespace and one in another, seen at `at`."""
    metrics = ScalingMetrics(CollectorRegistry())
    for namespace, name in (("models", "a"), ("models", "b"), ("other", "a")):
        look = seen(2, 1.0, at=at)
        metrics.show(Key(namespace, name), look, decide(look, Config(max_replicas=8), Memory()))
    return metrics


class Client:
    """Speaks to a running server as the aggregation layer does."""

    def __init__(self, port: int, authority: bytes) -> None:
        self.port, self.authority = port, authority

    async def get(
        self,
        path: str,
        *,
        show: Certificate | None,
        headers: dict[str, str] | None = None,
        method: str = "GET",
    ) -> tuple[int, Any]:
        context = ssl.create_default_context(cadata=self.authority.decode())
        if show is not None:
            context.load_cert_chain(show.certificate, show.key)
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, f"https://127.0.0.1:{self.port}{path}", ssl=context, server_hostname=NAME,
                headers=SAYS if headers is None else headers,
            ) as answer,
        ):  # fmt: skip
            return answer.status, json.loads(await answer.read())


@asynccontextmanager
async def running(pki: Pki, cluster: Cluster, now: float = 130.0) -> AsyncIterator[Client]:
    proxy = front_proxy(cluster.config_map)
    made = serving_certificate(NAME, datetime.now(UTC), timedelta(days=1))
    context = proxy.context()
    show(context, made)
    review = AccessReview(cluster)  # type: ignore[arg-type]
    api = ExternalMetrics(
        shown(), review, proxy, now=lambda: now, wall=lambda: datetime(2026, 1, 2, 3, 4, 35, tzinfo=UTC)
    )
    async with serving(api.app(), "127.0.0.1", 0, context) as port:
        yield Client(port, made.authority)


async def test_a_metric_is_listed_by_name_and_labels_with_the_time_it_was_seen(pki: Pki) -> None:
    async with running(pki, Cluster(pki.authority.root.certificate)) as client:
        status, all_of_them = await client.get(f"{API}/namespaces/models/{DESIRED}", show=pki.proxy)
        _, one = await client.get(
            f"{API}/namespaces/models/{DEMAND}?labelSelector=name%3Db%2Cunit+in+(slots)", show=pki.proxy
        )
        _, none = await client.get(f"{API}/namespaces/empty/{DESIRED}", show=pki.proxy)

    assert status == 200
    assert (all_of_them["kind"], all_of_them["apiVersion"]) == (
        "ExternalMetricValueList", "external.metrics.k8s.io/v1beta1",
    )  # fmt: skip
    assert [item["metricLabels"] for item in all_of_them["items"]] == [{"name": "a"}, {"name": "b"}]
    assert {item["timestamp"] for item in all_of_them["items"]} == {"2026-01-02T03:04:05Z"}
    assert {item["metricName"] for item in all_of_them["items"]} == {DESIRED}
    assert [item["metricLabels"] for item in one["items"]] == [{"name": "b", "unit": "slots"}]
    assert none["items"] == []


async def test_a_number_that_is_old_is_not_told(pki: Pki) -> None:
    async with running(pki, Cluster(pki.authority.root.certificate), now=161.0) as client:
        _, answer = await client.get(f"{API}/namespaces/models/{DESIRED}", show=pki.proxy)

    assert answer["items"] == []


async def test_discovery_names_each_metric_as_a_resource(pki: Pki) -> None:
    async with running(pki, Cluster(pki.authority.root.certificate)) as client:
        status, answer = await client.get(API, show=pki.proxy)

    assert status == 200
    assert {one["name"] for one in answer["resources"]} == set(NAMES)
    assert all(one["namespaced"] for one in answer["resources"])


async def test_each_refusal_is_a_status_that_says_why(pki: Pki) -> None:
    cluster = Cluster(pki.authority.root.certificate)
    async with running(pki, cluster) as client:
        wanted = f"{API}/namespaces/models/{DESIRED}"
        found = {
            "somebody": await client.get(wanted, show=pki.proxy, headers={"X-Remote-User": "somebody"}),
            "nobody": await client.get(wanted, show=pki.proxy, headers={}),
            "other name": await client.get(wanted, show=pki.other_name),
            "other path": await client.get("/apis/nothing", show=pki.proxy),
            "other method": await client.get(wanted, show=pki.proxy, method="DELETE"),
            "no such metric": await client.get(f"{API}/namespaces/models/nothing", show=pki.proxy),
            "no selector": await client.get(f"{wanted}?labelSelector=a%3D%3D%3Db", show=pki.proxy),
            "no discovery": await client.get(API, show=pki.proxy, headers={"X-Remote-User": "somebody"}),
        }

    assert {name: status for name, (status, _) in found.items()} == {
        "somebody": 403, "nobody": 401, "other name": 401, "other path": 404, "other method": 405,
        "no such metric": 404, "no selector": 400, "no discovery": 403,
    }  # fmt: skip
    assert all(answer["kind"] == "Status" and answer["code"] == code for code, answer in found.values())


@pytest.mark.parametrize("who", ["a stranger", "nobody"])
async def test_who_is_not_the_api_server_is_not_let_in_whatever_it_says(pki: Pki, who: str) -> None:
    cluster = Cluster(pki.authority.root.certificate)
    async with running(pki, cluster) as client:
        with pytest.raises((aiohttp.ClientError, OSError)):
            await client.get(
                f"{API}/namespaces/models/{DESIRED}", show=pki.stranger if who == "a stranger" else None
            )

    assert cluster.reviews == []


async def test_a_cluster_that_gives_no_answer_refuses_everybody(pki: Pki) -> None:
    cluster = Cluster(pki.authority.root.certificate)

    async def broken(_: Manifest) -> Manifest:
        raise Forbidden("subjectaccessreviews is forbidden", status=403)

    cluster.create = broken  # type: ignore[method-assign]
    async with running(pki, cluster) as client:
        status, answer = await client.get(f"{API}/namespaces/models/{DESIRED}", show=pki.proxy)

    assert (status, answer["reason"]) == (503, "ServiceUnavailable")


async def test_an_access_is_reviewed_once_in_a_while_for_each_asker(pki: Pki) -> None:
    cluster, now = Cluster(pki.authority.root.certificate), [0.0]
    review = AccessReview(cluster, now=lambda: now[0])  # type: ignore[arg-type]
    one = proxies.Asker("hpa", ("g",), (("scopes", ("a", "b")),))
    question = {"resource": DESIRED, "namespace": "models"}

    for _ in range(3):
        assert await review.may(one, "resourceAttributes", **question)
    assert not await review.may(proxies.Asker("x"), "resourceAttributes", **question)
    assert not await review.may(one, "resourceAttributes", resource="other", namespace="models")
    assert len(cluster.reviews) == 3
    assert cluster.reviews[0]["spec"] == {
        "user": "hpa", "groups": ["g"], "extra": {"scopes": ["a", "b"]}, "resourceAttributes": question,
    }  # fmt: skip
    cluster.allowed.clear()
    now[0] = KEPT
    assert not await review.may(one, "resourceAttributes", **question)


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def test_an_asker_is_taken_from_the_headers_that_the_cluster_names(pki: Pki) -> None:
    proxy = front_proxy(Cluster(pki.authority.root.certificate).config_map)
    said = headers(
        ("x-remote-user", "u"), ("X-Remote-Group", "a"), ("x-remote-group", "b"), ("X-Other-Group", "c"),
        ("X-Remote-Extra-Acme.Com%2Fproject", "p"),
    )  # fmt: skip
    certificate = {"subject": ((("commonName", "front-proxy-client"),),)}

    found = proxy.asker(certificate, said)

    assert found == proxies.Asker("u", ("a", "b"), (("acme.com/project", ("p",)),))
    assert proxy.asker(None, said) is None
    assert proxy.asker({}, said) is None


@pytest.mark.parametrize(
    "data",
    [None, {}, {"requestheader-client-ca-file": "x", "requestheader-allowed-names": "{"}],
)
def test_a_cluster_without_an_aggregation_layer_is_told_by_name(data: dict[str, str] | None) -> None:
    with pytest.raises(NoFrontProxy, match="kube-system/extension-apiserver-authentication"):
        front_proxy({"data": data} if data is not None else None)


def test_an_authority_that_is_no_certificate_is_refused() -> None:
    with pytest.raises(NoFrontProxy, match="requestheader-client-ca-file"):
        FrontProxy("nonsense", frozenset(), (), (), ()).context()


@pytest.mark.parametrize(
    ("text", "labels", "selects"),
    [
        ("", {}, True),
        ("name=a", {"name": "a"}, True),
        ("name==a", {"name": "b"}, False),
        ("name!=a", {}, True),
        ("name!=a", {"name": "a"}, False),
        ("name in (a, b),unit", {"name": "b", "unit": "slots"}, True),
        ("name in (a, b),unit", {"name": "b"}, False),
        ("name notin (a,b)", {"name": "b"}, False),
        ("name notin (a,b)", {"name": "c"}, True),
        ("!unit", {"unit": "x"}, False),
        ("! unit", {}, True),
        ("example.com/x=1", {"example.com/x": "1"}, True),
    ],
)
def test_label_selectors_select_as_those_of_kubernetes(
    text: str, labels: dict[str, str], selects: bool
) -> None:
    assert selector(text)(labels) is selects


@pytest.mark.parametrize("text", ["a===b", "=a", "a in b", "a in (b", "a b", ",", "a>1", "a=" + "b" * 5000])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(SelectorInvalid):
        selector(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3, "3"), (0.95, "950m"), (2.5333333, "2534m"), (1e6, "1000000"), (1e-10, "0")],
)
def test_numbers_are_quantities_and_never_rounded_down(value: float, text: str) -> None:
    assert quantity(value) == text


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
    of = Registered("sys", "ext", "127.0.0.1", 0, "192.0.2.1", valid_for=3600, look_every=0.02, overlap=0.05)
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
    of = Registered("sys", "ext", "127.0.0.1", 0, "192.0.2.1", look_every=0.02)
    task = asyncio.create_task(Registration(cluster, shown(), of).run())  # type: ignore[arg-type]
    next_one = Authority(tmp_path / "next")
    client = next_one.issue(Identity("proxy", "/CN=front-proxy-client", ("DNS:x",)))
    try:
        await until(lambda: cluster.bundles)
        port = cluster.slices[0]["ports"][0]["port"]
        assert cluster.config_map
        cluster.config_map = Cluster(next_one.root.certificate).config_map

        async def answered() -> bool:
            try:
                return (await Client(port, cluster.bundles[-1]).get(API, show=client))[0] == 200
            except (aiohttp.ClientError, OSError):
                return False

        async with asyncio.timeout(60):
            while not await answered():  # noqa: ASYNC110 - in another task, polled over the wire
                await asyncio.sleep(0.02)
        with pytest.raises((aiohttp.ClientError, OSError)):
            await Client(port, cluster.bundles[-1]).get(API, show=pki.proxy)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
