"""Pods on their way: how long one takes to be ready, and which are not counted on any more. Pure."""

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import Observation

LEARNING = 0.5
"""Weight of one start."""


class PodStarts(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that start, and how long a start takes, at one moment."""

    starting: tuple[tuple[str, float], ...]
    """(pod, elapsed when first seen), by name."""
    seconds: float
    """What a start takes."""
    learned: float
    """The same, 0 before one was seen."""
    started: float
    """Elapsed when a pod was last seen to become ready; -1 = never."""
    coming: int
    """Pods that may still get ready: none of them has taken `start_deadline`."""
    stuck: int
    """Pods that have taken too long to be counted on."""
    replaced: int
    """How many of them are worth another pod: none while no pod starts at all."""


def pod_starts(
    memory: AutoscalerMemory, observation: Observation, config: AutoscalerConfig, elapsed: float
) -> PodStarts:
    """With one observation more."""
    before = dict(memory.starting)
    now = {name: before.get(name, elapsed) for name in observation.pending}
    arrived = sorted(since for name, since in before.items() if name not in now)
    # A pod that is not pending any more became ready, or went: as many as are ready more did the former.
    became = arrived[: max(observation.ready - memory.ready, 0)] if memory.at is not None else []
    learned = memory.start_seconds
    for since in became:
        took = elapsed - since
        learned = took if learned <= 0 else learned + LEARNING * (took - learned)
    seconds = learned or config.first_start
    started = elapsed if became else memory.started
    patience = max(config.start_timeout, config.start_patience * seconds)
    stuck = [since for since in now.values() if elapsed - since >= patience]
    # Where nothing starts, more pods would not either: the fleet would grow without end.
    cluster_starts = bool(stuck) and started > min(stuck)
    return PodStarts(
        starting=tuple(sorted(now.items())),
        seconds=seconds,
        learned=learned,
        started=started,
        coming=sum(elapsed - since < config.start_deadline for since in now.values()),
        stuck=len(stuck),
        replaced=len(stuck) if cluster_starts else 0,
    )
