"""Starting pods: the duration of a start, and the pods that are stuck. Pure."""

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import Observation

START_WEIGHT = 0.5
"""Weight of one start in the learned duration."""


class PodStarts(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that are starting at one moment, and the duration of a start."""

    starting: tuple[tuple[str, float], ...]
    """(pod, `elapsed` when it was first seen), sorted by name."""
    seconds: float
    """Expected seconds of a start."""
    learned: float
    """Learned seconds of a start; 0 before one was observed."""
    started: float
    """`elapsed` when a pod was last seen to become ready; -1 = never."""
    coming: int
    """Pods that may still become ready: none of them has reached `start_deadline`."""
    stuck: int
    """Pods whose start has taken too long to count on them."""
    replaced: int
    """Number of stuck pods that need a replacement; 0 while no pod becomes ready at all."""


def pod_starts(
    memory: AutoscalerMemory, observation: Observation, config: AutoscalerConfig, elapsed: float
) -> PodStarts:
    """Return the starting pods after one more observation."""
    before = dict(memory.starting)
    now = {name: before.get(name, elapsed) for name in observation.pending}
    arrived = sorted(since for name, since in before.items() if name not in now)
    # A pod that is no longer pending became ready or was removed; the increase of `ready` counts the former.
    became = arrived[: max(observation.ready - memory.ready, 0)] if memory.at is not None else []
    learned = memory.start_seconds
    for since in became:
        duration = elapsed - since
        learned = duration if learned <= 0 else learned + START_WEIGHT * (duration - learned)
    seconds = learned or config.first_start
    started = elapsed if became else memory.started
    patience = max(config.start_timeout, config.start_patience * seconds)
    stuck = [since for since in now.values() if elapsed - since >= patience]
    # If no pod starts, replacements would not either, and the fleet would grow without end.
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
