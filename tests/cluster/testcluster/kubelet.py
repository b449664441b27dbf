"""Configuration of a node's kubelet and kube-proxy. Pure: makes configuration, starts nothing."""

from pathlib import Path
from typing import Any

from testcluster.network import CLUSTER_RANGE
from testcluster.pki import Certificate

NODE = "node-1"
"""The node that the control plane runs on."""
DNS_ADDRESS = "10.96.0.10"
DOMAIN = "cluster.local"


def kubelet_config(
    folder: Path, *, address: str, authority: Path, serving: Certificate, socket: Path, group: str
) -> dict[str, Any]:
    """Return the KubeletConfiguration; `group` is the control group of all pods."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group}",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": DOMAIN,
        "containerRuntimeEndpoint": f"unix://{socket}",
        # From 1.35 on the kubelet refuses version 1 hierarchies unless told otherwise.
        "failCgroupV1": False,
        "failSwapOn": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # An image that was loaded by hand cannot be pulled again.
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": str(folder / "pod-logs"),
        "resolvConf": str(folder / "resolv.conf"),
        "registerNode": True,
        "seccompDefault": False,
        # What volumes hold, which pods are evicted for, is else looked at every minute.
        "volumeStatsAggPeriod": "5s",
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
    }


def kubelet_arguments(folder: Path, kubeconfig: Path, name: str, address: str) -> list[str]:
    """Return the command line that complements the configuration file `folder`/kubelet.yaml."""
    return [
        f"--config={folder / 'kubelet.yaml'}",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={name}",
        f"--node-ip={address}",
        f"--root-dir={folder / 'kubelet'}",
        f"--cert-dir={folder / 'kubelet-pki'}",
    ]


def proxy_arguments(kubeconfig: Path, name: str, *, bridged_rules: bool) -> list[str]:
    """Return kube-proxy's command line; `bridged_rules`: the machine filters packets between pods."""
    arguments = [
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={name}",
        f"--cluster-cidr={CLUSTER_RANGE}",
        "--proxy-mode=iptables",
        "--metrics-bind-address=127.0.0.1:10249",
        "--healthz-bind-address=127.0.0.1:10256",
        "--iptables-min-sync-period=100ms",
        # These settings belong to the whole machine and are not ours to change.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
    ]
    # Otherwise an answer would take the short way over the bridge, and its address would not be put back.
    return arguments if bridged_rules else [*arguments, "--masquerade-all"]
