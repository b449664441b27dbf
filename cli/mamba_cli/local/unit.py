"""`Unit`: the engines and the gateway of one deployment on this machine, their commands and settings.

The settings of an engine are the document that the operator writes for a pod, with this machine's addresses
and the plan. Pure: `Processes` writes the document before it starts the engine.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from mamba_api.choices import DRAFT_MODEL, Role, Transport
from mamba_api.names import ENV_PREFIX
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.gateway_usage import (
    PRICED,
    ModelPrices,
    Prices,
    PricesByModel,
    Usage,
    UsageOfModels,
)
from mamba_cli.errors import InvalidInput
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.model_facts import local_uri
from mamba_edge.listener import url_at
from mamba_planner import MemoryPlan
from mamba_planner.hand_over import hand_over_tokens
from mamba_settings.adapter_settings import adapter_text
from mamba_settings.engine_settings import EngineSettings
from mamba_settings.models_document import ModelEntry, ModelsDocument, duplicates
from mamba_settings.spec_settings import (
    disk_budget,
    engine_settings,
    model_entry_settings,
    usage_settings,
)
from mamba_settings.trace_settings import trace_variables

LAUNCHER = (sys.executable, "-m", "mamba_cli")
SHARED_GATEWAY = "gateway"
"""Name of the process that serves the models of several deployments at one address."""
GATEWAY_RANK = 1
ENGINE_RANK = 0


@dataclass(frozen=True, slots=True)
class Command:
    """Command line and environment of a child. Before its start, `document` is written to `file`."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    file: Path | None = None
    document: str = ""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine process that `up` runs: the only engine of a deployment, or the engine of a pool."""

    name: str
    """Name of its process: `NAME-engine`, `NAME-prefill` or `NAME-decode`."""
    role: Role
    settings: EngineSettings
    """Settings, including edits that the engine accepted while running."""
    settings_file: Path
    url: str
    admin_url: str


@dataclass(frozen=True, slots=True)
class Unit:
    """The processes that `up` runs for one deployment: its engines, and its gateway.

    The gateway is a process `NAME-gateway`, or one that several units share.
    """

    loaded: LoadedDeployment
    launcher: tuple[str, ...]
    """Words that start `mambaserve`."""
    engines: tuple[LocalEngine, ...]
    gateway_argv: tuple[str, ...]
    """Arguments of the deployment's own gateway."""
    url: str
    shared_gateway: Command | None = None
    """The gateway that serves the models of several deployments; None = the deployment has its own."""
    model_name: str | None = None
    """Name of the model at a shared gateway."""

    @property
    def name(self) -> str:
        """Name of the deployment."""
        return self.loaded.deployment.name

    @property
    def model(self) -> str:
        """Name of the model that requests use."""
        return self.model_name or self.loaded.deployment.served_name

    @property
    def gateway(self) -> str:
        """Name of the gateway's process."""
        return f"{self.name}-gateway" if self.shared_gateway is None else SHARED_GATEWAY

    def commands(self) -> dict[str, Command]:
        """Return the commands by child; the deployment's env and extraArgs override the document."""
        spec, usage = self.loaded.deployment.spec.engine, self.loaded.deployment.spec.gateway.usage
        shared = {**prefix_sharing(self.loaded.deployment), **trace_variables(self.loaded.deployment)}
        own = {variable.name: variable.value for variable in spec.env if variable.value is not None}
        return {
            **{
                engine.name: Command(
                    (*self.launcher, "serve", "--config", str(engine.settings_file), *spec.extra_args),
                    {**shared, **own},
                    engine.settings_file,
                    json.dumps(engine.settings.document(), indent=2) + "\n",
                )
                for engine in self.engines
            },
            self.gateway: self.shared_gateway
            or Command(
                (*self.launcher, *self.gateway_argv),
                {**shared, **usage_variables(self.loaded.deployment), **_ledger(usage)},
            ),
        }

    def with_settings(self, name: str, settings: EngineSettings) -> "Unit":
        """Return the unit with the settings for the next start of the engine `name`."""
        return replace(
            self,
            engines=tuple(
                replace(engine, settings=settings) if engine.name == name else engine
                for engine in self.engines
            ),
        )

    def curl(self, *, chat: bool = True) -> str:
        """Return a curl command that sends a request. `chat` says whether the model has a chat template."""
        path, prompt = "chat/completions", '"messages": [{"role": "user", "content": "Hello"}]'
        if not chat:
            path, prompt = "completions", '"prompt": "Hello"'
        return (
            f"curl {self.url}/v1/{path} -H 'Content-Type: application/json' "
            f'-d \'{{"model": "{self.model}", {prompt}, "max_tokens": 32}}\''
        )


def unit_of(
    loaded: LoadedDeployment,
    engines: Sequence[LocalEngine],
    *,
    host: str,
    port: int,
    launcher: tuple[str, ...] = LAUNCHER,
) -> Unit:
    """Return the unit of a planned deployment with these engines.

    Its gateway gets the address `host` and `port`. `launcher` are the words that start `mambaserve`.
    """
    backends = [engine.url for engine in engines]
    return Unit(
        loaded=loaded,
        launcher=launcher,
        engines=tuple(engines),
        gateway_argv=tuple(gateway_argv(loaded.deployment, backends=backends, host=host, port=port)),
        url=url_at(host, port),
    )


def behind_one_address(units: Sequence[Unit], *, host: str, port: int, directory: Path) -> list[Unit]:
    """Return the units with one gateway for all of them, whose models are their deployments' served names.

    The file of models is written to `directory` before the gateway starts.
    """
    document = _models_of(units)
    file = directory.absolute() / f"{SHARED_GATEWAY}.json"
    specs = [unit.loaded.deployment.spec for unit in units]
    origins = dict.fromkeys(chain.from_iterable(spec.gateway.cors_origins for spec in specs))
    options = {
        "--models-file": str(file),
        "--host": host,
        "--port": str(port),
        "--max-body-bytes": str(max(spec.gateway.limits.max_body_size.bytes for spec in specs)),
        "--drain-timeout": f"{max(spec.rollout.drain_timeout.seconds for spec in specs):g}",
    }
    words = [
        *chain.from_iterable(options.items()),
        *chain.from_iterable(("--cors-origin", origin) for origin in origins),
    ]
    traces = next(filter(None, (trace_variables(unit.loaded.deployment) for unit in units)), {})
    scope = "local/" + "+".join(sorted(unit.name for unit in units))[:400]
    usage = _usage_variable("+".join(sorted(unit.name for unit in units))[:200])
    environment = {
        f"{ENV_PREFIX}PREFIX_INDEX_SCOPE": scope, **usage, **_ledger(_common_usage(units)), **traces,
    }  # fmt: skip
    command = Command((*units[0].launcher, "gateway", *words), environment, file, document.json_text())
    return [
        replace(unit, url=url_at(host, port), shared_gateway=command, model_name=entry.name)
        for unit, entry in zip(units, document.models[: len(units)], strict=True)
    ]


def _models_of(units: Sequence[Unit]) -> ModelsDocument:
    """Return the models of a shared gateway, in the order of the units, and then their adapters.

    The name of a deployment is a second name of its model, and the only one where several deployments serve
    the same name. Raises InvalidInput for two models of one name.
    """
    served = [unit.loaded.deployment.served_name for unit in units]
    common = duplicates(served)
    entries = []
    for unit, served_name in zip(units, served, strict=True):
        name = unit.name if served_name in common else served_name
        only_name = unit.name == name or unit.name in served
        entries.append(
            ModelEntry(
                name=name,
                served_name=served_name,
                aliases=() if only_name else (unit.name,),
                settings=_model_settings(unit),
            )
        )
    if clash := duplicates(entry.name for entry in entries):
        raise InvalidInput(
            f"two models would be named {clash[0]!r} at one address: give each object its own "
            "spec.model.servedName"
        )
    adapters = [
        ModelEntry(name=adapter.name, parent=entry.name)
        for unit, entry in zip(units, entries, strict=True)
        for adapter in unit.loaded.deployment.spec.model.adapters
    ]
    names_of_models = [name for entry in entries for name in entry.names]
    if clash := duplicates([*names_of_models, *(adapter.name for adapter in adapters)]):
        raise InvalidInput(
            f"an adapter and another model or adapter would be named {clash[0]!r} at one address: give each "
            "of spec.model.adapters a name of its own"
        )
    entries += adapters
    return ModelsDocument(models=tuple(entries))


def _model_settings(unit: Unit) -> dict[str, Any]:
    """Return the settings of a unit's model at a shared gateway."""
    deployment = unit.loaded.deployment
    settings = {
        "backend": [engine.url for engine in unit.engines],
        **model_entry_settings(deployment, hand_over_tokens(deployment)),
    }
    redis = deployment.spec.prefix_index.redis
    if redis is not None and redis.url is not None:
        settings["redis_url"] = redis.url
    return settings


def local_engine(
    loaded: LoadedDeployment,
    plan: MemoryPlan,
    *,
    device: str,
    port: int,
    admin_port: int,
    directory: Path,
    role: Role = "unified",
    transfer_port: int | None = None,
    transport: Transport = "Sockets",
) -> LocalEngine:
    """Return the planned engine of a deployment or pool, with its settings file in `directory`.

    The other parameters are those of `local_settings`.
    """
    name = f"{loaded.deployment.name}-{'engine' if role == 'unified' else role}"
    return LocalEngine(
        name=name,
        role=role,
        settings=local_settings(
            loaded, plan, name=name, device=device, port=port, admin_port=admin_port, role=role,
            transfer_port=transfer_port, transport=transport,
        ),
        settings_file=directory.absolute() / f"{name}.json",
        url=f"http://127.0.0.1:{port}",
        admin_url=f"http://127.0.0.1:{admin_port}",
    )  # fmt: skip


def local_settings(
    loaded: LoadedDeployment,
    plan: MemoryPlan,
    *,
    name: str,
    device: str,
    port: int,
    admin_port: int,
    role: Role = "unified",
    transfer_port: int | None = None,
    transport: Transport = "Sockets",
) -> EngineSettings:
    """Return the settings of an engine: those of the spec, completed by the plan.

    On a CPU, the settings include the arena, because free memory changes between two readings; on a GPU, the
    engine plans with the memory that it finds on the device. The disk cache is in the user's cache folder, so
    that the next `up` finds it.

    Args:
        loaded: the deployment of the engine.
        plan: its memory plan.
        name: name of the engine's process, which the folder of its disk cache has, too.
        device: cpu or cuda.
        port: port for requests.
        admin_port: port for admin calls.
        role: work of the engine.
        transfer_port: port from which other engines fetch states; None = as in `engine_settings`.
        transport: how states travel between the engines.
    """
    deployment = loaded.deployment
    update: dict[str, Any] = {
        "model": local_uri(deployment.spec.model.uri, loaded.path),
        "device": device,
        "port": port,
        "admin_port": admin_port,
        "strategy": plan.strategy,
        "state_dtype": plan.state_dtype,
        "max_model_len": plan.max_model_len,
    }
    if deployment.spec.model.adapters:
        update["lora"] = local_adapters(deployment, loaded.path)
    if (draft := deployment.spec.engine.draft_uri) is not None:
        update["speculation"] = f"{DRAFT_MODEL}{local_uri(draft, loaded.path)}"
    if device == "cpu":
        update["arena_bytes"] = plan.arena_bytes
    if (disk := deployment.spec.state_cache.disk) is not None:
        update |= {"disk_cache": str(states_folder() / name), "disk_cache_bytes": disk_budget(disk)}
    settings = engine_settings(deployment, role, transfer_port=transfer_port, transport=transport)
    return settings.model_copy(update=update)


def local_adapters(deployment: MambaDeployment, where: Path) -> tuple[str, ...]:
    """Return the adapters of a deployment in the file `where`, as the engine's settings have them."""
    adapters = deployment.spec.model.adapters
    return tuple(adapter_text(adapter.name, local_uri(adapter.uri, where)) for adapter in adapters)


def states_folder() -> Path:
    """Return the folder of the disk caches of this user's engines."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mambaserve" / "states"


def usage_variables(deployment: MambaDeployment) -> dict[str, str]:
    """Return the environment variable that names the file of a gateway's usage ledger; empty with a Redis."""
    return {} if deployment.spec.prefix_index.redis is not None else _usage_variable(deployment.name)


def _usage_variable(name: str) -> dict[str, str]:
    base = os.environ.get("XDG_STATE_HOME")
    folder = Path(base) if base else Path.home() / ".local" / "state"
    variable = f"{ENV_PREFIX}USAGE_FILE"
    if os.environ.get(f"{ENV_PREFIX}REDIS_URL") or os.environ.get(f"{ENV_PREFIX}REDIS_URL_FILE"):
        return {}  # the gateway keeps the use of its engines there
    return {variable: os.environ.get(variable) or str(folder / "mambaserve" / "usage" / f"{name}.json")}


def _ledger(usage: Usage) -> dict[str, str]:
    """Return the environment variables of the usage ledger, without readers: no client shows a key here."""
    settings = usage_settings(usage.model_copy(update={"readers": []}))
    return {f"{ENV_PREFIX}{name.upper()}": value for name, value in settings.items()}


def _common_usage(units: Sequence[Unit]) -> Usage:
    """Return the ledger of a gateway for all units, with the prices of each model.

    Raises InvalidInput for prices in two currencies, or two sets of prices for one name of a model.
    """
    deployments = [unit.loaded.deployment for unit in units]
    prices: dict[str, Prices] = {}
    for deployment in deployments:
        own, name = deployment.spec.gateway.usage.prices, deployment.served_name
        if own is not None and prices.setdefault(name, own) != own:
            raise InvalidInput(
                f"two objects serve {name} at different prices, and the ledger counts them as one model: "
                "give both the same spec.gateway.usage.prices, or another spec.model.servedName to one"
            )
    if len(currencies := {own.currency for own in prices.values()}) > 1:
        raise InvalidInput(
            f"one address has prices in one currency, and these are in {' and '.join(sorted(currencies))}: "
            "set the same spec.gateway.usage.prices.currency in all objects"
        )
    days = max(deployment.spec.gateway.usage.retention_days for deployment in deployments)
    if not prices:
        return UsageOfModels(retention_days=days)
    models = [
        ModelPrices(model=name, **{kind: getattr(own, kind) for kind in PRICED})
        for name, own in prices.items()
    ]
    return UsageOfModels(retention_days=days, prices=PricesByModel(currency=currencies.pop(), models=models))


def gateway_argv(deployment: MambaDeployment, *, backends: Sequence[str], host: str, port: int) -> list[str]:
    """Return the arguments of `mambaserve gateway` for the engines at `backends`."""
    origins = [word for origin in deployment.spec.gateway.cors_origins for word in ("--cors-origin", origin)]
    limits, routing = deployment.spec.gateway.limits, deployment.spec.gateway.routing
    options = {
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
    if (least := hand_over_tokens(deployment)) is not None:
        options["--hand-over-tokens"] = str(least)
    if limits.per_key is not None:
        key_limits = {
            "--requests-per-minute": limits.per_key.requests_per_minute,
            "--tokens-per-minute": limits.per_key.tokens_per_minute,
            "--concurrent-requests": limits.per_key.concurrent_requests,
        }
        options |= {name: str(value) for name, value in key_limits.items() if value is not None}
    engines = [word for backend in backends for word in ("--backend", backend)]
    return ["gateway", *engines, *(word for option in options.items() for word in option), *origins]


def prefix_sharing(deployment: MambaDeployment) -> dict[str, str]:
    """Return the environment with which engine and gateway share a prefix index.

    The Redis of the spec precedes a Redis that the user's environment names.
    """
    redis = deployment.spec.prefix_index.redis
    scope = {f"{ENV_PREFIX}PREFIX_INDEX_SCOPE": f"{deployment.namespace}/{deployment.name}"}
    return scope if redis is None or redis.url is None else {**scope, f"{ENV_PREFIX}REDIS_URL": redis.url}
