"""The supervisor's state machine in virtual time: starts, back-off, order of the drain, kills."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_cli.local.supervisor import (
    Action,
    Child,
    ChildExited,
    ChildReady,
    DrainRequested,
    Event,
    KillChild,
    RestartPolicy,
    ShowMessage,
    StartChild,
    SupervisorState,
    TerminateChild,
    Tick,
    delay_after,
    step,
    wake_at,
)

RULES = RestartPolicy(
    first_delay=1, longest_delay=8, stable_after=60, give_up_after=4, drain_timeout=30, last_grace=5
)


def fresh() -> SupervisorState:
    return SupervisorState((Child("engine", 0), Child("gateway", 1)))


def run(state: SupervisorState, *events: Event) -> tuple[SupervisorState, list[Action]]:
    """Feed events; the actions of the last one."""
    actions: list[Action] = []
    for event in events:
        state, actions = step(state, event, RULES)
    return state, actions


def started() -> SupervisorState:
    return run(fresh(), Tick(0))[0]


def child(state: SupervisorState, name: str) -> Child:
    return next(each for each in state.children if each.name == name)


def words(actions: list[Action]) -> str:
    return " ".join(action.text for action in actions if isinstance(action, ShowMessage))


def commands(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, ShowMessage)]


def test_the_first_tick_starts_everything() -> None:
    state, actions = run(fresh(), Tick(0))
    assert actions == [StartChild("engine"), StartChild("gateway")]
    assert all(each.phase == "running" for each in state.children)
    assert wake_at(state) is None


def test_nothing_happens_while_all_runs() -> None:
    state, actions = run(started(), Tick(5))
    assert actions == []
    assert state == started()


def test_a_dead_child_waits_before_it_starts_again() -> None:
    state, actions = run(started(), ChildExited(10, "engine", 1))
    assert commands(actions) == []
    assert "engine ended with code 1: restart in 1 s" in words(actions)
    assert wake_at(state) == 11
    assert run(state, Tick(10.9))[1] == []
    assert run(state, Tick(11))[1] == [StartChild("engine")]


def test_the_delay_doubles_with_each_death_in_a_row_up_to_the_limit() -> None:
    assert [delay_after(deaths, RULES) for deaths in range(1, 7)] == [1, 2, 4, 8, 8, 8]
    assert delay_after(10_000, RULES) == 8


def test_deaths_in_a_row_wait_longer_and_a_long_life_forgets_them() -> None:
    state = run(started(), ChildReady(0, "engine"), ChildExited(1, "engine", 1), Tick(2))[0]
    state, actions = run(state, ChildExited(3, "engine", 1))
    assert "restart in 2 s" in words(actions)
    state = run(state, Tick(5))[0]
    assert "restart in 1 s" in words(run(state, ChildExited(5 + 60, "engine", 1))[1])


def test_a_child_that_was_never_ready_is_given_up_and_the_rest_drained() -> None:
    state, actions = started(), []
    now = 0.0
    for _ in range(4):
        state, actions = run(state, ChildExited(now, "engine", 7))
        now += 10
        if not state.draining:
            state = run(state, Tick(now))[0]
    assert "4 times without ever being ready: giving up" in words(actions)
    assert TerminateChild("gateway") in actions
    assert state.exit_code == 1


def test_a_child_that_was_ready_once_is_never_given_up() -> None:
    state = run(started(), ChildReady(0, "engine"))[0]
    for number in range(20):
        state = run(state, ChildExited(number * 10, "engine", 7), Tick(number * 10 + 9))[0]
    assert not state.draining
    assert child(state, "engine").phase == "running"


@pytest.mark.parametrize("code", [2, 3])
def test_a_code_that_a_restart_cannot_mend_becomes_the_exit_code(code: int) -> None:
    state, actions = run(started(), ChildExited(1, "engine", code))
    assert f"ended with code {code}: a restart would not help" in words(actions)
    assert state.exit_code == code
    assert TerminateChild("gateway") in actions


def test_a_child_that_could_not_start_says_why_and_is_tried_again() -> None:
    state, actions = run(started(), ChildExited(1, "engine", None, "no such file"))
    assert "engine could not start (no such file): restart in 1 s" in words(actions)
    assert child(state, "engine").phase == "waiting"


def test_a_signal_is_named() -> None:
    assert "was ended by signal 9" in words(run(started(), ChildExited(1, "engine", -9))[1])


def test_an_end_with_code_0_that_nobody_asked_for_is_an_end_too() -> None:
    assert "ended with code 0: restart" in words(run(started(), ChildExited(1, "engine", 0))[1])


def test_one_child_dies_while_another_starts_and_only_it_is_started_again() -> None:
    state = run(started(), ChildExited(1, "gateway", 1))[0]
    state, actions = run(state, Tick(2))
    assert actions == [StartChild("gateway")]
    assert child(state, "engine") == child(started(), "engine")


def test_draining_ends_gateways_first_and_engines_when_they_are_gone() -> None:
    state, actions = run(started(), DrainRequested(100))
    assert actions == [TerminateChild("gateway")]
    assert wake_at(state) == 130
    state, actions = run(state, ChildExited(101, "gateway", 0))
    assert actions == [TerminateChild("engine")]
    state, actions = run(state, ChildExited(102, "engine", 0))
    assert actions == []
    assert state.done
    assert state.exit_code == 0


def test_a_deaf_child_is_killed_once_when_the_drain_is_over() -> None:
    state = run(started(), DrainRequested(100))[0]
    assert run(state, Tick(129))[1] == []
    state, actions = run(state, Tick(130))
    assert commands(actions) == [KillChild("gateway")]
    assert "gateway did not end in time: killed" in words(actions)
    assert run(state, Tick(131))[1] == []
    assert wake_at(state) is None


def test_those_behind_a_slow_child_still_get_their_grace() -> None:
    state = run(started(), DrainRequested(100), Tick(130))[0]
    state, actions = run(state, ChildExited(131, "gateway", -9))
    assert actions == [TerminateChild("engine")]
    assert wake_at(state) == 136


def test_what_only_waits_for_a_restart_does_not_hold_up_the_drain() -> None:
    state = run(started(), ChildExited(1, "gateway", 1))[0]
    state, actions = run(state, DrainRequested(1.5))
    assert actions == [TerminateChild("engine")]
    assert child(state, "gateway").phase == "ended"


def test_draining_before_anything_started_is_done_at_once() -> None:
    state, actions = run(fresh(), DrainRequested(0))
    assert actions == []
    assert state.done


def test_a_second_drain_kills_all_that_lives() -> None:
    state, actions = run(started(), DrainRequested(100), DrainRequested(101))
    assert set(commands(actions)) == {KillChild("gateway"), KillChild("engine")}
    state = run(state, ChildExited(102, "gateway", -9), ChildExited(102, "engine", -9))[0]
    assert state.done
    assert state.exit_code == 0


def test_a_child_that_breaks_while_its_gateway_drains_is_not_started_again() -> None:
    state, actions = run(started(), DrainRequested(100), ChildExited(101, "engine", 1))
    assert commands(actions) == []
    assert "engine ended with code 1 before it was asked to end" in words(actions)
    assert run(state, ChildExited(102, "gateway", 0))[0].done


def test_the_first_reason_to_end_keeps_its_exit_code() -> None:
    state = run(started(), ChildExited(1, "engine", 3), DrainRequested(2))[0]
    assert state.exit_code == 3


events = st.one_of(
    st.builds(lambda now: ("tick", now), st.floats(0, 10)),
    st.tuples(st.just("exit"), st.sampled_from(["engine", "gateway"]), st.sampled_from([0, 1, 2, -9, None])),
    st.tuples(st.just("ready"), st.sampled_from(["engine", "gateway"])),
    st.just(("drain",)),
)


@given(st.lists(events, max_size=40))
def test_whatever_happens_children_are_started_only_when_not_running_and_the_end_comes(
    script: list[tuple[object, ...]],
) -> None:
    state, now = fresh(), 0.0
    alive: set[str] = set()

    def feed(event: Event) -> None:
        nonlocal state
        state, actions = step(state, event, RULES)
        for action in actions:
            match action:
                case StartChild(name):
                    assert name not in alive
                    assert not state.draining
                    alive.add(name)
                case TerminateChild(name) | KillChild(name):
                    assert name in alive

    feed(Tick(now))
    for entry in script:
        match entry:
            case ("tick", float(more)):
                now += more
                feed(Tick(now))
            case ("exit", str(name), code) if name in alive:
                alive.discard(name)
                feed(ChildExited(now, name, code))  # type: ignore[arg-type]
            case ("ready", str(name)) if name in alive:
                feed(ChildReady(now, name))
            case ("drain",):
                feed(DrainRequested(now))
        assert {each.name for each in state.children if each.phase in ("running", "stopping")} == alive
    feed(DrainRequested(now)) if not state.draining else None
    for _ in range(10):
        if state.done:
            break
        now = max(now, wake_at(state) or now)
        feed(Tick(now))
        for name in sorted(alive):
            if child(state, name).killed or child(state, name).phase == "stopping":
                alive.discard(name)
                feed(ChildExited(now, name, 0))
    assert state.done
    assert alive == set()


def test_rules_are_part_of_no_state() -> None:
    state, _ = step(started(), ChildExited(1, "engine", 1), replace(RULES, first_delay=3))
    assert wake_at(state) == 4
