"""Access to a cluster: the pod's service account, else a kubeconfig; and the namespace that belongs to it.

Operator and gateway use it once at their start. A kubeconfig is read, never written.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import kube_config

from mamba_kube.api_server import ApiServer
from mamba_kube.errors import NoClusterAccess

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Errors that the loader raises for a file that is no kubeconfig.
_LOADER_ERRORS = (config.ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Address and credentials of the API server, and the namespace of the pod or of the current context."""

    configuration: Configuration
    namespace: str


def pod_namespace() -> str | None:
    """Return the namespace of the pod this process runs in; None outside of a pod."""
    if not SERVICE_ACCOUNT_NAMESPACE.exists():
        return None
    return SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or None


def _is_file(path: str) -> bool:
    return Path(path).expanduser().is_file()


def _default_files() -> list[str]:
    """Return the paths of the kubeconfigs in KUBECONFIG, else of the one in the home directory."""
    return [path for path in kube_config.KUBE_CONFIG_DEFAULT_LOCATION.split(os.pathsep) if path]


async def load_access(kubeconfig: str | None) -> ClusterAccess:
    """Load the pod's service account, else (or with `kubeconfig`) the current context of a kubeconfig.

    Raises:
        NoClusterAccess: there is neither, or the file is not usable.
    """
    if kubeconfig is not None and not _is_file(kubeconfig):
        raise NoClusterAccess(f"--kubeconfig: {kubeconfig}: no such file")
    loader: Any = config
    configuration = Configuration()
    try:
        if kubeconfig is None and (namespace := pod_namespace()):
            loader.load_incluster_config(client_configuration=configuration)
            return ClusterAccess(configuration, namespace)
        if kubeconfig is None and not any(map(_is_file, _default_files())):
            # The loader would report an invalid file.
            paths = os.pathsep.join(_default_files())
            raise OSError(f"{paths}: no such file" if paths else "KUBECONFIG names no file")
        await loader.load_kube_config(
            config_file=kubeconfig, client_configuration=configuration, persist_config=False
        )
        _, active = loader.list_kube_config_contexts(config_file=kubeconfig)
        namespace = (active.get("context") or {}).get("namespace") or "default"
    except _LOADER_ERRORS as error:
        reason = " ".join(str(error).split())
        raise NoClusterAccess(
            f"no usable Kubernetes configuration: {reason}; pass --kubeconfig FILE, set KUBECONFIG, "
            "or run in a pod"
        ) from error
    return ClusterAccess(configuration, namespace)


@asynccontextmanager
async def connected(access: ClusterAccess, *, timeout: float = 30.0) -> AsyncIterator[ApiServer]:
    """Yield a pool of connections to the API server, which is closed at the end of the block.

    Each request ends after `timeout` seconds.
    """
    configuration: Any = access.configuration
    if configuration.proxy is None:
        configuration.proxy = _environment_proxy(configuration.host)
    # Otherwise each request would search for a proxy and for a .netrc again, each in a thread of its own.
    configuration.client_session_kwargs = {"trust_env": False}
    async with ApiClient(configuration) as client:
        yield ApiServer(client, timeout=timeout)


def _environment_proxy(url: str) -> str | None:
    """Return the proxy for the API server at `url` by HTTPS_PROXY and the like; None = no proxy."""
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)
