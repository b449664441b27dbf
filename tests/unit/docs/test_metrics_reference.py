"""The metrics page and the registries of all three processes name the same series, in both directions."""

import random
import re
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from engine_trial import EngineTrial, TrialSetup
from mamba_gateway.metrics import GatewayMetrics
from mamba_operator.metrics import OperatorMetrics
from mamba_prefix.change_log import ChangeLog
from mamba_server.api.engine_metrics import EngineMetrics
from mamba_server.api.prefix_metrics import PrefixMetrics
from mamba_server.api.request_metrics import RequestMetrics
from mamba_server.engine.stats import collect
from mamba_server.wire import Ready

PAGE = Path(__file__).parents[3] / "docs/reference/metrics.md"
ROW = re.compile(r"^\| `((?:mambaserve_|vllm:)[a-z0-9_:]+)` \| ([^|]+) \|", re.MULTILINE)


def documented() -> dict[str, str]:
    """Name -> type; an alias has that of the series it stands for."""
    rows: dict[str, str] = dict(ROW.findall(PAGE.read_text()))
    of = re.compile("`(mambaserve_[a-z_]+)`")
    return {
        name: rows[found[1]] if name.startswith("vllm:") and (found := of.search(what)) else what
        for name, what in rows.items()
    }


def families(registry: CollectorRegistry) -> list[Metric]:
    return list(registry.collect())


def engine() -> list[Metric]:
    """All series of an engine that has served, missed, preempted and finished."""
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, "m")
    RequestMetrics(registry, "m")
    PrefixMetrics(registry, "m", ChangeLog("m"))
    trial = EngineTrial(TrialSetup(slabs=24, rows=3), random.Random(3))
    stem = list(range(1, 33))
    for number in range(6):
        trial.add([*stem[: 8 + number], 40 + number], 6, salt="a")
    for _ in range(40):
        trial.step()
    metrics.on_ready(Ready(10, 10, (), {"strategy": "ExtraBuffer", "pageSize": 16, "pages": 9}))
    metrics.on_stats(collect(trial.core))
    trial.close()
    return families(registry)


def emitted() -> dict[str, str]:
    gateway = GatewayMetrics(lambda: ())
    all_of_them = [*engine(), *families(gateway.registry), *families(OperatorMetrics().registry)]
    return {one.name: one.type for one in all_of_them}


def test_every_series_is_documented_and_every_documented_series_is_emitted() -> None:
    assert set(documented()) == set(emitted())


def test_the_documented_types_are_those_on_the_wire() -> None:
    wire = emitted()
    known = {name: kind for name, kind in documented().items() if kind in ("counter", "gauge", "histogram")}

    assert len(known) > 50
    assert {name: wire[name] for name in known} == known
