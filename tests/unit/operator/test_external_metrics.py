"""The external metrics API: who is answered, and what is said."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from aggregation_layer import API, DEMAND, DESIRED, NAME, Client, Cluster, Pki, shown
from mamba_operator.external_metrics import front_proxy as proxies
from mamba_operator.external_metrics.access_review import CACHE_SECONDS, AccessReview
from mamba_operator.external_metrics.certificate import load_certificate, serving_certificate
from mamba_operator.external_metrics.documents import NAMES, quantity
from mamba_operator.external_metrics.front_proxy import FrontProxy, NoFrontProxy, front_proxy
from mamba_operator.external_metrics.label_selector import SelectorInvalid, selector
from mamba_operator.external_metrics.server import ExternalMetrics, serving
from mamba_operator.objects.errors import Forbidden
from mamba_operator.objects.manifest import Manifest


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@asynccontextmanager
async def running(pki: Pki, cluster: Cluster, now: float = 130.0) -> AsyncIterator[Client]:
    proxy = front_proxy(cluster.config_map)
    made = serving_certificate(NAME, datetime.now(UTC), timedelta(days=1))
    context = proxy.context()
    load_certificate(context, made)
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
    async with running(pki, Cluster(pki.authority.root.certificate), now=221.0) as client:
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
    one = proxies.UserInfo("hpa", ("g",), (("scopes", ("a", "b")),))
    question = {"resource": DESIRED, "namespace": "models"}

    for _ in range(3):
        assert await review.may(one, "resourceAttributes", **question)
    assert not await review.may(proxies.UserInfo("x"), "resourceAttributes", **question)
    assert not await review.may(one, "resourceAttributes", resource="other", namespace="models")
    assert len(cluster.reviews) == 3
    assert cluster.reviews[0]["spec"] == {
        "user": "hpa", "groups": ["g"], "extra": {"scopes": ["a", "b"]}, "resourceAttributes": question,
    }  # fmt: skip
    cluster.allowed.clear()
    now[0] = CACHE_SECONDS
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

    found = proxy.user_info(certificate, said)

    assert found == proxies.UserInfo("u", ("a", "b"), (("acme.com/project", ("p",)),))
    assert proxy.user_info(None, said) is None
    assert proxy.user_info({}, said) is None


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
