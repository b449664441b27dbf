"""The chart's Redis: it starts as the chart says, nobody else gets in, its password outlives upgrades."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from mamba_api import names
from mamba_prefix.redis_url import check_url
from parsed_yaml import load_all_yaml
from redis_server import RedisServer
from testcluster.control_plane import ControlPlane
from testcluster.kubectl import Command

pytestmark = pytest.mark.kube

CHART = Path(__file__).parents[2] / "charts/mambaserve"
NAME = "rel-mambaserve-redis"


@pytest.fixture(scope="module")
def helm(control_plane: ControlPlane) -> Command:
    return control_plane.helm


def rendered(helm: Command, *options: str) -> dict[str, dict[str, Any]]:
    """Return objects of the Redis by kind."""
    text = helm("template", "rel", str(CHART), "-n", "sys", "--set", "redis.enabled=true", *options)
    found = [each for each in load_all_yaml(text) if each and each["metadata"]["name"] == NAME]
    return {each["kind"]: each for each in found}


def pod(made: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = made["Deployment"]["spec"]["template"]["spec"]
    return spec


def test_there_is_none_unless_it_is_asked_for(helm: Command) -> None:
    assert rendered(helm, "--set", "redis.enabled=false") == {}


@pytest.mark.slow
def test_it_starts_as_the_chart_says_and_wants_the_password_of_the_address(
    helm: Command, tmp_path: Path, start_redis: Callable[..., RedisServer]
) -> None:
    made = rendered(helm, "--set", "redis.maxMemory=64")
    secret, container = made["Secret"]["stringData"], pod(made)["containers"][0]
    (tmp_path / "redis.conf").write_text(secret["redis.conf"])
    assert container["command"] == ["redis-server"]
    file, _, port, *options = container["args"]
    assert (file, port) == ("/run/redis/redis.conf", str(made["Service"]["spec"]["ports"][0]["port"]))
    options[options.index("--dir") + 1] = str(tmp_path)
    server = RedisServer(tmp_path, *options)
    server.leading = (str(tmp_path / "redis.conf"),)
    server.start()
    try:
        assert server.command("PING").startswith(b"-NOAUTH")
        host = f"{NAME}.sys.svc:6379"
        assert host in check_url(secret["url"])
        with redis.Redis.from_url(secret["url"].replace(host, f"127.0.0.1:{server.port}")) as client:
            said = {key: client.config_get(key)[key] for key in ("maxmemory", "maxmemory-policy", "save")}
        assert said == {"maxmemory": str(64 << 20), "maxmemory-policy": "noeviction", "save": ""}
    finally:
        server.stop()
    assert container["resources"]["limits"] == {"memory": "96Mi"}


def test_its_password_is_on_no_command_line_and_no_variable(helm: Command) -> None:
    made = rendered(helm)
    password = made["Secret"]["stringData"]["redis.conf"].split()[1]
    assert len(password) >= 32
    assert password not in yaml.safe_dump(made["Deployment"])


def test_only_engines_and_gateways_that_are_served_get_in(helm: Command) -> None:
    spec = rendered(helm, "--set", "watchNamespaces={a,b}")["NetworkPolicy"]["spec"]
    (rule,) = spec["ingress"]
    (source,) = rule["from"]
    (served,) = source["namespaceSelector"]["matchExpressions"]
    assert (served["key"], served["operator"]) == ("kubernetes.io/metadata.name", "In")
    assert served["values"] == ["a", "b"]
    (component,) = source["podSelector"]["matchExpressions"]
    for each in ("engine", "gateway"):
        labels = names.labels("x", each)  # type: ignore[arg-type] # both are components
        assert source["podSelector"]["matchLabels"].items() <= labels.items()
        assert labels[component["key"]] in component["values"]
    assert spec["egress"] == []
    everywhere = rendered(helm)["NetworkPolicy"]["spec"]["ingress"][0]["from"][0]
    assert everywhere["namespaceSelector"] == {}


def test_what_selects_it_is_what_it_carries(helm: Command) -> None:
    made = rendered(helm)
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        made["Deployment"]["spec"]["selector"]["matchLabels"],
        made["Service"]["spec"]["selector"],
        made["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert selector[names.LABEL_COMPONENT] == "redis"
    assert made["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_a_secret_of_ones_own_is_taken_and_none_made(helm: Command) -> None:
    made = rendered(helm, "--set", "redis.existingSecret=ours", "--set", "redisImage.tag=v9")
    assert "Secret" not in made
    assert [v["secret"]["secretName"] for v in pod(made)["volumes"] if "secret" in v] == ["ours"]
    assert pod(made)["containers"][0]["image"] == "docker.io/library/redis:v9"
    digest = "sha256:" + "1" * 64
    pinned = rendered(helm, "--set", f"redisImage.digest={digest}")
    assert pod(pinned)["containers"][0]["image"] == f"docker.io/library/redis@{digest}"
    mirrored = rendered(helm, "--set", "image.registry=mirror.example:5000/a", "--set", "redisImage.tag=v9")
    assert pod(mirrored)["containers"][0]["image"] == "mirror.example:5000/a/library/redis:v9"


def test_its_password_stays_and_its_address_reaches_other_namespaces(
    control_plane: ControlPlane, helm: Command, namespace: str
) -> None:
    options = [
        "-n",
        namespace,
        "--set",
        f"redis.enabled=true,watchNamespaces={{{namespace}}}",
    ]
    said = helm("install", "rel", str(CHART), *options)
    before = control_plane.get("secret", NAME, namespace)
    assert before is not None
    helm("upgrade", "rel", str(CHART), *options, "--set", "redis.maxMemory=128")
    after = control_plane.get("secret", NAME, namespace)
    assert after is not None
    assert after["data"] == before["data"]
    # As the notes say.
    assert f"kubectl create secret generic {NAME} -n NAMESPACE --from-file=url=/dev/stdin" in said
    url = base64.b64decode(before["data"]["url"]).decode()
    copy = ("create", "secret", "generic", "copied", "-n", namespace, "--from-file=url=/dev/stdin")
    control_plane.kubectl(*copy, stdin=url)
    copied = control_plane.get("secret", "copied", namespace)
    assert copied is not None
    assert copied["data"] == {names.REDIS_URL_KEY: before["data"]["url"]}
