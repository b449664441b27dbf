"""`Unit`: one deployment on this machine, as an engine and a gateway with their ports. Pure."""

import sys
from dataclasses import dataclass, replace

from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.model_facts import local_uri
from mamba_cli.local.translate import gateway_argv, serve_argv
from mamba_server.budget import Plan

LAUNCHER = (sys.executable, "-m", "mamba_cli")
GATEWAY_RANK = 1
ENGINE_RANK = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """Names of the children are `NAME-engine` and `NAME-gateway`."""

    loaded: LoadedDeployment
    engine_argv: tuple[str, ...]
    gateway_argv: tuple[str, ...]
    engine_url: str
    admin_url: str
    url: str
    environment: dict[str, str]

    @property
    def name(self) -> str:
        return self.loaded.deployment.name

    @property
    def model(self) -> str:
        return self.loaded.deployment.served_name

    @property
    def engine(self) -> str:
        return f"{self.name}-engine"

    @property
    def gateway(self) -> str:
        return f"{self.name}-gateway"

    def with_strategy(self, strategy: str, track_interval: int) -> "Unit":
        """The unit as it is to be started from now on, after its engine took these over while running."""
        argv = list(self.engine_argv)
        for option, value in (("--strategy", strategy), ("--track-interval", str(track_interval))):
            # The first of its name: the deployment's own extraArgs stand behind and keep the last word.
            argv[argv.index(option) + 1] = value
        return replace(self, engine_argv=tuple(argv))

    def curl(self) -> str:
        """A line to try it with."""
        return (
            f"curl {self.url}/v1/chat/completions -H 'Content-Type: application/json' "
            f'-d \'{{"model": "{self.model}", "messages": [{{"role": "user", "content": "Hello"}}], '
            '"max_tokens": 32}\''
        )


def unit_of(
    loaded: LoadedDeployment,
    plan: Plan,
    *,
    device: str,
    host: str,
    port: int,
    engine_port: int,
    admin_port: int,
    drain_timeout: float,
    launcher: tuple[str, ...] = LAUNCHER,
) -> Unit:
    """The unit of one planned deployment."""
    deployment = loaded.deployment
    engine_url = f"http://127.0.0.1:{engine_port}"
    model = local_uri(deployment.spec.model.uri, loaded.path)
    drain = ["--drain-timeout", f"{drain_timeout:g}"]
    engine = serve_argv(deployment, plan, model=model, device=device, port=engine_port, admin_port=admin_port)
    # Before the deployment's own extraArgs, which have the last word.
    engine[1:1] = drain
    gateway = gateway_argv(backend=engine_url, host=host, port=port) + drain
    shown_host = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 - compared, not bound
    return Unit(
        loaded=loaded,
        engine_argv=(*launcher, *engine),
        gateway_argv=(*launcher, *gateway),
        engine_url=engine_url,
        admin_url=f"http://127.0.0.1:{admin_port}",
        url=f"http://{shown_host}:{port}",
        environment={each.name: each.value for each in deployment.spec.engine.env if each.value is not None},
    )
