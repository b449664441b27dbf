"""Chains of rules: the first rule that applies decides a condition."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.conditions.chain import Chain, ConditionInputs, ConditionResult, Failure, evaluate
from mamba_operator.conditions.health import AVAILABLE, DEGRADED
from mamba_operator.conditions.progress import PLANNED, PROGRESSING, progressing
from mamba_operator.objects.recorded_status import WorkloadState
from operator_objects import NOW, fitting_owner, planned, snapshot

RUNNING = WorkloadState(exists=True, current=True, desired=1, replicas=1, updated=1, ready=1)


def view(**parts: Any) -> ConditionInputs:
    """Return the inputs of an object with one engine and one gateway, both ready, except for `parts`."""
    owner = fitting_owner()
    plan = parts.pop("plan", planned(owner))
    inputs = {
        "snapshot": snapshot(owner), "plan": plan, "verdict": plan.verdict, "engine": RUNNING,
        "gateway": RUNNING, "failures": (), "now": NOW, **parts,
    }  # fmt: skip
    return ConditionInputs(**inputs)


def result(message: str) -> ConditionResult:
    return ConditionResult("True", Reason.SERVING, message)


def test_the_first_rule_that_applies_decides_and_later_ones_are_not_asked() -> None:
    calls: list[str] = []

    def rule(name: str, *, applies: bool) -> Callable[[ConditionInputs], ConditionResult | None]:
        def decide(_: ConditionInputs) -> ConditionResult | None:
            calls.append(name)
            return result(name) if applies else None

        return decide

    chain: Chain = (rule("a", applies=False), rule("b", applies=True), rule("c", applies=True))
    assert evaluate(chain, view(), otherwise=result("otherwise")) == result("b")
    assert calls == ["a", "b"]
    assert evaluate(chain[:1], view(), otherwise=result("otherwise")) == result("otherwise")


@pytest.mark.parametrize("chain", [PLANNED, AVAILABLE, PROGRESSING, DEGRADED])
def test_no_rule_stands_in_its_chain_twice(chain: Chain) -> None:
    assert len(set(chain)) == len(chain)


@pytest.mark.parametrize(
    ("chain", "parts", "reasons"),
    [
        (DEGRADED, {"failures": [Failure(Reason.FORBIDDEN, "no")]}, [Reason.FORBIDDEN]),
        (
            DEGRADED,
            {
                "failures": [Failure(Reason.FORBIDDEN, "no")],
                "engine": WorkloadState(exists=True, desired=1, refused="quota", stuck="too long"),
            },
            [Reason.FORBIDDEN, Reason.PODS_REFUSED, Reason.PROGRESS_DEADLINE_EXCEEDED],
        ),
        (
            AVAILABLE,
            {"engine": WorkloadState(exists=True, desired=1), "gateway": WorkloadState()},
            [],
        ),
    ],
)
def test_rules_apply_in_this_order(chain: Chain, parts: dict[str, Any], reasons: list[Reason]) -> None:
    inputs = view(**parts)
    assert [found.reason for rule in chain if (found := rule(inputs)) is not None] == reasons


def test_gateways_that_do_not_exist_yet_are_not_counted() -> None:
    written = replace(planned(fitting_owner()), applies=())
    message = progressing(view(plan=written, gateway=WorkloadState())).message
    assert "is creating the gateways" in message
    assert "0 of 0" not in message
