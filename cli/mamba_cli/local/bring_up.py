"""What `mambaserve up` does from start to end: read, plan, show, run. It decides nothing itself."""

import asyncio
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mamba_api.v1alpha1.profiles import Profiles
from mamba_cli.errors import InvalidInput, NoFittingPlan, RunFailed
from mamba_cli.extras import SERVER, need
from mamba_cli.local.cluster_only import not_in_local_mode
from mamba_cli.local.documents import LoadedDeployment, read_deployments
from mamba_cli.local.model_facts import local_uri
from mamba_cli.local.plan_view import plan_view
from mamba_cli.local.planning import PlanFlags, PlanOutcome, cpu_device, gpu_memory, plan_deployment
from mamba_cli.local.ports import free_ports, front_ports
from mamba_cli.local.running import noted
from mamba_cli.local.supervisor import RestartPolicy
from mamba_cli.local.unit import LAUNCHER, Unit, unit_of
from mamba_cli.resource_profiles import of_this_machine
from mamba_planner import Device
from mamba_planner.shipped_profiles import SHIPPED
from mamba_settings.byte_size import binary_size

HUB_VARIABLES = "HF_"
"""How the names of the variables begin that the Hub's client reads."""
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
    """Run until drained; the exit code. Raises `InvalidInput` (2), `NoFittingPlan` (3), `RunFailed` (1)."""
    read = functools.partial(read_deployments, files, of_this_machine(profiles))
    loaded = read()
    _check_names(loaded)
    # Before anything long is shown: a taken port would end it all the same.
    fronts = front_ports(host, port, sum(each.deployment.spec.mode == "Active" for each in loaded))
    gpu = gpu_memory() if any(each.deployment.spec.resources.gpus for each in loaded) else None
    # Looked at once: later the engines themselves have taken of it.
    machine = functools.cache(cpu_device)
    outcomes = [_plan(each, gpu, machine) for each in loaded]
    for each, outcome in zip(loaded, outcomes, strict=True):
        console.print(plan_view(outcome))
        for note in _notes(each, gpu):
            console.print(
                f"note: {each.deployment.name}: {note}", style="yellow", highlight=False, markup=False
            )
    if misfits := [outcome.name for outcome in outcomes if outcome.plan is None]:
        raise NoFittingPlan(f"the plan of {', '.join(misfits)} does not fit; the numbers are above")
    if refused := [
        f"{each.path}: {outcome.name}: {outcome.not_served}"
        for each, outcome in zip(loaded, outcomes, strict=True)
        if outcome.not_served and each.deployment.spec.mode == "Active"
    ]:
        raise InvalidInput("\n".join(refused))
    active = [
        (each, outcome)
        for each, outcome in zip(loaded, outcomes, strict=True)
        if each.deployment.spec.mode == "Active"
    ]
    if not active:
        console.print("mode: Plan: nothing is started")
        return 0
    _check_room([outcome for _, outcome in active])
    need(*SERVER)
    for each, _ in active:
        _check_download(each)
    from mamba_cli.local.edits import FileEdits

    directory = _logs(logs)
    units = _units(active, host, fronts, directory, launcher)
    edits = FileEdits(units, loaded, read, lambda each: _plan(each, gpu, machine))
    with noted(units, port or fronts[0]):
        return asyncio.run(_run(units, edits, once=once, demo=demo, logs=directory, console=console))


async def _run(
    units: list[Unit], edits: "FileEdits", *, once: bool, demo: bool, logs: Path, console: Console
) -> int:
    from mamba_cli.local.session import LocalSession, SessionOptions

    restart_policy = RestartPolicy(drain_timeout=max(_drain_timeout(unit.loaded) for unit in units))
    options = SessionOptions(once=once, demo=demo, logs=logs, restart_policy=restart_policy)
    return await LocalSession(units, options, console, edits.take_over).run()


def _check_names(loaded: list[LoadedDeployment]) -> None:
    names = [each.deployment.name for each in loaded]
    for each in loaded:
        if names.count(name := each.deployment.name) > 1:
            raise InvalidInput(
                f"{each.path}: {name} is given in several namespaces, which one machine does not have: "
                "rename all but one"
            )


def _plan(loaded: LoadedDeployment, gpu: int | None, machine: Callable[[], Device]) -> PlanOutcome:
    spec = loaded.deployment.spec
    if spec.resources.gpus and gpu is not None:
        told = spec.memory.device_memory
        device = Device("cuda", told.bytes if told else gpu)
    else:
        device = machine()
    # One engine on one device: tensor parallelism needs more than local mode starts.
    return plan_deployment(loaded, PlanFlags(gpus=1), device)


def _check_room(outcomes: list[PlanOutcome]) -> None:
    """Of several engines on the CPU, each plans as if it were alone."""
    here = [each for each in outcomes if each.device.kind == "cpu" and each.plan is not None]
    taken = sum(each.plan.budget_bytes - each.plan.unused_bytes for each in here if each.plan is not None)
    if here and taken > here[0].device.memory:
        raise NoFittingPlan(
            f"{', '.join(each.name for each in here)} together need {binary_size(taken)} of main memory, of "
            f"which {binary_size(here[0].device.memory)} are free: give each a smaller spec.memory.arena"
        )


def _check_download(loaded: LoadedDeployment) -> None:
    """Look before anything starts: engines would try again and again. Raises `InvalidInput`, `RunFailed`."""
    from mamba_server.model.checkpoint.errors import SourceError
    from mamba_server.model.checkpoint.source import check_download

    spec = loaded.deployment.spec
    if any(each.name.startswith(HUB_VARIABLES) for each in spec.engine.env):
        return  # the engine asks another Hub, or as somebody else
    try:
        check_download(local_uri(spec.model.uri, loaded.path))
    except SourceError as error:
        wrong = error.exit_code == InvalidInput.exit_code
        raise (InvalidInput if wrong else RunFailed)(f"{loaded.path}: {error}") from error


def _units(
    active: list[tuple[LoadedDeployment, PlanOutcome]],
    host: str,
    fronts: list[int],
    directory: Path,
    launcher: tuple[str, ...],
) -> list[Unit]:
    inner = iter(free_ports(2 * len(active)))
    units = []
    for (loaded, outcome), front in zip(active, fronts, strict=True):
        assert outcome.plan is not None  # misfits ended before
        units.append(
            unit_of(
                loaded, outcome.plan, device=outcome.device.kind, host=host, port=front,
                engine_port=next(inner), admin_port=next(inner), directory=directory, launcher=launcher,
            )
        )  # fmt: skip
    return units


def _drain_timeout(loaded: LoadedDeployment) -> float:
    return loaded.deployment.spec.rollout.drain_timeout.seconds


def _notes(loaded: LoadedDeployment, gpu: int | None) -> list[str]:
    notes = not_in_local_mode(loaded.deployment.spec)
    if loaded.deployment.spec.resources.gpus and gpu is None:
        notes.append("no NVIDIA GPU found: runs on the CPU")
    return notes


def _logs(given: Path | None) -> Path:
    try:
        if given is None:
            return Path(tempfile.mkdtemp(prefix="mambaserve-"))
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFailed(f"--logs: cannot write there: {error}") from error
    return given
