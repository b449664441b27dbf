"""`Unit`: the engine and the gateway of one deployment on this machine, and their commands and settings.

The engine's settings are the document that the operator writes for a pod, with this machine's addresses and
the plan. Pure: `Processes` writes the document before it starts the engine.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from mamba_api.names import ENV_PREFIX
from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.model_facts import local_uri
from mamba_edge.listener import url_at
from mamba_planner import MemoryPlan
from mamba_settings.engine_settings import EngineSettings
from mamba_settings.spec_settings import engine_settings
from mamba_settings.trace_settings import trace_variables

LAUNCHER = (sys.executable, "-m", "mamba_cli")
GATEWAY_RANK = 1
ENGINE_RANK = 0


@dataclass(frozen=True, slots=True)
class Command:
    """The command line and environment of a child; `document` is written to `file` before the start."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    file: Path | None = None
    document: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """The engine and the gateway of one deployment; their names are `NAME-engine` and `NAME-gateway`."""

    loaded: LoadedDeployment
    launcher: tuple[str, ...]
    settings: EngineSettings
    """Settings of the engine, including edits that it accepted while running."""
    settings_file: Path
    gateway_argv: tuple[str, ...]
    engine_url: str
    admin_url: str
    url: str

    @property
    def name(self) -> str:
        """Return the name of the deployment."""
        return self.loaded.deployment.name

    @property
    def model(self) -> str:
        """Return the model name that requests use."""
        return self.loaded.deployment.served_name

    @property
    def engine(self) -> str:
        """Return the name of the engine's process."""
        return f"{self.name}-engine"

    @property
    def gateway(self) -> str:
        """Return the name of the gateway's process."""
        return f"{self.name}-gateway"

    def commands(self) -> dict[str, Command]:
        """Return the commands by child; the deployment's env and extraArgs override the document."""
        engine = self.loaded.deployment.spec.engine
        shared = {**prefix_sharing(self.loaded.deployment), **trace_variables(self.loaded.deployment)}
        return {
            self.engine: Command(
                (*self.launcher, "serve", "--config", str(self.settings_file), *engine.extra_args),
                {
                    **shared,
                    **{
                        variable.name: variable.value for variable in engine.env if variable.value is not None
                    },
                },
                self.settings_file,
                json.dumps(self.settings.document(), indent=2) + "\n",
            ),
            self.gateway: Command((*self.launcher, *self.gateway_argv), shared),
        }

    def with_settings(self, settings: EngineSettings) -> "Unit":
        """Return the unit with the settings for its next start."""
        return replace(self, settings=settings)

    def curl(self, *, chat: bool = True) -> str:
        """Return a curl command that sends a request; `chat`: the model has a chat template."""
        path, prompt = "chat/completions", '"messages": [{"role": "user", "content": "Hello"}]'
        if not chat:
            path, prompt = "completions", '"prompt": "Hello"'
        return (
            f"curl {self.url}/v1/{path} -H 'Content-Type: application/json' "
            f'-d \'{{"model": "{self.model}", {prompt}, "max_tokens": 32}}\''
        )


def unit_of(
    loaded: LoadedDeployment,
    plan: MemoryPlan,
    *,
    device: str,
    host: str,
    port: int,
    engine_port: int,
    admin_port: int,
    directory: Path,
    launcher: tuple[str, ...] = LAUNCHER,
) -> Unit:
    """Return the unit of a planned deployment, with the engine's settings file in `directory`."""
    deployment = loaded.deployment
    engine_url = f"http://127.0.0.1:{engine_port}"
    settings = local_settings(loaded, plan, device=device, port=engine_port, admin_port=admin_port)
    return Unit(
        loaded=loaded,
        launcher=launcher,
        settings=settings,
        settings_file=directory.absolute() / f"{deployment.name}-engine.json",
        gateway_argv=tuple(gateway_argv(deployment, backend=engine_url, host=host, port=port)),
        engine_url=engine_url,
        admin_url=f"http://127.0.0.1:{admin_port}",
        url=url_at(host, port),
    )


def local_settings(
    loaded: LoadedDeployment, plan: MemoryPlan, *, device: str, port: int, admin_port: int
) -> EngineSettings:
    """Return the settings of the spec, completed by the plan.

    On a CPU, the settings include the arena, because free memory changes between two readings; on a GPU, the
    engine plans with the memory that it finds on the device.
    """
    deployment = loaded.deployment
    update = {
        "model": local_uri(deployment.spec.model.uri, loaded.path),
        "device": device,
        "port": port,
        "admin_port": admin_port,
        "strategy": plan.strategy,
        "state_dtype": plan.state_dtype,
        "max_model_len": plan.max_model_len,
    }
    if device == "cpu":
        update["arena_bytes"] = plan.arena_bytes
    return engine_settings(deployment).model_copy(update=update)


def gateway_argv(deployment: MambaDeployment, *, backend: str, host: str, port: int) -> list[str]:
    """Return the arguments of `mambaserve gateway` for the engine at `backend`."""
    origins = [word for origin in deployment.spec.gateway.cors_origins for word in ("--cors-origin", origin)]
    limits, routing = deployment.spec.gateway.limits, deployment.spec.gateway.routing
    options = {
        "--backend": backend,
        "--host": host,
        "--port": str(port),
        "--max-in-flight": str(limits.max_in_flight),
        "--max-queue": str(limits.max_queued),
        "--queue-timeout": f"{limits.queue_timeout.seconds:g}",
        "--hold-timeout": f"{limits.queue_timeout.seconds:g}",
        "--request-timeout": f"{limits.request_timeout.seconds:g}",
        "--max-body-bytes": str(limits.max_body_size.bytes),
        "--prefix-weight": f"{routing.prefix_weight!r}",
        "--load-weight": f"{routing.load_weight!r}",
        "--drain-timeout": f"{deployment.spec.rollout.drain_timeout.seconds:g}",
    }
    if limits.per_key is not None:
        key_limits = {
            "--requests-per-minute": limits.per_key.requests_per_minute,
            "--tokens-per-minute": limits.per_key.tokens_per_minute,
            "--concurrent-requests": limits.per_key.concurrent_requests,
        }
        options |= {name: str(value) for name, value in key_limits.items() if value is not None}
    return ["gateway", *(word for option in options.items() for word in option), *origins]


def prefix_sharing(deployment: MambaDeployment) -> dict[str, str]:
    """Return the environment with which engine and gateway share a prefix index.

    Its Redis is that of the spec, or the one that the user exports.
    """
    redis = deployment.spec.prefix_index.redis
    scope = {f"{ENV_PREFIX}PREFIX_INDEX_SCOPE": f"{deployment.namespace}/{deployment.name}"}
    return scope if redis is None or redis.url is None else {**scope, f"{ENV_PREFIX}REDIS_URL": redis.url}
