"""`mambaserve operator`: the operator that reconciles the MambaDeployments of a cluster."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mamba_api import names
from mamba_cli.errors import InvalidInput, RunFailed

NAME = "operator"


def command(
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Namespace to watch; may be repeated; default: the whole cluster.",
            envvar="MAMBASERVE_NAMESPACE",
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            help="Kubeconfig file; default: the pod's service account, then KUBECONFIG.",
            envvar="MAMBASERVE_KUBECONFIG",
        ),
    ] = None,
    liveness_host: Annotated[
        str | None,
        typer.Option(
            help="Address of /healthz and /metrics; default: every address in a pod, elsewhere 127.0.0.1.",
            envvar="MAMBASERVE_LIVENESS_HOST",
        ),
    ] = None,
    liveness_port: Annotated[
        int,
        typer.Option(
            help="Port of /healthz and /metrics; 0 = any free port.", envvar="MAMBASERVE_LIVENESS_PORT"
        ),
    ] = 8081,
    external_metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the external metrics API, which autoscalers read through the API server; 0 = "
            "any free port; default: the API is not served.",
            envvar="MAMBASERVE_EXTERNAL_METRICS_PORT",
        ),
    ] = None,
    external_metrics_service: Annotated[
        str,
        typer.Option(
            help="Service in the operator's namespace to which the APIService of the external metrics "
            "API points.",
            envvar="MAMBASERVE_EXTERNAL_METRICS_SERVICE",
        ),
    ] = "mambaserve-external-metrics",
    lease_namespace: Annotated[
        str | None,
        typer.Option(
            help="Namespace of the lease that lets one operator act at a time; default: the operator's own.",
            envvar="MAMBASERVE_LEASE_NAMESPACE",
        ),
    ] = None,
    resync: Annotated[
        float,
        typer.Option(
            help="Longest time between two reconciliations of an unchanged object, in seconds.",
            envvar="MAMBASERVE_RESYNC",
        ),
    ] = 300.0,
    engine_image: Annotated[
        str,
        typer.Option(
            help="Image of engines whose MambaDeployment names none.", envvar="MAMBASERVE_ENGINE_IMAGE"
        ),
    ] = names.IMAGE,
    gateway_image: Annotated[
        str,
        typer.Option(
            help="Image of gateways whose MambaDeployment names none.", envvar="MAMBASERVE_GATEWAY_IMAGE"
        ),
    ] = names.CONTROL_PLANE_IMAGE,
    image_pull_secret: Annotated[
        list[str] | None,
        typer.Option(
            help="Secret for image pulls of engines and gateways, in each MambaDeployment's namespace; "
            "may be repeated.",
            envvar="MAMBASERVE_IMAGE_PULL_SECRET",
        ),
    ] = None,
    scrapers: Annotated[
        str | None,
        typer.Option(
            help="Pods other than gateways and operator that may read the engines' metrics: a JSON list "
            "such as "
            '[{"namespaces": {"kubernetes.io/metadata.name": "monitoring"}, "pods": {"app": "agent"}}]. '
            "Default: pods labelled app.kubernetes.io/name: prometheus, in any namespace.",
            envvar="MAMBASERVE_SCRAPERS",
        ),
    ] = None,
    resource_profiles: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with resourceProfiles, in the form of the chart's values: profiles for "
            "spec.resources.profile in addition to the shipped ones or in their place. Read once.",
            envvar="MAMBASERVE_RESOURCE_PROFILES",
        ),
    ] = None,
    log_level: Annotated[
        str,
        typer.Option(help="Level of the log: debug, info, warning or error.", envvar="MAMBASERVE_LOG_LEVEL"),
    ] = "info",
) -> None:
    """Reconcile MambaDeployments: watch them, create their children, and correct what drifts."""
    import asyncio

    from pydantic import ValidationError

    from mamba_cli.resource_profiles import known_profiles
    from mamba_cli.shipped_models import shipped_config
    from mamba_operator.main import run
    from mamba_operator.objects.errors import LeadershipLost, SettingsInvalid
    from mamba_operator.process.garbage import collect_seldom
    from mamba_operator.process.settings import OperatorSettings
    from mamba_telemetry.logs import set_up_logs

    # The settings parse the JSON text, and have their own default where the option is absent.
    optional: dict[str, Any] = {} if scrapers is None else {"scrapers": scrapers}
    try:
        settings = OperatorSettings(
            namespaces=tuple(namespace or ()),
            kubeconfig=kubeconfig,
            liveness_host=liveness_host,
            liveness_port=liveness_port,
            external_metrics_port=external_metrics_port,
            external_metrics_service=external_metrics_service,
            lease_namespace=lease_namespace,
            resync=resync,
            engine_image=engine_image,
            gateway_image=gateway_image,
            image_pull_secrets=tuple(image_pull_secret or ()),
            log_level=log_level,
            **optional,
        )
    except ValidationError as error:
        problems = "; ".join(f"--{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InvalidInput(problems.replace("_", "-")) from None
    profiles = known_profiles(resource_profiles)
    set_up_logs(level=settings.log_level, process="operator")
    collect_seldom()
    try:
        asyncio.run(run(settings, shipped_config, profiles))
    except SettingsInvalid as error:
        raise InvalidInput(str(error)) from None
    except (LeadershipLost, OSError) as error:
        raise RunFailed(str(error)) from error
