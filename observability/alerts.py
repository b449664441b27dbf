"""The alerting rules. Each is a symptom that somebody should act on, with a runbook that says how."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from observability.series import Series, series, total

RUNBOOKS = "docs/runbooks"
"""Folder of the runbooks in the source tree; the chart puts its own address in its place."""
GATEWAY = ("namespace", "pod", "instance")
ENGINE = ("namespace", "pod", "instance", "model")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. `told` is the text of its notification.

    Prometheus fills in `{{ $value }}` and `{{ $labels.x }}`.
    """

    name: str
    expression: str
    told: str
    lasts: str = "0s"
    """Duration for which the condition must hold."""
    severity: Literal["critical", "warning"] = "warning"

    @property
    def runbook(self) -> str:
        """Path of its page: the name in kebab case."""
        words = re.findall(r"[A-Z][a-z]+", self.name.removeprefix("Mambaserve"))
        return f"{RUNBOOKS}/{'-'.join(words).lower()}.md"

    def to_rule(self) -> dict[str, Any]:
        """Return the rule in Prometheus' format."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.told, "runbook_url": self.runbook},
        }


def ratio(part: Series, whole: Series, window: str, *by: str) -> str:
    """Return the growth of the counter `part` divided by that of `whole`, over a window."""
    return f"{part.summed(*by, window=window)} / {whole.summed(*by, window=window)}"


def each(series: Series, *by: str) -> str:
    """Return the largest current value for each set of these labels."""
    for label in by:
        series.check(label)
    return f"max by ({', '.join(by)}) ({series.now})"


REQUESTS = series("gateway_requests")
SHED = REQUESTS.where(code="429").without(reason="key_limit")
READY, DRAINING = series("gateway_endpoint_ready"), series("gateway_endpoint_draining")
ANSWERING = READY.without(role="prefill")
"""Engines that answer requests; prefill engines compute prompts for them."""
MISSES = series("prefix_misses")
PASSES = series("operator_reconciles")

BY_GATEWAY = ", ".join(GATEWAY)
SERVED_BEFORE = f"max by ({BY_GATEWAY}) (max_over_time({ANSWERING.now}[1h]) and {ANSWERING.now}) > 0"
"""Gateways one of whose engines was ready within the hour: it has stopped, and does not merely load."""
LONG_WITHOUT = f"sum by ({BY_GATEWAY}) ({ANSWERING.now} offset 30m) == 0"
"""Gateways that had engines half an hour ago, and none of them was ready."""

DRAFTED, ACCEPTED = series("draft_tokens"), series("accepted_draft_tokens")
OF_DRAFTS = ("namespace", "model", "kind")


def accepted_share(window: str, before: str = "") -> str:
    """Return the share of the drafted tokens that were accepted."""
    accepted, drafted = (total(each.increase(window, before), *OF_DRAFTS) for each in (ACCEPTED, DRAFTED))
    return f"{accepted} / {drafted}"


BETTER = 0.15
"""Part of all drafted tokens by which a share of accepted ones is better than chance and traffic explain."""

ALERTS = (
    Alert(
        "MambaserveNoEngineReady",
        f"{ANSWERING.summed(*GATEWAY)} == 0 and on ({BY_GATEWAY}) ({SERVED_BEFORE} or {LONG_WITHOUT})",
        "The gateway {{ $labels.pod }} in {{ $labels.namespace }} has engines, but none of them is ready any "
        "more, or none has been ready for half an hour.",
        "2m",
        "critical",
    ),
    Alert(
        "MambaserveEngineNotReady",
        f"{each(READY, 'namespace', 'endpoint')} == 0 "
        f"unless on (namespace, endpoint) {each(DRAINING, 'namespace', 'endpoint')} == 1",
        "The engine {{ $labels.endpoint }} has not been ready for a quarter of an hour.",
        "15m",
    ),
    Alert(
        "MambaserveNoPrefillEngine",
        f"{total(series('gateway_prefilled_by_decode').where(reason='no_engine').increase('10m'), *GATEWAY)} "
        "> 0",
        "The gateway {{ $labels.pod }} in {{ $labels.namespace }} has no prefill engine ready: decode "
        "engines compute the prompts themselves.",
        "5m",
    ),
    Alert(
        "MambaserveEngineRestarts",
        f"{total(series('engine_restarts').increase('15m'), *ENGINE)} > 1",
        "The engine process of {{ $labels.pod }} {{ $labels.instance }} died and was restarted "
        "{{ $value | humanize }} times within a quarter of an hour.",
    ),
    Alert(
        "MambaserveFailedSteps",
        f"{total(series('failed_steps').increase('10m'), *ENGINE)} > 0",
        "Steps of the engine {{ $labels.pod }} {{ $labels.instance }} failed and were undone.",
    ),
    Alert(
        "MambaserveAnswersDiverged",
        f"{total(series('audits').where(outcome='diverged').increase('6h'), *ENGINE)} > 0",
        "The engine {{ $labels.pod }} {{ $labels.instance }} resumed answers from checkpoints that were "
        "wrong; it has quarantined them.",
        severity="critical",
    ),
    Alert(
        "MambaserveDraftsTooGood",
        f"({accepted_share('30m')}) - ({accepted_share('1d', '1h')}) > {BETTER} "
        f"and {total(DRAFTED.increase('30m'), *OF_DRAFTS)} > 2000 "
        f"and {total(DRAFTED.increase('1d', '1h'), *OF_DRAFTS)} > 20000",
        "Of the drafts of {{ $labels.model }} in {{ $labels.namespace }} (kind {{ $labels.kind }}), "
        "{{ $value | humanizePercentage }} more tokens are accepted than in the day before: wrong answers "
        "that repeat themselves look like that.",
        "15m",
    ),
    Alert(
        "MambaserveErrors",
        f"{ratio(REQUESTS.like(code='5..'), REQUESTS, '5m', 'namespace', 'model')} > 0.05",
        "{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} fail.",
        "5m",
        "critical",
    ),
    Alert(
        "MambaserveBrokenStreams",
        f"{total(series('gateway_broken_streams').increase('15m'), *GATEWAY)} > 0",
        "Engines broke off answers while the gateway {{ $labels.pod }} was relaying them.",
    ),
    Alert(
        "MambaserveRequestsShed",
        f"{ratio(SHED, REQUESTS, '5m', 'namespace', 'model')} > 0.01",
        "{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} are refused with 429 "
        "because there is no room for them.",
        "10m",
    ),
    Alert(
        "MambaserveRequestsHeld",
        f"{each(series('gateway_held'), *GATEWAY)} > 0",
        "{{ $value }} requests wait at the gateway {{ $labels.pod }} for an engine to become ready.",
        "2m",
    ),
    Alert(
        "MambaserveSlowAdmission",
        f"{series('request_queue_seconds').quantile(0.95, *ENGINE, window='10m')} > 30",
        "One request in twenty waits {{ $value | humanizeDuration }} or longer before {{ $labels.pod }} "
        "{{ $labels.instance }} begins to compute its prompt.",
        "10m",
    ),
    Alert(
        "MambaserveCacheFull",
        f"{each(series('cache_usage'), *ENGINE)} > 0.95",
        "Running requests hold {{ $value | humanizePercentage }} of the cache of {{ $labels.pod }} "
        "{{ $labels.instance }}, which eviction cannot free.",
        "15m",
    ),
    Alert(
        "MambaservePreemptions",
        f"{ratio(series('recomputed_tokens'), series('prompt_tokens'), '15m', *ENGINE)} > 0.2",
        "The engine {{ $labels.pod }} {{ $labels.instance }} computes tokens again after preemptions: "
        "{{ $value | humanizePercentage }} of its prompt tokens.",
        "15m",
    ),
    Alert(
        "MambaserveCheckpointsEvicted",
        f"{ratio(MISSES.where(cause='evicted'), MISSES, '30m', *ENGINE)} > 0.5",
        "{{ $value | humanizePercentage }} of the misses of {{ $labels.pod }} {{ $labels.instance }} concern "
        "prefixes whose checkpoint was evicted to free memory.",
        "30m",
    ),
    Alert(
        "MambaservePrefixIndexAway",
        f"{each(series('prefix_index_state').like(state='unavailable|stale'), *GATEWAY, 'state')} == 1",
        "The gateway {{ $labels.pod }} does not know everything that engines have cached, because its prefix "
        "index is {{ $labels.state }}.",
        "10m",
    ),
    Alert(
        "MambaservePrefixIndexFull",
        f"{each(series('prefix_index_refused_engines'), *GATEWAY)} > 0",
        "The gateway {{ $labels.pod }} does not know what {{ $value }} engines have cached, because its "
        "prefix index has room for only 1,024 engines.",
        "15m",
    ),
    Alert(
        "MambaservePublishFailures",
        f"{total(series('prefix_index_publish_failures').increase('10m'), *ENGINE)} > 3",
        "The engine {{ $labels.pod }} {{ $labels.instance }} cannot write to Redis what it has cached.",
        "5m",
    ),
    Alert(
        "MambaserveOperatorAway",
        f"absent({series('operator_leader').now} == 1)",
        "No operator holds the lease, so nobody reconciles MambaDeployments. Running pods continue to serve.",
        "5m",
        "critical",
    ),
    Alert(
        "MambaserveReconcileErrors",
        f"{ratio(PASSES.where(result='error'), PASSES, '15m')} > 0.5",
        "{{ $value | humanizePercentage }} of the operator's reconciliation passes fail.",
        "15m",
    ),
    Alert(
        "MambaserveOperatorBehind",
        f"{series('operator_queue_depth').summed()} > 20",
        "{{ $value }} MambaDeployments wait for a pass of the operator.",
        "10m",
    ),
)
"""In the order in which somebody who is woken up reads them."""


def rule_file() -> dict[str, Any]:
    """Return the file that Prometheus loads, and the spec of a PrometheusRule."""
    return {"groups": [{"name": "mambaserve", "rules": [alert.to_rule() for alert in ALERTS]}]}
