"""`bring_up`: the steps of `mambaserve up`, which reads, plans, shows and runs the deployments of files.

The decisions are made by the planner and the supervisor.
"""

import asyncio
import functools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mamba_api.choices import Transport
from mamba_api.model_uri import DOWNLOADED
from mamba_api.v1alpha1 import MambaDeployment, pool_deployments
from mamba_api.v1alpha1.profiles import Profiles, profiled_pools
from mamba_cli.errors import InvalidInput, NoFittingPlan, RunFailed
from mamba_cli.extras import SERVER, need
from mamba_cli.local.cluster_only import not_in_local_mode
from mamba_cli.local.documents import LoadedDeployment, read_deployments
from mamba_cli.local.model_facts import local_uri
from mamba_cli.local.plan_view import plan_view
from mamba_cli.local.planning import (
    PlanFlags,
    PlannedPool,
    PlanOutcome,
    cpu_device,
    gpu_memory,
    plan_pools,
)
from mamba_cli.local.ports import free_ports, front_port
from mamba_cli.local.running import noted
from mamba_cli.local.supervisor import RestartPolicy
from mamba_cli.local.unit import LAUNCHER, LocalEngine, Unit, behind_one_address, local_engine, unit_of
from mamba_cli.resource_profiles import of_this_machine
from mamba_planner import Device
from mamba_planner.cards.shipped_profiles import SHIPPED
from mamba_settings.byte_size import binary_size

SOURCE_VARIABLES = ("HF_", "AWS_", "GOOGLE_", "DOCKER_", "MAMBASERVE_MODEL_", "MAMBASERVE_PLAIN_HTTP")
"""Prefixes of the environment variables by which downloads find models and credentials."""
PORTS_PER_ENGINE = 3
"""Ports of one engine on this machine: requests, admin calls, and states that engines exchange."""
if TYPE_CHECKING:
    from mamba_cli.local.edits import FileEdits


def bring_up(
    files: list[Path],
    *,
    host: str,
    port: int,
    once: bool,
    demo: bool,
    logs: Path | None,
    console: Console,
    profiles: Profiles = SHIPPED,
    launcher: tuple[str, ...] = LAUNCHER,
) -> int:
    """Serve the deployments of `files` until they are drained, and return the exit code.

    Args:
        files: YAML files.
        host: address of the endpoint.
        port: port of the endpoint; 0 = a free one.
        once: whether to end once all models are ready.
        demo: whether to send chats that share a prefix.
        logs: directory of the logs; None = a new one.
        console: where plans and progress are shown.
        profiles: profiles that the files may name.
        launcher: words that start `mambaserve`.

    Raises `InvalidInput` (exit code 2), `NoFittingPlan` (3) and `RunFailed` (1).
    """
    profiles = of_this_machine(profiles)
    read = functools.partial(read_deployments, files, profiles)
    loaded = read()
    _check_names(loaded)
    # Ports are checked before the plans are shown, because a port in use prevents the start anyway.
    starts = any(document.deployment.spec.mode == "Active" for document in loaded)
    front = front_port(host, port) if starts else port
    gpu = gpu_memory() if any(_uses_gpus(document, profiles) for document in loaded) else None
    # The free memory is read once: later it no longer includes what the engines use.
    machine = functools.cache(cpu_device)
    planned = [(document, _plan(document, gpu, machine, profiles)) for document in loaded]
    _show(planned, gpu, profiles, console)
    outcomes = [pool.outcome for _, pools in planned for pool in pools]
    if misfits := [outcome.title for outcome in outcomes if outcome.plan is None]:
        raise NoFittingPlan(f"the plan of {', '.join(misfits)} does not fit; the numbers are above")
    active = [(document, pools) for document, pools in planned if document.deployment.spec.mode == "Active"]
    _check_served(active)
    if not active:
        console.print("nothing is started, because spec.mode is Plan")
        return 0
    _check_room([pool.outcome for _, pools in active for pool in pools], machine)
    need(*SERVER)
    for document, _ in active:
        _check_download(document)
    from mamba_cli.local.edits import FileEdits

    directory = _logs(logs)
    units = _units(active, host, front, directory, launcher)
    edits = FileEdits(units, loaded, read, lambda document: _plan(document, gpu, machine, profiles))
    with noted(units, front):
        return asyncio.run(_run(units, edits, once=once, demo=demo, logs=directory, console=console))


def _check_served(active: list[tuple[LoadedDeployment, list[PlannedPool]]]) -> None:
    """Raise `InvalidInput` for models that engines of this version cannot serve."""
    if refused := [
        f"{document.path}: {pools[0].outcome.name}: {pools[0].outcome.not_served}"
        for document, pools in active
        if pools[0].outcome.not_served
    ]:
        raise InvalidInput("\n".join(refused))


def _uses_gpus(loaded: LoadedDeployment, profiles: Profiles) -> bool:
    pools = profiled_pools(loaded.deployment, profiles)
    return any(pool.spec.resources.gpus for pool in pools.values())


def _show(
    planned: list[tuple[LoadedDeployment, list[PlannedPool]]],
    gpu: int | None,
    profiles: Profiles,
    console: Console,
) -> None:
    for document, pools in planned:
        for pool in pools:
            console.print(plan_view(pool.outcome))
        for note in _notes(document, gpu, profiles):
            console.print(
                f"note: {document.deployment.name}: {note}", style="yellow", highlight=False, markup=False
            )


async def _run(
    units: list[Unit], edits: "FileEdits", *, once: bool, demo: bool, logs: Path, console: Console
) -> int:
    from mamba_cli.local.session import LocalSession, SessionOptions

    restart_policy = RestartPolicy(drain_timeout=max(_drain_timeout(unit.loaded) for unit in units))
    options = SessionOptions(once=once, demo=demo, logs=logs, restart_policy=restart_policy)
    return await LocalSession(units, options, console, edits.take_over).run()


def _check_names(loaded: list[LoadedDeployment]) -> None:
    names = [document.deployment.name for document in loaded]
    for document in loaded:
        if names.count(name := document.deployment.name) > 1:
            raise InvalidInput(
                f"{document.path}: several namespaces have a deployment named {name}, but one machine has no "
                "namespaces: rename all but one"
            )


def _plan(
    loaded: LoadedDeployment, gpu: int | None, machine: Callable[[], Device], profiles: Profiles
) -> list[PlannedPool]:
    """Plan the pools of one object, which share this machine: each gets an equal part of its memory."""
    shares = len(pool_deployments(loaded.deployment))

    def here(pool: MambaDeployment) -> tuple[MambaDeployment, Device]:
        memory = pool.spec.memory
        if not pool.spec.resources.gpus or gpu is None:
            free = machine()
            return pool, replace(free, memory=free.memory // shares)
        device = Device("cuda", memory.device_memory.bytes if memory.device_memory else gpu)
        share = memory.model_copy(update={"utilization": memory.utilization / shares})
        return pool.model_copy(update={"spec": pool.spec.model_copy(update={"memory": share})}), device

    # Local mode starts one engine of a pool on one device, so there is no tensor parallelism.
    return plan_pools(loaded, PlanFlags(gpus=1, profiles=profiles), here)


def _check_room(outcomes: list[PlanOutcome], machine: Callable[[], Device]) -> None:
    """Raise `NoFittingPlan` if the engines together exceed the free memory.

    Each object was planned as if it had the machine for itself.
    """
    needed = sum(_main_memory(outcome) for outcome in outcomes)
    names = ", ".join(outcome.title for outcome in outcomes if _main_memory(outcome))
    if needed and needed > (free := machine().memory):
        raise NoFittingPlan(
            f"{names} together need {binary_size(needed)} of main memory, but {binary_size(free)} are free: "
            "give each a smaller spec.memory.arena or spec.stateCache.hostMemory"
        )


def _main_memory(outcome: PlanOutcome) -> int:
    """Return the bytes of main memory that an engine takes, its tier of host memory included."""
    if outcome.plan is None:
        return 0
    tiers = sum(tier.bytes for tier in outcome.plan.tiers if tier.tier == "hostMemory")
    on_cpu = outcome.device.kind == "cpu"
    return tiers + (outcome.plan.budget_bytes - outcome.plan.unused_bytes if on_cpu else 0)


def _check_download(loaded: LoadedDeployment) -> None:
    """Check that all models can be downloaded, because engines would retry a hopeless download forever.

    Raises `InvalidInput`, `RunFailed`.
    """
    from mamba_server.model.checkpoint.errors import SourceError
    from mamba_server.model.checkpoint.source import ADAPTER, check_download, resolve_adapter

    spec = loaded.deployment.spec
    if any(variable.name.startswith(SOURCE_VARIABLES) for variable in spec.engine.env):
        return  # the engine uses another source or another account
    try:
        check_download(local_uri(spec.model.uri, loaded.path))
        if (draft := spec.engine.draft_uri) is not None:
            check_download(local_uri(draft, loaded.path))
        for adapter in spec.model.adapters:
            uri = local_uri(adapter.uri, loaded.path)
            if adapter.location.scheme in DOWNLOADED:
                check_download(uri, ADAPTER)
            else:
                resolve_adapter(uri)
    except SourceError as error:
        wrong = error.exit_code == InvalidInput.exit_code
        raise (InvalidInput if wrong else RunFailed)(f"{loaded.path}: {error}") from error


def _units(
    active: list[tuple[LoadedDeployment, list[PlannedPool]]],
    host: str,
    front: int,
    directory: Path,
    launcher: tuple[str, ...],
) -> list[Unit]:
    inner = iter(free_ports(PORTS_PER_ENGINE * sum(len(pools) for _, pools in active)))

    def engine(pool: PlannedPool, transport: Transport) -> LocalEngine:
        assert pool.outcome.plan is not None  # deployments that do not fit were refused
        ports = [next(inner) for _ in range(PORTS_PER_ENGINE)]
        return local_engine(
            pool.loaded, pool.outcome.plan, device=pool.outcome.device.kind, port=ports[0],
            admin_port=ports[1], directory=directory, role=pool.role, transfer_port=ports[2],
            transport=transport,
        )  # fmt: skip

    units = [
        unit_of(
            loaded,
            [engine(pool, loaded.deployment.transport) for pool in pools],
            host=host,
            port=front,
            launcher=launcher,
        )
        for loaded, pools in active
    ]
    return units if len(units) == 1 else behind_one_address(units, host=host, port=front, directory=directory)


def _drain_timeout(loaded: LoadedDeployment) -> float:
    return loaded.deployment.spec.rollout.drain_timeout.seconds


def _notes(loaded: LoadedDeployment, gpu: int | None, profiles: Profiles) -> list[str]:
    notes = not_in_local_mode(loaded.deployment.spec)
    if _uses_gpus(loaded, profiles) and gpu is None:
        notes.append("this machine has no NVIDIA GPU: the engine runs on the CPU")
    return notes


def _logs(directory: Path | None) -> Path:
    try:
        if directory is None:
            return Path(tempfile.mkdtemp(prefix="mambaserve-"))
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFailed(f"--logs: the directory cannot be created: {error}") from error
    return directory
