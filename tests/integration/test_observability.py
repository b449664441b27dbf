"""Dashboards and rules in a real Prometheus that scrapes a real engine, a gateway and an operator."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from eventually import PATIENCE
from fake_cluster import FakeCluster
from mamba_gateway.process.server import serve
from mamba_gateway.settings import GatewaySettings
from mamba_operator.main import Operator
from mamba_operator.objects.kinds import SERVICE
from mamba_operator.objects.manifest import Key
from mamba_operator.process.liveness import liveness_server
from mamba_operator.process.settings import OperatorSettings
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from mamba_server import wire
from observability.alerts import rule_file
from observability.dashboards import DASHBOARDS
from operator_objects import NOW, TOKEN, fitting_owner
from prometheus_server import Prometheus, programs, prometheus
from scripted_engine import READY, Api
from served_app import served
from servers import Server

in_one_loop = pytest.mark.asyncio(loop_scope="module")
EVERY = "200ms"
EXPRESSIONS = {
    f"{dashboard.uid}: {panel['title']}: {target['refId']}": target["expr"]
    for dashboard in DASHBOARDS
    for panel in dashboard.to_json()["panels"]
    for target in panel["targets"]
}


@dataclass
class Live:
    """Running processes: one engine, a gateway that knew two, an operator, and the observers."""

    prometheus: Prometheus
    engine: Server
    operator: Operator
    gateway: str
    client: aiohttp.ClientSession

    async def complete(self, prompt: str) -> int:
        """Send one request through the gateway and return its status."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4}
        async with self.client.post(f"{self.gateway}/v1/completions", json=body) as answer:
            await answer.read()
            return answer.status

    async def until(self, look: Callable[[], Any]) -> Any:
        """Return the first true result of a look at Prometheus; the gateway works meanwhile."""
        async with asyncio.timeout(PATIENCE):
            while not (found := await asyncio.to_thread(look)):  # noqa: ASYNC110 - in another process
                await asyncio.sleep(0.1)
        return found


async def an_operator(stack: AsyncExitStack) -> tuple[Operator, str]:
    """Start a leading operator with a MambaDeployment's children, and return its metrics' address."""
    cluster = FakeCluster(fitting_owner())
    operator = Operator(OperatorSettings(liveness_port=0), cluster)
    metrics = operator._metrics
    operator._on_delivered(SERVICE, fitting_owner(), False)
    again = Reconciler(
        cluster, metrics, PassSettings("test"), runtime=Runtime(now=lambda: NOW, new_token=lambda: TOKEN)
    )
    await again(Key("models", "nano"))
    metrics.leader.set(1)
    port = await stack.enter_async_context(
        liveness_server("127.0.0.1", 0, checks=list, ready=lambda: None, registry=metrics.registry)
    )
    return operator, f"http://127.0.0.1:{port}"


def answers(api: Api) -> None:
    """Let the scripted engine answer each request with two tokens."""

    def react(message: wire.ToEngine) -> None:
        if isinstance(message, wire.AddRequest):
            api.engine.delta("ab", of=len(api.engine.requests) - 1, finish_reason="stop")

    api.engine.process.react = react
    api.engine.send(wire.Ready(READY.vocab_size, 4096, READY.eos_token_ids, READY.plan))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    programs()
    async with AsyncExitStack() as stack:
        options = ["--served-model-name", "tiny", "--arena-bytes", "64Mi"]
        # What is off or rare by default has panels, too.
        options += ["--speculation", "ngram", "--audit-share", "1"]
        engine = stack.enter_context(await asyncio.to_thread(Server, "builtin://tiny-recall", *options))
        api = Api()
        answers(api)
        second = AsyncExitStack()
        other = await second.enter_async_context(served(api.app))
        stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
        settings = GatewaySettings(
            port=0, backend=(engine.url, other), hold_timeout=3.0, load_weight=0.0, price_device_hour=2.0
        )
        gateway = asyncio.create_task(serve(settings, url.set_result, stop=stop))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        operator, operator_url = await an_operator(stack)
        # In a test nothing has to hold for long, or nobody would wait for it.
        rules = deepcopy(rule_file())
        for rule in rules["groups"][0]["rules"]:
            rule["for"] = "0s"
        jobs = {"engine": engine.url, "gateway": await url, "operator": operator_url}
        folder = tmp_path_factory.mktemp("prometheus")
        watching = stack.enter_context(prometheus(folder, jobs, rules, EVERY))
        found = Live(watching, engine, operator, jobs["gateway"], client)
        try:
            await found.until(lambda: watching.targets_up() == 3)
            prompts = [f"{number} is the number of this prompt. " * 6 for number in range(20)]
            for prompt in prompts[:6]:
                assert await found.complete(prompt) == 200
            await second.aclose()
            # New beginnings go to either engine, and one is gone; the last two prompts are known by then.
            for prompt in (*prompts[6:], *prompts[-2:]):
                assert await found.complete(prompt) == 200
            yield found
        finally:
            stop.set()
            await gateway


@pytest.mark.slow
@in_one_loop
async def test_every_panel_has_data(live: Live) -> None:
    def empty() -> dict[str, str]:
        asked = {
            what: said.replace("$__rate_interval", "1m").replace("$namespace", ".*")
            for what, said in EXPRESSIONS.items()
        }
        return {what: said for what, said in asked.items() if not live.prometheus.query(said)}

    left = EXPRESSIONS

    def none_left() -> bool:
        nonlocal left
        left = empty()
        return not left

    try:
        await live.until(none_left)
    except TimeoutError:
        assert left == {}
    resumed = 'sum(mambaserve_cached_tokens_total{namespace=~".*"})'
    await live.until(lambda: any(float(one["value"][1]) > 0 for one in live.prometheus.query(resumed)))


@in_one_loop
async def test_rules_are_well_and_tell_of_an_engine_that_was_killed(live: Live) -> None:
    evaluated = await live.until(
        lambda: [rule for rule in live.prometheus.rules() if rule["health"] != "unknown"]
    )
    assert {rule["name"]: rule.get("lastError") for rule in evaluated if rule["health"] != "ok"} == {}
    # One of two engines is gone, and users do not feel it.
    told_of = set(await live.until(live.prometheus.alerts))
    assert "MambaserveEngineNotReady" in told_of
    assert not told_of & {"MambaserveNoEngineReady", "MambaserveRequestsHeld", "MambaserveErrors",
                          "MambaserveOperatorAway", "MambaserveEngineRestarts"}  # fmt: skip

    os.killpg(live.engine.process.pid, signal.SIGKILL)
    await live.until(lambda: "MambaserveNoEngineReady" in live.prometheus.alerts())
    assert await live.complete("nobody is there") == 503
    await live.until(lambda: live.prometheus.query('mambaserve_gateway_requests_total{code="503"}'))
    asking = [asyncio.create_task(live.complete(f"nobody is there, {number}")) for number in range(4)]
    await live.until(lambda: "MambaserveRequestsHeld" in live.prometheus.alerts())
    assert await asyncio.gather(*asking) == [503] * 4
    live.operator._metrics.leader.set(0)
    wanted = {"MambaserveErrors", "MambaserveOperatorAway"}
    await live.until(lambda: wanted <= set(live.prometheus.alerts()))
    [told] = live.prometheus.alerts()["MambaserveErrors"]
    assert (told["namespace"], told["model"], told["severity"]) == ("gateway", "tiny", "critical")


POD = 'namespace="n", pod="p", instance="i"'
ENGINE = f'{POD}, model="m"'
FIRES: dict[str, tuple[dict[str, str], str, str]] = {
    "MambaserveNoEngineReady": (
        {f'mambaserve_gateway_endpoint_ready{{{POD}, endpoint="e", role="decode"}}': "1 0x60",
         f'mambaserve_gateway_endpoint_ready{{{POD}, endpoint="p", role="prefill"}}': "1x61"}, "2m", "4m",
    ),
    "MambaserveEngineNotReady": (
        {f'mambaserve_gateway_endpoint_ready{{{POD}, endpoint="e"}}': "1 0x60",
         f'mambaserve_gateway_endpoint_draining{{{POD}, endpoint="e"}}': "0x60"}, "15m", "17m",
    ),
    "MambaserveNoPrefillEngine": (
        {f'mambaserve_gateway_prefilled_by_decode_total{{{POD}, reason="no_engine"}}': "0x5 0+3x40",
         f'mambaserve_gateway_prefilled_by_decode_total{{{POD}, reason="short"}}': "0+9x45"}, "8m", "20m",
    ),
    "MambaserveEngineRestarts": (
        {f"mambaserve_engine_restarts_total{{{ENGINE}}}": "0x5 1x5 2x5 3x9"}, "5m", "18m",
    ),
    "MambaserveFailedSteps": ({f"mambaserve_failed_steps_total{{{ENGINE}}}": "0x9 2x9"}, "9m", "11m"),
    "MambaserveAnswersDiverged": (
        {f'mambaserve_audits_total{{{ENGINE}, outcome="diverged", origin="tier"}}': "0x9 1x9"}, "9m", "11m",
    ),
    "MambaserveDraftsTooGood": (
        {f'mambaserve_draft_tokens_total{{{ENGINE}, kind="ngram"}}': "0+600x240",
         f'mambaserve_accepted_draft_tokens_total{{{ENGINE}, kind="ngram"}}': "0+330x150 49500+500x90"},
        "150m", "200m",
    ),
    "MambaserveErrors": (
        {f'mambaserve_gateway_requests_total{{{ENGINE}, code="200"}}': "0+90x60",
         f'mambaserve_gateway_requests_total{{{ENGINE}, code="503"}}': "0x10 0+10x50"}, "10m", "25m",
    ),
    "MambaserveBrokenStreams": (
        {f"mambaserve_gateway_broken_streams_total{{{POD}}}": "0x9 1x9"}, "9m", "11m",
    ),
    "MambaserveRequestsShed": (
        {f'mambaserve_gateway_requests_total{{{ENGINE}, code="200"}}': "0+90x60",
         f'mambaserve_gateway_requests_total{{{ENGINE}, code="429", reason=""}}': "0x10 0+10x50"},
        "15m", "30m",
    ),
    "MambaserveRequestsHeld": ({f"mambaserve_gateway_held{{{POD}}}": "0x5 3x20"}, "6m", "10m"),
    "MambaserveSlowAdmission": (
        {f'mambaserve_request_queue_seconds_bucket{{{ENGINE}, le="10"}}': "0+1x60",
         f'mambaserve_request_queue_seconds_bucket{{{ENGINE}, le="80"}}': "0+9x60",
         f'mambaserve_request_queue_seconds_bucket{{{ENGINE}, le="+Inf"}}': "0+9x60"}, "5m", "25m",
    ),
    "MambaserveCacheFull": ({f"mambaserve_cache_usage{{{ENGINE}}}": "0.9x5 0.97x40"}, "15m", "25m"),
    "MambaservePreemptions": (
        {f"mambaserve_recomputed_tokens_total{{{ENGINE}}}": "0x10 0+30x50",
         f"mambaserve_prompt_tokens_total{{{ENGINE}}}": "0+100x60"}, "20m", "50m",
    ),
    "MambaserveCheckpointsEvicted": (
        {f'mambaserve_prefix_misses_total{{{ENGINE}, cause="evicted"}}': "0+30x120",
         f'mambaserve_prefix_misses_total{{{ENGINE}, cause="new"}}': "0+9x120"}, "20m", "70m",
    ),
    "MambaservePrefixIndexAway": (
        {f'mambaserve_prefix_index_state{{{POD}, state="stale"}}': "0x5 1x40",
         f'mambaserve_prefix_index_state{{{POD}, state="following"}}': "1x5 0x40"}, "10m", "18m",
    ),
    "MambaservePrefixIndexFull": (
        {f"mambaserve_prefix_index_refused_engines{{{POD}}}": "0x5 3x40"}, "18m", "25m",
    ),
    "MambaservePublishFailures": (
        {f"mambaserve_prefix_index_publish_failures_total{{{ENGINE}}}": "0+1x60"}, "3m", "20m",
    ),
    "MambaserveOperatorAway": ({'mambaserve_operator_leader{namespace="n"}': "1x5 0x30"}, "5m", "12m"),
    "MambaserveReconcileErrors": (
        {'mambaserve_operator_reconciles_total{result="error"}': "0+3x60",
         'mambaserve_operator_reconciles_total{result="done"}': "0+1x60"}, "10m", "40m",
    ),
    "MambaserveOperatorBehind": ({"mambaserve_operator_queue_depth": "5x5 30x40"}, "10m", "20m"),
}  # fmt: skip
"""By alert: series as they go minute by minute, a time at which it is silent, and one at which it fires."""


SILENT: tuple[tuple[str, dict[str, str], str], ...] = (
    ("MambaserveNoEngineReady",
     {f'mambaserve_gateway_endpoint_ready{{{POD}, endpoint="loads"}}': "0x25"}, "20m"),
    ("MambaserveNoEngineReady",
     {f'mambaserve_gateway_endpoint_ready{{{POD}, endpoint="before-zero"}}': "1x5 _x60",
      f'mambaserve_gateway_endpoint_ready{{{POD}, endpoint="woken"}}': "_x20 0x25"}, "40m"),
    ("MambaserveDraftsTooGood",
     {f'mambaserve_draft_tokens_total{{{ENGINE}, kind="ngram"}}': "0+600x240",
      f'mambaserve_accepted_draft_tokens_total{{{ENGINE}, kind="ngram"}}': "0+330x150 49500+390x90"}, "220m"),
    ("MambaserveDraftsTooGood",
     {f'mambaserve_draft_tokens_total{{{ENGINE}, kind="ngram"}}': "0+30x240",
      f'mambaserve_accepted_draft_tokens_total{{{ENGINE}, kind="ngram"}}': "0+9x150 1350+29x90"}, "220m"),
    ("MambaserveRequestsShed",
     {f'mambaserve_gateway_requests_total{{{ENGINE}, code="200", reason=""}}': "0+90x60",
      f'mambaserve_gateway_requests_total{{{ENGINE}, code="429", reason="key_limit"}}': "0+90x60"}, "40m"),
)  # fmt: skip
"""An alert, series as they go, and a time at which nobody is to be woken up for it."""


@pytest.mark.slow
def test_each_rule_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    rules = rule_file()
    names = [rule["alert"] for rule in rules["groups"][0]["rules"]]
    assert set(FIRES) == set(names)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": one, "values": values}
                for one, values in {'mambaserve_operator_leader{pod="o"}': "1x120", **series}.items()
                if name != "MambaserveOperatorAway" or one in series
            ],
            "promql_expr_test": [
                {"expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
                 "eval_time": at, "exp_samples": [{"labels": "{}", "value": firing}]}
                for at, firing in ((silent, 0), (fires, 1))
            ],
        }
        for name, (series, silent, fires) in FIRES.items()
    ]  # fmt: skip
    tests += [
        {
            "interval": "1m",
            "input_series": [{"series": one, "values": values} for one, values in series.items()],
            "promql_expr_test": [
                {"expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
                 "eval_time": at, "exp_samples": [{"labels": "{}", "value": 0}]}
            ],
        }
        for name, series, at in SILENT
    ]  # fmt: skip
    table = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(table))
    checked = subprocess.run(
        [programs()["promtool"], "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    shipped = Path(__file__).parents[2] / "charts/mambaserve/files/rules.yaml"
    checked = subprocess.run(
        [programs()["promtool"], "check", "rules", shipped], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
