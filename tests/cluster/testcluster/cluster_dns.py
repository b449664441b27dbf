"""The cluster's DNS: CoreDNS beside the node's components, and the Service that pods ask. Pure."""

from pathlib import Path
from typing import Any

from testcluster.kubeconfig import CONTEXT
from testcluster.kubelet import DNS_ADDRESS, DOMAIN
from testcluster.network import FIRST

PORT = 53


def corefile(kubeconfig: Path) -> str:
    """Return CoreDNS' configuration: the names of the cluster and no others."""
    return f"""\
.:{PORT} {{
    bind {FIRST.address}
    errors
    kubernetes {DOMAIN} {{
        kubeconfig {kubeconfig} {CONTEXT}
        ttl 1
    }}
}}
"""


def objects() -> list[dict[str, Any]]:
    """Return the Service `kube-dns` and its endpoint, which is no pod."""
    ports = [{"name": name.lower(), "port": PORT, "protocol": name} for name in ("UDP", "TCP")]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {"clusterIP": DNS_ADDRESS, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [FIRST.address]}],
        },
    ]
