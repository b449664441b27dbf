"""State machine that keeps children running: start, back-off, ordered drain, kill. Pure.

`step` maps a state and an event to the next state and the actions to perform; `session` performs them. The
module has no clock, no processes and no I/O: time comes with the events.
"""

from dataclasses import dataclass, replace
from typing import Literal

Phase = Literal["waiting", "running", "stopping", "ended"]

FINAL_EXIT_CODES = (2, 3)
"""Exit codes of invalid input and of a plan that does not fit: another start would end the same way."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Rules for starting children again, and for the time that they may take to end."""

    first_delay: float = 0.5
    """Seconds before the start after a first death."""
    longest_delay: float = 30.0
    """Most seconds before a start."""
    stable_after: float = 60.0
    """Lifetime after which the next death counts as the first in a row."""
    give_up_after: int = 5
    """Number of deaths in a row after which a child that was never ready ends the session."""
    drain_timeout: float = 300.0
    """Seconds for all children to end, once the drain has begun."""
    last_grace: float = 5.0
    """Shortest time for a child to end, even when the children before it used up the drain timeout."""


@dataclass(frozen=True, slots=True)
class Child:
    """State of one child process.

    Children of the highest rank are drained first, so that gateways end before their engines.
    """

    name: str
    rank: int
    phase: Phase = "waiting"
    started: float = 0.0
    """Time of its last start, in seconds."""
    until: float = 0.0
    """Time to start a waiting child, or to kill a stopping one."""
    deaths: int = 0
    """Number of deaths in a row."""
    was_ready: bool = False
    killed: bool = False


@dataclass(frozen=True, slots=True)
class SupervisorState:
    """The state of all children.

    `exit_code` is set once the drain has begun, and `deadline` is the time at which the drain ends.
    """

    children: tuple[Child, ...]
    exit_code: int | None = None
    deadline: float = 0.0

    @property
    def draining(self) -> bool:
        """Whether the drain has begun."""
        return self.exit_code is not None

    @property
    def done(self) -> bool:
        """Whether the drain has begun and all children have ended."""
        return self.draining and all(child.phase == "ended" for child in self.children)


@dataclass(frozen=True, slots=True)
class Tick:
    """Event: the time is `now`, so that what is due can be done."""

    now: float


@dataclass(frozen=True, slots=True)
class ChildExited:
    """Event: a child has ended, with `code` as `subprocess` reports it.

    A child that could not start has `reason` instead.
    """

    now: float
    name: str
    code: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ChildReady:
    """Event: a child has answered its readiness probe for the first time since its start."""

    now: float
    name: str


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Event: the user asks for a drain; a second one during the drain kills all children."""

    now: float
    exit_code: int = 0


Event = Tick | ChildExited | ChildReady | DrainRequested


@dataclass(frozen=True, slots=True)
class StartChild:
    """Action of the supervisor: start the child."""

    name: str


@dataclass(frozen=True, slots=True)
class TerminateChild:
    """Action of the supervisor: send SIGTERM to the child."""

    name: str


@dataclass(frozen=True, slots=True)
class KillChild:
    """Action of the supervisor: send SIGKILL to the child."""

    name: str


@dataclass(frozen=True, slots=True)
class ShowMessage:
    """Action of the supervisor: show a line to the user, about the child `name` if any.

    `bad` shows the end of the child's log as well.
    """

    text: str
    name: str = ""
    bad: bool = False


Action = StartChild | TerminateChild | KillChild | ShowMessage


def step(
    state: SupervisorState, event: Event, restart_policy: RestartPolicy
) -> tuple[SupervisorState, list[Action]]:
    """Return the next state and the actions to perform."""
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
    """Return the time at which a `Tick` has an effect; None = only other events have one."""
    times = [child.until for child in state.children if _timed(child)]
    return min(times, default=None)


def delay_after(deaths: int, restart_policy: RestartPolicy) -> float:
    """Return the back-off before the next start, which doubles with each death in a row up to a limit."""
    return float(min(restart_policy.first_delay * 2 ** min(deaths - 1, 30), restart_policy.longest_delay))


def _timed(child: Child) -> bool:
    return child.phase == "waiting" or (child.phase == "stopping" and not child.killed)


def _exited(
    state: SupervisorState, event: ChildExited, restart_policy: RestartPolicy, actions: list[Action]
) -> SupervisorState:
    child = next(child for child in state.children if child.name == event.name)
    if state.draining:
        if child.phase == "running" and event.code:
            actions.append(
                ShowMessage(f"{child.name} {_cause(event)} before it was asked to end", child.name, bad=True)
            )
        return _with(state, child.name, phase="ended")
    if event.code in FINAL_EXIT_CODES:
        actions.append(
            ShowMessage(f"{child.name} {_cause(event)}: a restart would not help", child.name, bad=True)
        )
        state = _with(state, child.name, phase="ended")
        return replace(state, exit_code=event.code, deadline=event.now + restart_policy.drain_timeout)
    lived = event.now - child.started
    deaths = 1 if lived >= restart_policy.stable_after else child.deaths + 1
    if not child.was_ready and deaths >= restart_policy.give_up_after:
        text = f"{child.name} {_cause(event)}; it ended {deaths} times without ever being ready: giving up"
        actions.append(ShowMessage(text, child.name, bad=True))
        state = _with(state, child.name, phase="ended", deaths=deaths)
        return replace(state, exit_code=1, deadline=event.now + restart_policy.drain_timeout)
    delay = delay_after(deaths, restart_policy)
    actions.append(ShowMessage(f"{child.name} {_cause(event)}: restart in {delay:g} s", child.name, bad=True))
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
    # Waiting children end at once. If that completes a rank, the next rank stops now.
    if advanced != state and state.draining and _rank_to_stop(advanced) != stop_rank:
        return _advance(advanced, now, restart_policy, actions)
    return advanced


def _rank_to_stop(state: SupervisorState) -> int | None:
    """Return the highest rank with children that have not ended; None = all have.

    Children of lower ranks run until those of this rank have ended.
    """
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


def _cause(event: ChildExited) -> str:
    if event.code is None:
        return f"could not start ({event.reason})"
    if event.code < 0:
        return f"was ended by signal {-event.code}"
    return f"ended with code {event.code}"
