"""Records from which a `Reconciler` is built, each with defaults for a process that lacks a part.

`main` fills them in from the settings of the process and from the pollers.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from mamba_api.v1alpha1.profiles import Profiles
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.children.admin_key import AdminKey
from mamba_operator.children.engine_admin import Put, put_strategy
from mamba_operator.objects.kinds import Kind
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.observation.builtin_config import ShippedConfig, nothing_shipped
from mamba_operator.observation.snapshot import DownloadProgress, ReportedPlan
from mamba_operator.render.default_images import OF_THIS_VERSION, DefaultImages
from mamba_operator.render.scrapers import OPERATOR, PROMETHEUS, Scraper
from mamba_operator.rollout.attempts import Attempts
from mamba_operator.workload.measured_workload import MeasuredWorkload
from mamba_planner.shipped_profiles import SHIPPED

TOKEN_BYTES = 32


def now_utc() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


def new_token() -> str:
    """Create a random secret for an admin port."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class PassSettings:
    """Limits of passes, and the name under which they report."""

    identity: str
    """Name of this operator in events."""
    timeout: float = 120.0
    """Seconds that one pass may take."""
    resync: Callable[[], float] = lambda: 300.0
    """Returns the longest time, in seconds, until the next pass over an object."""
    max_rollouts: int = 3
    """Roll-outs that no edit of an object caused and that may run at the same time."""


@dataclass(frozen=True, slots=True)
class ChildDefaults:
    """Values that children get where their MambaDeployment names none."""

    images: DefaultImages = OF_THIS_VERSION
    scrapers: tuple[Scraper, ...] = PROMETHEUS
    """Pods that may read the engines' metrics."""
    operator: Scraper = OPERATOR
    """The operator's own pods."""
    profiles: Profiles = field(default_factory=lambda: SHIPPED)
    """Profiles that `spec.resources.profile` may name."""


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """Means of the operator to reach running engines."""

    key: AdminKey | None = None
    """Key from which admin tokens are derived; None = engines cannot be reached."""
    put: Put = put_strategy
    """Sends live settings to one engine."""
    read: ReadMetrics | None = None
    """Reads the `/metrics` of a pod; None = no deletion costs are written."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of what a snapshot holds and the API server does not know. Each is called in every pass."""

    latest_decision: Callable[[Key], LatestDecision | None] = lambda _: None
    attempts: Callable[[Key], Mapping[str, Attempts]] = lambda _: {}
    downloads: Callable[[Key], Mapping[str, DownloadProgress]] = lambda _: {}
    reported: Callable[[Key], ReportedPlan | None] = lambda _: None
    measured: Callable[[Key], MeasuredWorkload | None] = lambda _: None
    shipped: ShippedConfig = nothing_shipped


@dataclass(frozen=True, slots=True)
class Runtime:
    """Clock, randomness and callbacks of the process."""

    now: Callable[[], datetime] = now_utc
    new_token: Callable[[], str] = new_token
    """Creates an admin token where there is no key."""
    busy: Callable[[], bool] = lambda: False
    """Returns whether passes are due, which precede the writing of events."""
    on_listed: Callable[[Kind, Manifest, float], None] | None = None
    """Called with every listed object and the time of the request on the monotonic clock, in seconds."""
