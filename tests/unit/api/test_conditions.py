"""Setting conditions: time moves on flips alone, and reasons belong to their type."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from mamba_api.v1alpha1 import Condition
from mamba_api.v1alpha1.conditions import (
    MAX_MESSAGE,
    REASONS,
    REASONS_OF,
    ConditionStatus,
    ConditionType,
    Reason,
    find_condition,
    set_condition,
    timestamp,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def progressing(
    conditions: list[Condition],
    status: ConditionStatus,
    reason: Reason,
    minutes: int = 0,
    generation: int = 1,
) -> list[Condition]:
    return set_condition(
        conditions, ConditionType.PROGRESSING, status, reason, "words",
        now=NOON + timedelta(minutes=minutes), observed_generation=generation,
    )  # fmt: skip


def test_a_new_condition_carries_time_and_generation() -> None:
    (condition,) = progressing([], "True", Reason.ROLLING_OUT, generation=7)
    assert condition.manifest() == {
        "type": "Progressing",
        "status": "True",
        "reason": "RollingOut",
        "message": "words",
        "lastTransitionTime": "2026-01-02T12:00:00Z",
        "observedGeneration": 7,
    }


def test_a_new_reason_with_the_same_status_keeps_the_time() -> None:
    before = progressing([], "True", Reason.ROLLING_OUT)
    (after,) = progressing(before, "True", Reason.LOADING_MODEL, minutes=5, generation=2)
    assert after.last_transition_time == "2026-01-02T12:00:00Z"
    assert (after.reason, after.observed_generation) == ("LoadingModel", 2)


def test_a_flip_moves_the_time() -> None:
    before = progressing([], "True", Reason.ROLLING_OUT)
    (after,) = progressing(before, "False", Reason.UP_TO_DATE, minutes=5)
    assert after.last_transition_time == "2026-01-02T12:05:00Z"


def test_the_input_is_not_changed() -> None:
    before = progressing([], "True", Reason.ROLLING_OUT)
    copy = list(before)
    progressing(before, "False", Reason.UP_TO_DATE)
    assert before == copy


def test_conditions_stand_in_their_order_with_ready_last_and_strangers_after() -> None:
    stranger = Condition(type="Other", status="True", reason="X", last_transition_time="2026-01-01T00:00:00Z")
    conditions = [stranger]
    for type_, reason in (
        (ConditionType.READY, Reason.SERVING),
        (ConditionType.PLANNED, Reason.PLAN_COMPUTED),
        (ConditionType.DEGRADED, Reason.AS_EXPECTED),
    ):
        conditions = set_condition(conditions, type_, "True", reason, "", now=NOON, observed_generation=1)
    assert [c.type for c in conditions] == ["Planned", "Degraded", "Ready", "Other"]


def test_a_reason_that_the_type_never_has_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="Planned never has the reason Serving"):
        set_condition([], ConditionType.PLANNED, "True", Reason.SERVING, "", now=NOON, observed_generation=1)


def test_a_message_is_cut_to_what_the_api_accepts() -> None:
    (condition,) = set_condition(
        [],
        ConditionType.DEGRADED,
        "True",
        Reason.ENGINE_CRASHING,
        "many words " * 1000,
        now=NOON,
        observed_generation=1,
    )
    assert len(condition.message) == MAX_MESSAGE
    assert condition.message.endswith("…")


def test_a_message_has_no_word_that_nobody_can_read() -> None:
    said = "1" * 300 + " engines are too many"
    (condition,) = set_condition(
        [], ConditionType.DEGRADED, "True", Reason.ENGINE_CRASHING, said, now=NOON, observed_generation=1
    )
    assert condition.message == "1" * 64 + "…" + "1" * 16 + " engines are too many"


def test_a_condition_is_found_by_its_type() -> None:
    conditions = progressing([], "True", Reason.DRAINING)
    assert find_condition(conditions, ConditionType.PROGRESSING) == conditions[0]
    assert find_condition(conditions, ConditionType.READY) is None


def test_times_are_written_in_utc_with_whole_seconds() -> None:
    elsewhere = datetime(2026, 1, 2, 13, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=1)))
    assert timestamp(elsewhere) == "2026-01-02T12:00:00Z"


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        timestamp(datetime(2026, 1, 2))


def test_every_reason_is_explained_and_belongs_to_a_type_beside_ready() -> None:
    assert set(REASONS) == set(Reason)
    assert set(REASONS_OF) == set(ConditionType)
    elsewhere = frozenset().union(*(REASONS_OF[t] for t in ConditionType if t is not ConditionType.READY))
    assert set(Reason) - elsewhere == {Reason.SERVING}
    assert all(text.endswith(".") for text in REASONS.values())


def test_every_reason_is_met_by_a_test_on_a_real_api_server_and_has_a_runbook() -> None:
    root = Path(__file__).parents[3]
    met = "\n".join(path.read_text() for path in (root / "tests/kube").glob("*.py"))
    runbook = (root / "docs/runbooks/conditions.md").read_text()

    assert [reason for reason in Reason if f'"{reason}"' not in met] == []
    assert [reason for reason in Reason if f"\n### {reason}\n" not in runbook] == []
