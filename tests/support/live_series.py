"""All series that the processes expose, from registries that have counted something of everything."""

import random
from typing import Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from engine_trial import EngineTrial, TrialSetup
from mamba_cli.local.loading.download_metrics import DownloadMetrics
from mamba_edge.usage.prices import Prices
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.usage.ledger_store import MemoryLedger
from mamba_gateway.usage.usage_ledger import UsageLedger
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.process.metrics import OperatorMetrics
from mamba_prefix.change_log import ChangeLog
from mamba_server.api.metrics.engine_metrics import EngineMetrics
from mamba_server.api.metrics.prefix_metrics import PrefixMetrics
from mamba_server.api.metrics.request_metrics import RequestMetrics
from mamba_server.api.metrics.usage_metrics import UsageMetrics
from mamba_server.api.usage.usage_totals import UsageTotals
from mamba_server.engine.speculation.ngram_drafts import NgramDrafts
from mamba_server.engine.stats import collect
from mamba_server.engine.stepping.speculation import DraftSwitch, Speculation
from mamba_server.engine.transfers.engine_transfers import EngineTransfers
from mamba_server.engine.transfers.exporter import Exporter
from mamba_server.engine.transfers.importer import Importer
from mamba_server.engine.transfers.transfer_counts import TransferCounts
from mamba_server.wire import Ready

OF_A_GPU = {"host_syncs_total": 0.0, "jit_compilations_after_ready_total": 0.0}
LEFT_OUT = {"decode_steps{kind=captured}": 12.0, "kernels_left_out{operator=moe,cause=failed}": 1.0}
"""Counters and gauges that an engine has where Triton's kernels compute."""


def families(registry: CollectorRegistry) -> list[Metric]:
    return list(registry.collect())


def engine() -> list[Metric]:
    """Return all series of an engine that has served, missed, preempted and finished."""
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, "m")
    RequestMetrics(registry, "m")
    PrefixMetrics(registry, "m", ChangeLog("m"))
    UsageMetrics(registry, UsageTotals("m"))
    trial = EngineTrial(TrialSetup(slabs=24, rows=3, policy="RecomputeCost"), random.Random(3))
    stem = list(range(1, 33))
    for number in range(6):
        trial.add([*stem[: 8 + number], 40 + number], 6, salt="a")
    for _ in range(40):
        trial.step()
    metrics.on_ready(Ready(10, 10, (), {"strategy": "ExtraBuffer", "pageSize": 16, "pages": 9}))
    move_states(trial)
    trial.core.speculation = Speculation(DraftSwitch(NgramDrafts(3, 3)), cast("Any", None))
    metrics.on_stats(collect(trial.core, OF_A_GPU, LEFT_OUT))
    trial.core.speculation = None
    trial.close()
    return families(registry)


def move_states(trial: EngineTrial) -> None:
    """Give the engine transfers that have counted one."""
    core, counts, nowhere = trial.core, TransferCounts(), cast("Any", None)
    fields: dict[str, Any] = {"lease_seconds": 1.0, "wake": lambda: None}
    importer = Importer(core.cache, nowhere, counts, **fields)
    exporter = Exporter(core.cache, nowhere, counts, **fields)
    core.transfers = EngineTransfers(
        core.cache,
        importer,
        counts,
        lambda: 1,
        exporter,
        nowhere,
        nowhere,
        nowhere,
        peers=cast("Any", object()),
    )
    counts.record("in", "valid", 1, 0.5)


def emitted() -> dict[str, str]:
    gateway = GatewayMetrics(lambda: ())
    gateway.registry.register(UsageLedger(MemoryLedger(1), prices=Prices(), days=1))
    operator = OperatorMetrics()
    ScalingMetrics(operator.registry)
    of_one = (gateway.registry, operator.registry, DownloadMetrics().registry)
    all_of_them = [*engine(), *(family for registry in of_one for family in families(registry))]
    return {one.name: one.type for one in all_of_them}
