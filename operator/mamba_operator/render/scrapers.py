"""`Scraper`: pods that may read the engines' metrics, as the operator's settings name them."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import from_json

from mamba_api import names

_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LabelKey = Annotated[str, StringConstraints(pattern=rf"^([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}$")]
LabelValue = Annotated[str, StringConstraints(pattern=rf"^({_NAME})?$")]


class Scraper(BaseModel):
    """Pods with all these labels in namespaces with all those; without labels: any."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    namespaces: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels of the namespace; kubernetes.io/metadata.name is its name."""
    pods: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels of the pod."""

    def peer(self) -> dict[str, Any]:
        """As a NetworkPolicy names them."""
        return {"namespaceSelector": _selector(self.namespaces), "podSelector": _selector(self.pods)}


def _selector(labels: dict[str, str]) -> dict[str, Any]:
    return {"matchLabels": dict(labels)} if labels else {}


def _read(value: Any) -> Any:
    return from_json(value) if isinstance(value, str) else value


Scrapers = Annotated[tuple[Scraper, ...], BeforeValidator(_read)]
PROMETHEUS = (Scraper(pods={names.LABEL_NAME: "prometheus"}),)


def operator_pods(namespace: str | None) -> Scraper:
    """The operator's own pods; None: its namespace is not known, since it runs in none."""
    where = {"kubernetes.io/metadata.name": namespace} if namespace else {}
    return Scraper(
        namespaces=where, pods={names.LABEL_NAME: names.APP_NAME, names.LABEL_COMPONENT: "operator"}
    )


OPERATOR = operator_pods(None)
