"""`mambaserve operator`: the operator that reconciles the MambaDeployments of a cluster.

The options of the command are the fields of `OperatorSettings`.
"""

from typing import Any

from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.settings_options import complaint, settings_command

NAME = "operator"


def command() -> None:
    """Reconcile MambaDeployments: watch them, create their children, and correct what drifts."""


def run(options: dict[str, Any]) -> int:
    """Reconcile with the settings in `options` and return the exit code. Raises `CliError`."""
    import asyncio

    from pydantic import ValidationError

    from mamba_cli.resource_profiles import known_profiles
    from mamba_cli.shipped_models import shipped_config
    from mamba_operator import main
    from mamba_operator.objects.errors import LeadershipLost, SettingsInvalid
    from mamba_operator.process.garbage import collect_seldom
    from mamba_operator.process.settings import OperatorSettings
    from mamba_telemetry.logs import set_up_logs

    try:
        settings = OperatorSettings(**options)
    except ValidationError as error:
        raise InvalidInput(complaint(error.errors(include_url=False))) from None
    profiles = known_profiles(settings.resource_profiles)
    set_up_logs(level=settings.log_level, process="operator")
    collect_seldom()
    try:
        asyncio.run(main.run(settings, shipped_config, profiles))
    except SettingsInvalid as error:
        raise InvalidInput(str(error)) from None
    except (LeadershipLost, OSError) as error:
        raise RunFailed(str(error)) from error
    return 0


PANELS = {
    "Cluster": ("namespace", "kubeconfig", "request_timeout"),
    "Lease": ("lease", "lease_namespace", "lease_duration", "renew_every", "identity"),
    "Reconciliations": ("workers", "resync", "reconcile_timeout", "max_rollouts", "scale_every"),
    "Engines and gateways": (
        "engine_image",
        "gateway_image",
        "image_pull_secret",
        "scrapers",
        "resource_profiles",
    ),
    "External metrics": ("external_metrics_port", "external_metrics_service"),
    "Process": ("liveness_host", "liveness_port", "stale_after", "exit_timeout", "log_level"),
}
CLASS = settings_command("mamba_operator.process.settings:OperatorSettings", run, panels=PANELS)
