"""Every name that cluster and pods share: API identity, labels, annotations, children, ports.

All processes take names from here, so that two of them never spell one differently. Nothing but constants and
pure functions of a MambaDeployment's name.
"""

from dataclasses import dataclass
from typing import Literal

GROUP = "serving.mambaserve.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "MambaDeployment"
LIST_KIND = "MambaDeploymentList"
PLURAL = "mambadeployments"
SINGULAR = "mambadeployment"
SHORT_NAME = "mdep"
CATEGORY = "mambaserve"
CRD_NAME = f"{PLURAL}.{GROUP}"

FIELD_MANAGER = "mambaserve-operator"
FINALIZER = f"{GROUP}/drain"
LEASE_NAME = "mambaserve-operator"
CLAIM_NAME = "mambaserve-served-by"
"""Of the Lease in a namespace that says which release of the operator serves it."""
ADMIN_KEY_NAME = "mambaserve-operator-admin-key"
"""Secret beside the operator with the key that the tokens of the engines' admin ports are made from."""
MAX_NAME_LENGTH = 52
"""Longest metadata.name: the longest child name and a pod's suffixes must stay a DNS label of 63 characters.
"""

# Recommended labels
LABEL_NAME = "app.kubernetes.io/name"
LABEL_INSTANCE = "app.kubernetes.io/instance"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_PART_OF = "app.kubernetes.io/part-of"
APP_NAME = "mambaserve"
MANAGED_BY = "mambaserve-operator"

# Own annotations and labels
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
"""Hash of what the operator rendered; drift and the need of a roll-out are read from it."""
ANNOTATION_STRATEGY = f"{GROUP}/strategy"
"""On a pod: the state cache strategy its engine was started with."""
ANNOTATION_PLANNED_FOR = f"{GROUP}/planned-for"
"""On the engine Deployment: the revision of the pods and the GPU memory their plan was made for."""
ANNOTATION_CHOSEN_FOR = f"{GROUP}/chosen-for"
"""On the engine Deployment: the strategy that was chosen for measured traffic, and that traffic."""
ANNOTATION_TUNED = f"{GROUP}/tuned"
"""On the ConfigMap X-engine: hash of the settings that running engines take over, and when they changed."""
ANNOTATION_FAILED_REVISION = f"{GROUP}/failed-revision"
"""On the engine Deployment: the revision that its pods were taken back from, and why."""
ANNOTATION_RETRY = f"{GROUP}/retry"
"""On the engine Deployment, while a quota refuses an engine: the number of those that there are."""
ANNOTATION_RESTART = f"{GROUP}/restarted-at"
"""On a MambaDeployment: a new value rolls the pods, as `kubectl rollout restart` does."""
ANNOTATION_COMMIT = f"{GROUP}/model-commit"
"""On an engine pod that reads its model from a volume that is made for it: the commit that it reads."""
ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""On an engine pod that is to go when there shall be fewer: Kubernetes takes the lowest first."""
LABEL_ROLE = f"{GROUP}/role"
"""On an engine pod: unified, the only role of this version."""
LABEL_REVISION = f"{GROUP}/revision"
"""On an engine pod: short hash of its template."""
LABEL_GPU_MEMORY = "nvidia.com/gpu.memory"
"""On a node, by NVIDIA's feature discovery: MiB of one GPU; every node that has GPUs carries it."""

Component = Literal["engine", "gateway", "loader"]

ENGINE_CONTAINER = "engine"
GATEWAY_CONTAINER = "gateway"
LOADER_CONTAINER = "loader"
METRIC_DOWNLOADED = "mambaserve_download_fetched_bytes"
"""Told by a loader at HTTP_PORT, with the next one."""
METRIC_TO_DOWNLOAD = "mambaserve_download_total_bytes"

HTTP_PORT = 8000
HTTP_PORT_NAME = "http"
ENDPOINT_PICKER_PORT = 9002
"""Of gateway pods and their Service, where there is an InferencePool."""
ENDPOINT_PICKER_PORT_NAME = "endpoint-picker"
ADMIN_PORT = 8001
ADMIN_PORT_NAME = "admin"
SERVICE_PORT = 80
"""Port of the gateway Service: `http://X.NAMESPACE.svc/v1`."""
OPERATOR_LIVENESS_PORT = 8081
"""Port of the operator's /healthz, /readyz and /metrics."""

IMAGE = "ghcr.io/mambaserve/mambaserve:0.1.0"
"""Default engine image, with torch."""
CONTROL_PLANE_IMAGE = "ghcr.io/mambaserve/mambaserve-control-plane:0.1.0"
"""Default image of operator and gateway, without torch."""

ENV_PREFIX = "MAMBASERVE_"

WAKE_KEY = "heldAt"
"""Key inside the ConfigMap X-wake: when (RFC 3339) a gateway last held a request for want of an engine."""
INDEX_TROUBLE_KEY = "prefixIndexTrouble"
"""Key beside it: when (RFC 3339) the prefix index missed its Redis, a blank, and what was the matter."""
ADMIN_TOKEN_KEY = "token"  # noqa: S105 - a key inside the Secret, not a secret
ENGINE_KEY_KEY = "key"
GATEWAY_KEY = "gateway"
"""Name of the key of an engine whose holder may speak for clients, and ask what is cached."""
"""Key inside the Secret with the key that engines ask gateways for."""
REDIS_URL_KEY = "url"
"""Key of the Secret with the address of a Redis."""
API_KEYS_KEY = "api-keys"
"""Key inside the Secret of `spec.gateway.auth.secretRef`: one accepted API key a line."""


@dataclass(frozen=True, slots=True)
class Children:
    """Names of the objects that belong to the MambaDeployment `owner`."""

    owner: str

    @property
    def engine(self) -> str:
        """Engine Deployment, headless Service, ConfigMap."""
        return f"{self.owner}-engine"

    @property
    def gateway(self) -> str:
        """Gateway Deployment and Service: the name users type."""
        return self.owner

    @property
    def service_account(self) -> str:
        """ServiceAccount of engines and gateway."""
        return self.owner

    def admin_secret(self, uid: str, key_id: str = "") -> str:
        """Secret with the token of the engines' admin port. By the owner's `uid`: the operator cannot look
        whose a Secret is, so the name must be nobody else's, nor of an earlier owner of the same name. And by
        the key that the token is made with, so that another key rolls the pods that mount it."""
        return f"{self.owner}-admin-{uid[:8]}" + (f"-{key_id}" if key_id else "")

    def engine_key(self, uid: str) -> str:
        """Secret with the key that engines ask gateways for. By the owner's `uid`, as `admin_secret`."""
        return f"{self.owner}-engine-key-{uid[:8]}"

    @property
    def model_cache(self) -> str:
        """PersistentVolumeClaim for downloaded weights, when asked for."""
        return f"{self.owner}-model"

    def loader(self, load: str) -> str:
        """Job that downloads a model to `model_cache`; `load` is the hash of what it downloads, of which the
        name has as much as a DNS label leaves room for."""
        return f"{self.owner}-load-{load[:5]}"

    @property
    def model_report(self) -> str:
        """ConfigMap with what the loader found: the commit, the configuration, the bytes of the weights."""
        return f"{self.owner}-model"

    @property
    def last_ready(self) -> str:
        """ConfigMap with the engine revision that was last ready, to go back to."""
        return f"{self.owner}-last-ready"

    @property
    def inference_pool(self) -> str:
        """InferencePool, when asked for."""
        return self.owner

    @property
    def wake(self) -> str:
        """ConfigMap in which gateways ask for an engine and say what they miss; all that they may write."""
        return f"{self.owner}-wake"


def labels(owner: str, component: Component) -> dict[str, str]:
    """All labels of a child of `owner`."""
    return {
        **selector(owner, component),
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_PART_OF: APP_NAME,
    }


def selector(owner: str, component: Component) -> dict[str, str]:
    """The labels a child's pods are selected by; never changes during the life of an object."""
    return {LABEL_NAME: APP_NAME, LABEL_INSTANCE: owner, LABEL_COMPONENT: component}


def url(owner: str, namespace: str) -> str:
    """The OpenAI base URL inside the cluster."""
    return f"http://{owner}.{namespace}.svc/v1"


def authority(host: str, port: int) -> str:
    """Return `host:port` as URLs have it, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
