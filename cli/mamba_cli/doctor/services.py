"""Checks of the services around engines: Redis, a Kubernetes cluster and the CRD in it."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from mamba_cli.doctor.finding import Finding, broken, note, ok, warning
from mamba_cli.extras import install

REDIS_VARIABLE = "MAMBASERVE_REDIS_URL"


def redis(variables: Mapping[str, str], timeout: float) -> Finding:
    """Ping the Redis that the environment names, which shares the prefix index among gateways.

    It has to answer within `timeout` seconds.
    """
    url = variables.get(REDIS_VARIABLE, "")
    if not url:
        return note("Redis", f"not used: {REDIS_VARIABLE} is not set")
    if find_spec("redis") is None:
        return broken("Redis", "its client is not installed", install("gateway"))
    from redis import Redis
    from redis.exceptions import AuthenticationError, RedisError

    try:
        with Redis.from_url(url, socket_connect_timeout=timeout, socket_timeout=timeout) as client:
            client.ping()
            version = str(client.info("server")["redis_version"])
    except AuthenticationError as error:
        return broken(
            "Redis", f"it refuses the password ({error})", f"correct the password in {REDIS_VARIABLE}"
        )
    except (RedisError, OSError, ValueError) as error:
        return broken(
            "Redis", f"{error}", f"start it, or correct {REDIS_VARIABLE}: until then prefixes are not shared"
        )
    return ok("Redis", f"version {version} answers")


def cluster(kubeconfig: str | None, timeout: float) -> list[Finding]:
    """Ask the API server for its version and for the MambaDeployment CRD.

    Each answer may take `timeout` seconds.
    """
    if find_spec("kubernetes") is None:
        return [note("cluster", "not checked without the extra 'operator'", install("operator"))]
    from mamba_kube.errors import ApiError, NoClusterAccess

    try:
        version, crd = asyncio.run(_asked(kubeconfig, timeout))
    except NoClusterAccess as error:
        what, _, cure = str(error).rpartition("; ")
        if kubeconfig is not None or os.environ.get("KUBECONFIG"):
            return [broken("cluster", what or str(error), cure)]
        return [note("cluster", "not used: there is no kubeconfig")]
    except ApiError as error:
        return [
            broken(
                "cluster", str(error),
                "check the server and the credentials of the current context: kubectl cluster-info",
            )
        ]  # fmt: skip
    return [ok("cluster", f"Kubernetes {version} answers"), _crd(crd)]


async def _asked(kubeconfig: str | None, timeout: float) -> tuple[str, dict[str, Any] | int]:
    """Return the cluster's version, and the CRD, or the status with which the API server refused to show it.

    Each answer may take `timeout` seconds.
    """
    from mamba_api import names
    from mamba_kube.access import connected, load_access
    from mamba_kube.errors import ApiError

    async with connected(await load_access(kubeconfig), timeout=timeout) as server:
        version = await server.request("GET", "/version")
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        try:
            crd: dict[str, Any] | int = await server.request("GET", f"{path}/{names.CRD_NAME}")
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            crd = error.status
    return str(version.get("gitVersion", "of an unknown version")), crd


def _crd(crd: dict[str, Any] | int) -> Finding:
    import yaml

    from mamba_api.v1alpha1.schema import crd_yaml

    apply = "mambaserve crd | kubectl apply --server-side --force-conflicts -f -"
    if crd == 404:
        return broken("CRD", "the cluster has no MambaDeployment CRD", f"install the chart, or {apply}")
    if isinstance(crd, int):
        return warning(
            "CRD", "this user may not read it", "ask for the right to get customresourcedefinitions"
        )
    ours, theirs = set(_fields(yaml.safe_load(crd_yaml()))), set(_fields(crd))
    if missing := sorted(ours - theirs, key=lambda path: (path.count("."), path)):
        return broken(
            "CRD", f"it is of another version: it lacks {missing[0]} and {len(missing) - 1} other fields"
            if missing[1:] else f"it is of another version: it lacks {missing[0]}",
            f"upgrade the chart, or {apply}",
        )  # fmt: skip
    if added := sorted(theirs - ours):
        return warning(
            "CRD", f"it is newer than this command: {added[0]} is not known here", "upgrade this mambaserve"
        )
    return ok("CRD", f"it has the {len(ours)} fields of this version")


def _fields(crd: dict[str, Any]) -> Iterator[str]:
    """Yield the paths of all fields in the schemas of a CRD."""

    def inside(schema: Any, path: str) -> Iterator[str]:
        if not isinstance(schema, dict):
            return
        for name, field in (schema.get("properties") or {}).items():
            below = f"{path}.{name}" if path else str(name)
            yield below
            yield from inside(field, below)
        for wrapper in ("items", "additionalProperties"):
            yield from inside(schema.get(wrapper), path)

    for version in (crd.get("spec") or {}).get("versions") or ():
        yield from inside((version.get("schema") or {}).get("openAPIV3Schema"), "")
