"""`Scraper`: a selection of pods that may read the engines' metrics, from the operator's settings."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import from_json

from mamba_api import names

_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LabelKey = Annotated[str, StringConstraints(pattern=rf"^([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}$")]
LabelValue = Annotated[str, StringConstraints(pattern=rf"^({_NAME})?$")]


class Scraper(BaseModel):
    """Pods with all labels of `pods`, in namespaces with all labels of `namespaces`; no labels = any."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    namespaces: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels of the namespace; kubernetes.io/metadata.name is the name of the namespace."""
    pods: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels of the pod."""

    def peer(self) -> dict[str, Any]:
        """Return the peer by which a NetworkPolicy names the pods."""
        return {"namespaceSelector": _selector(self.namespaces), "podSelector": _selector(self.pods)}


def _selector(labels: dict[str, str]) -> dict[str, Any]:
    return {"matchLabels": dict(labels)} if labels else {}


def _read(value: Any) -> Any:
    return from_json(value) if isinstance(value, str) else value


Scrapers = Annotated[tuple[Scraper, ...], BeforeValidator(_read)]
PROMETHEUS = (Scraper(pods={names.LABEL_NAME: "prometheus"}),)


def operator_pods(namespace: str | None) -> Scraper:
    """Return the selection of the operator's own pods; `namespace` is None outside a cluster."""
    namespaces = {"kubernetes.io/metadata.name": namespace} if namespace else {}
    return Scraper(
        namespaces=namespaces, pods={names.LABEL_NAME: names.APP_NAME, names.LABEL_COMPONENT: "operator"}
    )


OPERATOR = operator_pods(None)
