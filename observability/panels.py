"""Panels, and the JSON that Grafana imports: a dashboard is rows of panels; places follow from the order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

WIDTH = 24
"""Columns of Grafana's grid."""
ROW_HEIGHT = {"timeseries": 8, "stat": 4}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SELECTOR = re.compile(r"\b(mambaserve_[a-z_]+)(?:\{([^}]*)\})?")
Unit = Literal["short", "reqps", "ops", "s", "percentunit", "bytes", "none"]


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel. `legend` is Grafana's: `{{label}}` stands for its value."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a dashboard."""

    title: str
    queries: tuple[Query, ...]
    question: str
    """Question that the panel answers, with advice about an odd answer: Grafana shows it at the title."""
    unit: Unit = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False
    most: float | None = None
    """Upper end of the axis."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`uid` is its address in Grafana and the name of its file."""

    uid: str
    title: str
    about: str
    namespaces_of: str
    """A series whose label `namespace` offers the choices."""
    rows: tuple[tuple[Panel, ...], ...] = field(default=())

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All of them, in order."""
        return tuple(panel for row in self.rows for panel in row)

    def to_json(self) -> dict[str, Any]:
        """Return the panel in Grafana's import format."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.about,
            "tags": ["mambaserve"],
            "schemaVersion": 39,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "links": [
                {"type": "dashboards", "title": "mambaserve", "tags": ["mambaserve"], "asDropdown": False,
                 "includeVars": True, "keepTime": True},
            ],
            "templating": {"list": self._variables()},
            "panels": self._placed(),
        }  # fmt: skip

    def _variables(self) -> list[dict[str, Any]]:
        return [
            {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            {
                "name": "namespace", "label": "namespace", "type": "query", "datasource": SOURCE,
                "query": {"query": f"label_values({self.namespaces_of}, namespace)", "refId": "namespaces"},
                # A Prometheus outside of a cluster gives its targets no namespace: no label matches, too.
                "includeAll": True, "allValue": ".*", "multi": True, "refresh": 2,
                "current": {"text": "All", "value": "$__all"},
            },
        ]  # fmt: skip

    def _placed(self) -> list[dict[str, Any]]:
        placed: list[dict[str, Any]] = []
        top = 0
        for row in self.rows:
            height = max(ROW_HEIGHT[panel.kind] for panel in row)
            width = WIDTH // len(row)
            for place, panel in enumerate(row):
                grid = {"x": place * width, "y": top, "w": width, "h": height}
                placed.append(_panel(panel, len(placed) + 1, grid))
            top += height
        return placed


def in_namespaces(expression: str) -> str:
    """Restrict every selector of our series to the namespaces that the reader has chosen."""
    chosen = 'namespace=~"$namespace"'
    return _SELECTOR.sub(
        lambda found: f"{found[1]}{{{','.join(filter(None, (chosen, found[2])))}}}", expression
    )


def _panel(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    custom = {
        "fillOpacity": 60 if panel.stacked else 8,
        "stacking": {"mode": "normal" if panel.stacked else "none"},
        "showPoints": "never",
    }
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        defaults["custom"] = custom
        options: dict[str, Any] = {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    else:
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area", "colorMode": "none"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.question,
        "datasource": SOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": _targets(panel.queries),
    }


def _targets(lines: Sequence[Query]) -> list[dict[str, Any]]:
    return [
        {
            "refId": chr(ord("A") + place),
            "datasource": SOURCE,
            "expr": in_namespaces(line.expression),
            "legendFormat": line.legend or "__auto",
        }
        for place, line in enumerate(lines)
    ]
