"""Every name that cluster and pods share: API identity, labels, annotations, children, ports.

All processes take names from here, so that two of them never spell one differently. Only constants and pure
functions.
"""

import re
from dataclasses import dataclass
from typing import Literal

from mamba_api.choices import Role

GROUP = "serving.mambaserve.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "MambaDeployment"
PLURAL = "mambadeployments"
SINGULAR = "mambadeployment"
SHORT_NAME = "mdep"
CATEGORY = "mambaserve"
CRD_NAME = f"{PLURAL}.{GROUP}"

GATEWAY_KIND = "MambaGateway"
GATEWAY_PLURAL = "mambagateways"
GATEWAY_SINGULAR = "mambagateway"
GATEWAY_SHORT_NAME = "mgw"

FIELD_MANAGER = "mambaserve-operator"
FINALIZER = f"{GROUP}/drain"
LEASE_NAME = "mambaserve-operator"
CLAIM_NAME = "mambaserve-served-by"
"""Name of the Lease in a namespace that records which release of the operator serves the namespace."""
ADMIN_KEY_NAME = "mambaserve-operator-admin-key"
"""Secret in the operator's namespace with the key from which the tokens of the engines' admin ports are
derived."""
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
"""Hash of the object that the operator rendered. Drift and the need of a roll-out are read from it."""
ANNOTATION_STRATEGY = f"{GROUP}/strategy"
"""On a pod: state cache strategy that its engine started with."""
ANNOTATION_PLANNED_FOR = f"{GROUP}/planned-for"
"""On the engine Deployment: revision of the pods and the GPU memory their plan was computed for."""
ANNOTATION_CHOSEN_FOR = f"{GROUP}/chosen-for"
"""On the engine Deployment: strategy that was chosen for measured traffic, and that traffic."""
ANNOTATION_TUNED = f"{GROUP}/tuned"
"""On the ConfigMap X-engine: hash of the settings that running engines apply, and the time of their last
change."""
ANNOTATION_ADAPTERS = f"{GROUP}/adapters"
"""On the ConfigMap X-engine: hash of the adapters with which engines start, and the time of their last
change."""
ANNOTATION_FAILED_REVISION = f"{GROUP}/failed-revision"
"""On the engine Deployment: revision that its pods were rolled back from, and the cause."""
ANNOTATION_RETRY = f"{GROUP}/retry"
"""On the engine Deployment, while a quota refuses an engine: number of engines that exist."""
ANNOTATION_RESTART = f"{GROUP}/restarted-at"
"""On a MambaDeployment: a new value restarts the pods one by one, as `kubectl rollout restart` does."""
ANNOTATION_COMMIT = f"{GROUP}/model-commit"
"""On an engine pod that reads its model from a volume created by the operator: commit that it reads."""
ANNOTATION_CANARY = f"{GROUP}/canary"
"""On a MambaDeployment: what a person asks of a canary: `pause`, `resume`, `promote` or `abort`, a space and
the revision of the candidate; for `resume` another space and the number of the step."""
ANNOTATION_CANARY_STATE = f"{GROUP}/canary-state"
"""On the Deployment X-candidate: the present step and its beginning."""
ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""On an engine pod to be removed when the number of engines falls: Kubernetes removes the lowest cost
first."""
LABEL_ROLE = f"{GROUP}/role"
"""On an engine pod: `unified`, or the pool that it belongs to: `prefill` or `decode`."""
LABEL_REVISION = f"{GROUP}/revision"
"""On an engine pod: short hash of its template."""
LABEL_TRACK = f"{GROUP}/track"
"""On an engine pod of a canary's new revision: `candidate`. Other pods have no such label."""
CANDIDATE, STABLE = "candidate", "stable"
"""Tracks of a canary: the new revision, and the one beside it."""
LABEL_CANDIDATE_WEIGHT = f"{GROUP}/candidate-weight"
"""On the Service X-engine, which Kubernetes copies to its EndpointSlices: share of the conversations that the
pods of the Deployment X-candidate answer, in per cent."""
LABEL_SHADOW_SHARE = f"{GROUP}/candidate-shadow"
"""On the Service X-engine, too: share of the conversations of which the candidate's pods get copies, in per
cent."""
LABEL_SHADOW_COPIES = f"{GROUP}/candidate-shadow-copies"
"""On the Service X-engine, too: largest number of copies that each gateway sends at once."""
POD_NAME_BASE = 58
"""Characters of a ReplicaSet's name that the names of its pods begin with."""
LABEL_GPU_MEMORY = "nvidia.com/gpu.memory"
"""On a node with GPUs, set by NVIDIA's feature discovery: MiB of one GPU."""

Component = Literal["engine", "gateway", "loader"]

ENGINE_CONTAINER = "engine"
GATEWAY_CONTAINER = "gateway"
LOADER_CONTAINER = "loader"
METRIC_DOWNLOADED = "mambaserve_download_fetched_bytes"
"""Metric of a loader at HTTP_PORT: bytes that were downloaded so far."""
METRIC_TO_DOWNLOAD = "mambaserve_download_total_bytes"
"""Metric of a loader at HTTP_PORT: bytes of the whole download."""

HTTP_PORT = 8000
HTTP_PORT_NAME = "http"
ENDPOINT_PICKER_PORT = 9002
"""Port of gateway pods and their Service if there is an InferencePool."""
ENDPOINT_PICKER_PORT_NAME = "endpoint-picker"
ADMIN_PORT = 8001
ADMIN_PORT_NAME = "admin"
TRANSFER_PORT = 8002
"""Port from which other engines of the same deployment fetch states of an engine."""
TRANSFER_PORT_NAME = "transfer"
NIXL_PORTS = (20000, 20999)
"""First and last port of engines at which NIXL reads states where it has no RDMA network."""
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
"""Key in the ConfigMap X-wake: time (RFC 3339) at which a gateway last held a request because no engine
ran."""
INDEX_TROUBLE_KEY = "prefixIndexTrouble"
"""Key in the ConfigMap X-wake: time (RFC 3339) at which a failure of Redis kept the prefix index from being
read, a space, and the cause."""
ADMIN_TOKEN_KEY = "token"  # noqa: S105 - a key inside the Secret, not a secret
ENGINE_KEY_KEY = "key"
"""Key in the Secret with the key that engines require of gateways."""
API_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Allowed names of API keys. A name appears in metrics and logs, where the key itself never does."""
GATEWAY_KEY = "gateway"
"""Name of the engine key whose holder may act for clients and query the cached prefixes."""
REDIS_URL_KEY = "url"
"""Key of the Secret with the address of a Redis."""
MODELS_KEY = "models.json"
"""Key in the ConfigMap X-models of a MambaGateway: the file of models."""
API_KEYS_KEY = "api-keys"
"""Key in the Secret of `spec.gateway.auth.secretRef`: one accepted API key per line."""


@dataclass(frozen=True, slots=True)
class Children:
    """Names of the objects that belong to the MambaDeployment `owner`."""

    owner: str
    role: Role = "unified"
    """Pool whose Deployment, settings and last ready revision are named."""

    @property
    def engine(self) -> str:
        """Name of the engine Deployment and its ConfigMap: X-engine, X-prefill or X-decode."""
        return f"{self.owner}-{'engine' if self.role == 'unified' else self.role}"

    @property
    def candidate(self) -> str:
        """Name of the Deployment and the ConfigMap of a canary's new revision."""
        return f"{self.owner}-{CANDIDATE}"

    @property
    def candidate_pods(self) -> str:
        """Beginning of the names of the candidate's pods; no other engine pod has a name that begins so."""
        return f"{self.candidate}-"[:POD_NAME_BASE]

    @property
    def engines(self) -> str:
        """Name of the headless Service, network policy and disruption budget of the engines of all roles."""
        return f"{self.owner}-engine"

    @property
    def gateway(self) -> str:
        """Name of the gateway Deployment and Service, which users type."""
        return self.owner

    @property
    def service_account(self) -> str:
        """Name of the ServiceAccount of engines and gateway."""
        return self.owner

    def admin_secret(self, uid: str, key_id: str = "") -> str:
        """Return the name of the Secret with the token of the engines' admin port.

        The name contains the owner's `uid`: the operator cannot see who owns a Secret, so no other owner may
        have the same name, not even an earlier owner with this name. It also contains `key_id`, which
        identifies the key that the token is derived from, so that another key replaces the pods that mount
        the Secret.
        """
        return f"{self.owner}-admin-{uid[:8]}" + (f"-{key_id}" if key_id else "")

    def engine_key(self, uid: str) -> str:
        """Return the name of the Secret with the key that engines require of gateways.

        The name contains the owner's `uid`, as in `admin_secret`.
        """
        return f"{self.owner}-engine-key-{uid[:8]}"

    @property
    def model_cache(self) -> str:
        """Name of the PersistentVolumeClaim for downloaded weights, if the spec requests one."""
        return f"{self.owner}-model"

    def loader(self, load: str) -> str:
        """Return the name of the Job that downloads a model to `model_cache`.

        `load` is the hash of the download; the name has as much of it as a DNS label has room for.
        """
        return f"{self.owner}-load-{load[:5]}"

    @property
    def model_report(self) -> str:
        """Name of the ConfigMap with the loader's report: commit, configuration, bytes of the weights."""
        return f"{self.owner}-model"

    @property
    def last_ready(self) -> str:
        """Name of the ConfigMap with the last ready engine revision, for a roll-back."""
        return f"{self.owner}-last-ready" + ("" if self.role == "unified" else f"-{self.role}")

    @property
    def inference_pool(self) -> str:
        """Name of the InferencePool, if the spec requests one."""
        return self.owner

    @property
    def wake(self) -> str:
        """Name of the ConfigMap in which gateways request an engine and report problems.

        Gateways may write nothing else.
        """
        return f"{self.owner}-wake"


@dataclass(frozen=True, slots=True)
class GatewayChildren:
    """Names of the objects that belong to the MambaGateway `owner`."""

    owner: str

    @property
    def gateway(self) -> str:
        """Name of the Deployment, Service, ServiceAccount and its Role, disruption budget and HTTPRoute."""
        return self.owner

    @property
    def models(self) -> str:
        """Name of the ConfigMap with the file of models."""
        return f"{self.owner}-models"

    @property
    def engines(self) -> str:
        """Name of the network policy that lets the gateways reach the engines of the models."""
        return f"{self.owner}-engines"


_GATEWAY_SUFFIX = ".gateway"


def instance(kind: str, name: str) -> str:
    """Return the label LABEL_INSTANCE of the children of an object.

    A MambaDeployment and a MambaGateway may have one name, and the selectors of their pods must differ. No
    MambaDeployment has a dot in its name.
    """
    return name + _GATEWAY_SUFFIX if kind == GATEWAY_KIND else name


def owner_of_instance(label: str) -> tuple[str, str]:
    """Return the kind and name of the object whose children have this label LABEL_INSTANCE."""
    name = label.removesuffix(_GATEWAY_SUFFIX)
    return (KIND, label) if name == label else (GATEWAY_KIND, name)


def labels(owner: str, component: Component) -> dict[str, str]:
    """Return all labels of a child of `owner`."""
    return {
        **selector(owner, component),
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_PART_OF: APP_NAME,
    }


def selector(owner: str, component: Component) -> dict[str, str]:
    """Return the labels that select a child's pods. They never change during the life of an object."""
    return {LABEL_NAME: APP_NAME, LABEL_INSTANCE: owner, LABEL_COMPONENT: component}


def engine_selector(owner: str, role: Role) -> dict[str, str]:
    """Return the labels that select the engine pods of one role.

    The labels of the unified role also select the engines of all other roles: a Deployment's selector can
    never be changed. Each Deployment still recognizes its own pods by the hash of their template.
    """
    return {**selector(owner, "engine"), **({} if role == "unified" else {LABEL_ROLE: role})}


def url(owner: str, namespace: str) -> str:
    """Return the OpenAI base URL inside the cluster."""
    return f"http://{owner}.{namespace}.svc/v1"


def authority(host: str, port: int) -> str:
    """Return `host:port` as URLs have it, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
