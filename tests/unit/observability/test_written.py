"""Files of the chart equal the description; alerts have runbooks, and runbooks have alerts."""

import json
import re
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from mamba_api.v1alpha1.conditions import Reason
from mamba_cli.main import COMMANDS
from observability import write
from observability.alerts import ALERTS, RUNBOOKS, Alert
from observability.dashboards import DASHBOARDS
from observability.panels import WIDTH, Dashboard, in_namespaces
from observability.series import series
from parsed_yaml import load_yaml

ROOT = Path(__file__).parents[3]


def test_the_files_of_the_chart_are_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["write", "--check"])
    assert (write.main(), capsys.readouterr().out) == (0, "")


def test_a_file_that_is_out_of_date_or_of_no_dashboard_is_found_and_mended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chart = tmp_path / "charts/mambaserve"
    (chart / "files").mkdir(parents=True)
    monkeypatch.setattr(write, "CHART", chart)
    monkeypatch.setattr(sys, "argv", ["write"])
    assert write.main() == 0
    (chart / "dashboards/old.json").write_text("{}")
    (chart / "files/rules.yaml").write_text("groups: []\n")
    monkeypatch.setattr(sys, "argv", ["write", "--check"])
    assert write.main() == 1
    said = capsys.readouterr().out
    assert "old.json" in said
    assert "rules.yaml" in said
    monkeypatch.setattr(sys, "argv", ["write"])
    write.main()
    monkeypatch.setattr(sys, "argv", ["write", "--check"])
    assert write.main() == 0


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_panels_lie_beside_each_other_on_the_grid(dashboard: Dashboard) -> None:
    panels = dashboard.to_json()["panels"]
    cells = []
    for panel in panels:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= WIDTH
        cells.append({(x, y) for x in range(grid["x"], grid["x"] + grid["w"])
                      for y in range(grid["y"], grid["y"] + grid["h"])})  # fmt: skip
    assert not any(one & other for one, other in combinations(cells, 2))
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)


def queries(dashboard: Dashboard) -> list[dict[str, Any]]:
    return [target for panel in dashboard.to_json()["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_each_query_asks_the_chosen_source_for_the_chosen_namespaces(dashboard: Dashboard) -> None:
    named = {variable["name"] for variable in dashboard.to_json()["templating"]["list"]}
    for query in queries(dashboard):
        assert set(re.findall(r"\$\{?(\w+)", json.dumps(query))) <= named | {"__rate_interval"}
        selectors = re.findall(r"mambaserve_\w+(\{[^}]*\})?", query["expr"])
        assert selectors
        assert all('namespace=~"$namespace"' in one for one in selectors)


def test_a_chosen_namespace_joins_other_choices() -> None:
    assert in_namespaces('rate(mambaserve_a_total{code="1"}[5m]) / sum(mambaserve_b)') == (
        'rate(mambaserve_a_total{namespace=~"$namespace",code="1"}[5m]) / '
        'sum(mambaserve_b{namespace=~"$namespace"})'
    )


def test_dashboards_are_told_apart() -> None:
    assert len({each.uid for each in DASHBOARDS}) == len({each.title for each in DASHBOARDS}) == 5


@pytest.mark.parametrize("alert", ALERTS, ids=lambda each: each.name)
def test_each_alert_has_a_runbook_that_says_what_to_do(alert: Alert) -> None:
    text = (ROOT / alert.runbook).read_text()
    assert text.startswith(f"# {alert.name}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["What it means", "What to look at", "What to do"]
    rules = load_yaml((ROOT / "charts/mambaserve/files/rules.yaml").read_text())["groups"][0]["rules"]
    (rule,) = (one for one in rules if one["alert"] == alert.name)
    assert rule["annotations"]["runbook_url"] == alert.runbook
    # Labels that a notification speaks of are there after the aggregation.
    told = set(re.findall(r"\$labels\.(\w+)", alert.told))
    kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", alert.expression))))
    assert told <= kept


def test_there_is_no_runbook_without_an_alert() -> None:
    pages = {path.name for path in (ROOT / RUNBOOKS).glob("*.md")} - {"conditions.md"}
    assert pages == {Path(alert.runbook).name for alert in ALERTS}


def test_each_condition_reason_has_its_section_and_there_is_no_other() -> None:
    sections = re.split(r"^### ", (ROOT / RUNBOOKS / "conditions.md").read_text(), flags=re.MULTILINE)[1:]
    said = {
        name: text.partition("\n## ")[0].strip()
        for name, _, text in (one.partition("\n") for one in sections)
    }
    assert sorted(said) == sorted(reason.value for reason in Reason)
    assert [name for name, text in said.items() if not text] == []


def test_commands_that_runbooks_name_exist() -> None:
    texts = [path.read_text() for path in (ROOT / RUNBOOKS).glob("*.md")]
    named = set(re.findall(r"^mambaserve ([a-z]+)\b", "\n".join(texts), re.MULTILINE))
    assert "status" in named
    assert named <= set(COMMANDS)


def test_fields_that_runbooks_name_exist() -> None:
    known = set(load_yaml((ROOT / "tests/data/field_effects.yaml").read_text()))
    known |= {path[: dot.start()].removesuffix("[]") for path in known for dot in re.finditer(r"\.", path)}
    text = "\n".join(path.read_text() for path in (ROOT / RUNBOOKS).glob("*.md"))
    named = set(re.findall(r"`spec\.([\w.]+)", text))
    assert len(named) > 5
    assert named - known == set()


def test_series_that_runbooks_name_exist() -> None:
    named = {
        name
        for path in (ROOT / RUNBOOKS).glob("*.md")
        for name in re.findall(r"`mambaserve_(\w+?)(?:_total|_bucket)?[`{]", path.read_text())
    }
    assert named
    for name in named:
        series(name)
