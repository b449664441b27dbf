"""Two pools that are scaled: each by its own bounds, its own engines' reports, and its own decision."""

from typing import Any

import pytest

from mamba_api.v1alpha1 import MambaDeployment, Status
from mamba_api.v1alpha1.pool_deployments import pool_deployments
from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.demand import Demand
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.reports import engine_report
from mamba_operator.autoscale.scaling_record import LatestDecision, from_text
from mamba_operator.autoscale.scaling_status import autoscaler_config
from mamba_operator.conditions.status import summarize
from mamba_operator.objects.manifest import Manifest
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.pass_events import pass_events
from mamba_operator.plan import make_plan
from operator_objects import NOW, TOKEN, applied, fitting_owner, running, snapshot
from pool_world import KEY, RANGES, World

MANY_ANSWERS = """mambaserve_requests_running{model="m"} 60
mambaserve_requests_waiting{model="m"} 40
mambaserve_max_running_requests{model="m"} 64
mambaserve_state_usage{model="m"} 0.95
"""
MANY_PROMPTS = """mambaserve_requests_running{model="m"} 4
mambaserve_requests_waiting{model="m"} 20
mambaserve_prompt_tokens_waiting{model="m"} 4000000
mambaserve_prefill_tokens_per_second{model="m"} 9000
"""
MANY_EXPORTS = """mambaserve_requests_running{model="m"} 1
mambaserve_slabs{model="m",owner="exported"} 95
mambaserve_slabs{model="m",owner="free"} 5
"""


def test_each_pool_has_its_own_bounds_and_targets() -> None:
    of = MambaDeployment.model_validate(fitting_owner(disaggregation=RANGES), by_alias=True, by_name=False)
    configs = {role: autoscaler_config(part, role) for role, part in pool_deployments(of).items()}
    prefill, decode = configs["prefill"], configs["decode"]

    assert prefill == AutoscalerConfig(min_replicas=1, max_replicas=6, ttft_target=1.0, bypassed=True)
    assert decode == AutoscalerConfig(
        min_replicas=1, max_replicas=8, tpot_target=0.05, scale_down_delay=60.0, history=720.0
    )


async def test_prompts_that_wait_get_prefill_engines_alone() -> None:
    world = World()
    world.set("prefill", MANY_PROMPTS)
    decided = await world.decisions(3)

    assert decided["prefill"].target > 2
    assert decided["prefill"].binding == "queue"
    assert decided["decode"].target == 2


async def test_answers_that_fill_the_slots_get_decode_engines_alone_and_the_record_says_the_same() -> None:
    world = World()
    world.set("decode", MANY_ANSWERS)
    decided = await world.decisions()

    assert decided["decode"].target > 2
    assert decided["decode"].binding == "slots"
    assert decided["prefill"].target == 2
    latest = world.autoscaler.latest_decisions(KEY)["decode"]
    assert from_text(latest.record).replayed() == decided["decode"]
    for role, target in (("prefill", 2), ("decode", decided["decode"].target)):
        labels = {"namespace": "models", "name": "nano", "role": role}
        assert world.registry.get_sample_value(
            "mambaserve_operator_scaling_desired_engines", labels
        ) == float(target)


async def test_states_that_wait_for_a_reader_count_as_slots_of_prefill_engines() -> None:
    world = World()
    world.set("prefill", MANY_EXPORTS)
    decided = await world.decisions()

    assert decided["prefill"].demand.slots == pytest.approx(1.9)
    assert decided["prefill"].target > 2


@pytest.mark.parametrize("scaled", [True, False], ids=["decode scaled", "decode fixed"])
async def test_states_that_wait_because_decode_engines_are_full_get_no_prefill_engines(scaled: bool) -> None:
    world = World(**({} if scaled else {"decode": {"replicas": 2}}))
    world.set("prefill", MANY_EXPORTS)
    world.set("decode", MANY_ANSWERS)
    decided = await world.decisions()

    assert decided["prefill"].target == 2
    assert "decode" not in decided or decided["decode"].target > 2


def test_a_state_that_arrives_takes_a_slot_of_a_decode_engine() -> None:
    text = """mambaserve_requests_running 2
mambaserve_state_usage 0.5
mambaserve_slabs{owner="receiving"} 3
mambaserve_slabs{owner="live"} 5
mambaserve_slabs{owner="free"} 2
"""
    assert engine_report(text, AutoscalerConfig(), "decode").slots_used == pytest.approx(0.8)


def test_the_time_to_the_state_counts_for_prefill_engines() -> None:
    text = """mambaserve_requests_running 0
mambaserve_request_duration_seconds_bucket{le="1.0"} 7
mambaserve_request_duration_seconds_bucket{le="+Inf"} 10
"""
    report = engine_report(text, AutoscalerConfig(ttft_target=1.0), "prefill")

    assert (report.first_tokens_total, report.first_tokens_late_total) == (10, 3)


# --- what a pass does with the decisions ---------------------------------------------------------------


def decision(target: int, desired: int, why: str) -> LatestDecision:
    made = ScalingDecision(
        target=target, reason=why, binding="slots", demand=Demand(), memory=AutoscalerMemory()
    )
    return LatestDecision(desired, 1, made, "")


def passed(of: Manifest, children: list[Manifest], **more: Any) -> tuple[Status, dict[str, int]]:
    """Return the status after one pass, and the number of engines that it wrote, by Deployment."""
    seen: Snapshot = snapshot(of, children, **more)
    plan = make_plan(seen, now=NOW, new_token=lambda: TOKEN)
    status = summarize(seen, plan, (), now=NOW)
    assert status is not None
    written = {
        apply.manifest["metadata"]["name"]: apply.manifest["spec"]["replicas"]
        for apply in plan.applies
        if apply.manifest["kind"] == "Deployment"
    }
    return status, written


def test_a_pass_carries_out_the_decision_about_one_pool_and_says_why() -> None:
    of = fitting_owner(disaggregation=RANGES)
    children = running(applied(of))
    first, _ = passed(of, children)
    of["status"] = first.manifest()
    after, written = passed(of, children, decisions_by_role={"decode": decision(3, 1, "slots need 3")})
    prefill, decode = after.pools

    assert written == {"nano-decode": 3}
    assert prefill.scaling is not None
    assert decode.scaling is not None
    assert (prefill.scaling.desired, prefill.desired_replicas) == (1, 1)
    assert (decode.scaling.desired, decode.desired_replicas) == (3, 3)
    assert (decode.scaling.reason, decode.scaling.binding) == ("slots need 3", "slots")
    assert after.scaling is None
    [event] = [each for each in pass_events(first, after, []) if each.reason == "ScaledUp"]
    assert "decode engines from 1 to 3: slots need 3" in event.message


def test_a_number_that_is_written_later_holds_from_then_on() -> None:
    of = fitting_owner(disaggregation=RANGES)
    children = running(applied(of))
    first, _ = passed(of, children)
    written_later = fitting_owner(disaggregation={**RANGES, "prefill": {**RANGES["prefill"], "replicas": 4}})
    written_later["status"] = first.manifest()
    after, written = passed(written_later, children)

    assert written == {"nano-prefill": 4}
    assert after.pools[0].scaling is not None
    assert after.pools[0].scaling.reason == "disaggregation.prefill.replicas was set to 4"


def test_a_pool_without_bounds_has_the_number_of_the_spec_and_no_decision() -> None:
    of = fitting_owner(disaggregation={"prefill": {"replicas": 2}, "decode": RANGES["decode"]})
    after, _ = passed(of, running(applied(of)))

    assert [pool.scaling is None for pool in after.pools] == [True, False]
