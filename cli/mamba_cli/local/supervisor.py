"""Pure state machine that keeps children running: start, back-off, drain in order, kill.

`step` takes a state and an event and gives the next state and the actions to perform; `session` performs
them. No clock, no process, no I/O in here: time comes with the events.
"""

from dataclasses import dataclass, replace
from typing import Literal

Phase = Literal["waiting", "running", "stopping", "ended"]

NOT_WORTH_REPEATING = (2, 3)
"""Exit codes of invalid input and of a plan that does not fit: another start would end the same way."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Seconds, unless said otherwise."""

    first_delay: float = 0.5
    longest_delay: float = 30.0
    stable_after: float = 60.0
    """Life after which a death counts as the first again."""
    give_up_after: int = 5
    """Deaths in a row of a child that was never ready."""
    drain_timeout: float = 300.0
    last_grace: float = 5.0
    """What a child gets at least, even when those before it used up the drain timeout."""


@dataclass(frozen=True, slots=True)
class Child:
    """`rank`: drained from the highest down, so that gateways finish before the engines behind them."""

    name: str
    rank: int
    phase: Phase = "waiting"
    started: float = 0.0
    until: float = 0.0
    """waiting: when to start; stopping: when to kill."""
    deaths: int = 0
    """In a row."""
    was_ready: bool = False
    killed: bool = False


@dataclass(frozen=True, slots=True)
class SupervisorState:
    """`exit_code` is set once the end has begun; `deadline` is that of the whole drain."""

    children: tuple[Child, ...]
    exit_code: int | None = None
    deadline: float = 0.0

    @property
    def draining(self) -> bool:
        return self.exit_code is not None

    @property
    def done(self) -> bool:
        return self.draining and all(child.phase == "ended" for child in self.children)


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now: float


@dataclass(frozen=True, slots=True)
class ChildExited:
    """A child is gone: `code` as `subprocess` gives it, or `reason` when it could not even start."""

    now: float
    name: str
    code: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ChildReady:
    now: float
    name: str


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The end is wanted. Said again while draining, it means now."""

    now: float
    exit_code: int = 0


Event = Tick | ChildExited | ChildReady | DrainRequested


@dataclass(frozen=True, slots=True)
class StartChild:
    name: str


@dataclass(frozen=True, slots=True)
class TerminateChild:
    name: str


@dataclass(frozen=True, slots=True)
class KillChild:
    name: str


@dataclass(frozen=True, slots=True)
class ShowMessage:
    """For the user. `name` when it is about one child; `bad` when its log is worth showing."""

    text: str
    name: str = ""
    bad: bool = False


Action = StartChild | TerminateChild | KillChild | ShowMessage


def step(
    state: SupervisorState, event: Event, restart_policy: RestartPolicy
) -> tuple[SupervisorState, list[Action]]:
    """The next state and what to do about it."""
    actions: list[Action] = []
    match event:
        case ChildReady():
            state = _with(state, event.name, was_ready=True)
        case ChildExited():
            state = _exited(state, event, restart_policy, actions)
        case DrainRequested() if state.draining:
            state = _kill_all(state, actions)
        case DrainRequested():
            state = replace(
                state, exit_code=event.exit_code, deadline=event.now + restart_policy.drain_timeout
            )
        case Tick():
            pass
    return _advance(state, event.now, restart_policy, actions), actions


def wake_at(state: SupervisorState) -> float | None:
    """When a `Tick` will do something; None = only an event can."""
    times = [child.until for child in state.children if _timed(child)]
    return min(times, default=None)


def delay_after(deaths: int, restart_policy: RestartPolicy) -> float:
    """Back-off before the next start: doubled with each death in a row, up to a limit."""
    return float(min(restart_policy.first_delay * 2 ** min(deaths - 1, 30), restart_policy.longest_delay))


def _timed(child: Child) -> bool:
    return child.phase == "waiting" or (child.phase == "stopping" and not child.killed)


def _exited(
    state: SupervisorState, event: ChildExited, restart_policy: RestartPolicy, actions: list[Action]
) -> SupervisorState:
    child = next(each for each in state.children if each.name == event.name)
    if state.draining:
        if child.phase == "running" and event.code:
            actions.append(
                ShowMessage(f"{child.name} {_how(event)} before it was asked to end", child.name, bad=True)
            )
        return _with(state, child.name, phase="ended")
    if event.code in NOT_WORTH_REPEATING:
        actions.append(
            ShowMessage(f"{child.name} {_how(event)}: a restart would not help", child.name, bad=True)
        )
        state = _with(state, child.name, phase="ended")
        return replace(state, exit_code=event.code, deadline=event.now + restart_policy.drain_timeout)
    lived = event.now - child.started
    deaths = 1 if lived >= restart_policy.stable_after else child.deaths + 1
    if not child.was_ready and deaths >= restart_policy.give_up_after:
        text = f"{child.name} {_how(event)}; it ended {deaths} times without ever being ready: giving up"
        actions.append(ShowMessage(text, child.name, bad=True))
        state = _with(state, child.name, phase="ended", deaths=deaths)
        return replace(state, exit_code=1, deadline=event.now + restart_policy.drain_timeout)
    delay = delay_after(deaths, restart_policy)
    actions.append(ShowMessage(f"{child.name} {_how(event)}: restart in {delay:g} s", child.name, bad=True))
    return _with(state, child.name, phase="waiting", until=event.now + delay, deaths=deaths)


def _advance(
    state: SupervisorState, now: float, restart_policy: RestartPolicy, actions: list[Action]
) -> SupervisorState:
    children = []
    stop_rank = _rank_to_stop(state)
    for child in state.children:
        if not state.draining:
            if child.phase == "waiting" and now >= child.until:
                actions.append(StartChild(child.name))
                child = replace(child, phase="running", started=now)
        elif child.phase == "waiting":
            child = replace(child, phase="ended")
        elif child.phase == "running" and child.rank == stop_rank:
            actions.append(TerminateChild(child.name))
            child = replace(
                child, phase="stopping", until=max(state.deadline, now + restart_policy.last_grace)
            )
        elif child.phase == "stopping" and now >= child.until and not child.killed:
            actions.append(ShowMessage(f"{child.name} did not end in time: killed", child.name))
            actions.append(KillChild(child.name))
            child = replace(child, killed=True)
        children.append(child)
    advanced = replace(state, children=tuple(children))
    # The last of one rank may have been only waiting, which ends at once: the next rank's turn is now.
    if advanced != state and state.draining and _rank_to_stop(advanced) != stop_rank:
        return _advance(advanced, now, restart_policy, actions)
    return advanced


def _rank_to_stop(state: SupervisorState) -> int | None:
    """The highest rank that has not ended; children below it keep running until it has."""
    return max((child.rank for child in state.children if child.phase != "ended"), default=None)


def _kill_all(state: SupervisorState, actions: list[Action]) -> SupervisorState:
    children = []
    for child in state.children:
        if child.phase in ("running", "stopping") and not child.killed:
            actions.append(KillChild(child.name))
            child = replace(child, phase="stopping", killed=True)
        children.append(child)
    return replace(state, children=tuple(children))


def _with(state: SupervisorState, name: str, **changes: object) -> SupervisorState:
    return replace(
        state,
        children=tuple(
            replace(child, **changes) if child.name == name else child  # type: ignore[arg-type]
            for child in state.children
        ),
    )


def _how(event: ChildExited) -> str:
    if event.code is None:
        return f"could not start ({event.reason})"
    if event.code < 0:
        return f"was ended by signal {-event.code}"
    return f"ended with code {event.code}"
