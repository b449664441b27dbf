"""Edits of the file while it runs: what reaches the engine, what is said, and what is remembered."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.edits import FileEdits, FileStamp, MissingFiles, Replan
from mamba_cli.local.planning import PlanFlags, PlannedPool, plan_pools
from mamba_cli.local.unit import Unit, local_engine, unit_of
from mamba_planner import Device

CONFIG = json.loads(
    (Path(__file__).parents[2] / "golden" / "configs" / "granite-4.0-h-350m.json").read_text()
)


def loaded(name: str = "one", **spec: Any) -> LoadedDeployment:
    body = {
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "hf://a/b", "config": CONFIG, "maxModelLen": 4096},
            "memory": {"arena": "512Mi"},
            **spec,
        },
    }
    return LoadedDeployment(Path("f.yaml"), MambaDeployment.model_validate(body))


def replan(each: LoadedDeployment) -> list[PlannedPool]:
    here = Device("cpu", 4 << 30, declared=False)
    return plan_pools(each, PlanFlags(gpus=1), lambda pool: (pool, here))


@dataclass
class Engine:
    """The admin server of an engine; `refusals` are answered before it takes anything over."""

    url: str = ""
    taken: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)

    async def put(self, request: web.Request) -> web.Response:
        if self.refusals:
            status, text = self.refusals.pop(0)
            return web.Response(status=status, text=text)
        self.taken.append(await request.json())
        return web.json_response({})


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    found = Engine()
    app = web.Application()
    app.router.add_put("/admin/strategy", found.put)
    async with TestServer(app) as server:
        found.url = str(server.make_url("")).rstrip("/")
        yield found


class File:
    """The file as it stands; `running` are the objects that were started from it."""

    def __init__(self, engine: Engine, *objects: LoadedDeployment, replan: Replan = replan) -> None:
        self.objects: list[LoadedDeployment] | InvalidInput = list(objects)
        self.units = [self._unit(each, engine) for each in objects if each.deployment.spec.mode == "Active"]
        self._edits = FileEdits(self.units, list(objects), self._read, replan)

    @staticmethod
    def _unit(each: LoadedDeployment, engine: Engine) -> Unit:
        admin = int(engine.url.rpartition(":")[2])
        engines = [
            local_engine(
                pool.loaded, pool.outcome.plan, device="cpu", port=2, admin_port=admin, directory=Path(),
                role=pool.role,
            )
            for pool in replan(each)
            if pool.outcome.plan is not None
        ]  # fmt: skip
        assert engines
        return unit_of(each, engines, host="127.0.0.1", port=1)

    def _read(self) -> list[LoadedDeployment]:
        if isinstance(self.objects, InvalidInput):
            raise self.objects
        return self.objects

    async def edit(self, *objects: LoadedDeployment) -> list[str]:
        self.objects = list(objects)
        return await self.look()

    async def look(self) -> list[str]:
        async with aiohttp.ClientSession() as http:
            lines, self.units = await self._edits.take_over(http)
        return lines

    def starts_with(self, name: str) -> list[Any]:
        """Return the values of the setting `name` with which engines would start now."""
        engines = [(unit.commands(), engine.name) for unit in self.units for engine in unit.engines]
        return [json.loads(commands[engine].document)[name] for commands, engine in engines]


TOLD = {"maxCheckpointsPerPath": 4, "eviction": "RecomputeCost"}
"""Arguments of an engine besides the strategy and the interval."""


def cached(**fields: Any) -> LoadedDeployment:
    return loaded(stateCache=fields)


async def test_strategy_and_interval_go_to_the_engine_at_once(engine: Engine) -> None:
    file = File(engine, loaded())
    lines = await file.edit(cached(strategy="NoBuffer", trackInterval=512))
    assert engine.taken == [{**TOLD, "strategy": "NoBuffer", "trackInterval": 512}]
    assert [line.partition(" with ")[0] for line in lines] == ["one: now runs NoBuffer"]


@pytest.mark.parametrize(
    ("field", "name", "value"),
    [("eviction", "eviction", "LRU"), ("maxCheckpointsPerPath", "max_checkpoints_per_path", 9)],
)
async def test_the_rest_of_what_an_engine_takes_over_goes_to_it_at_once_too(
    engine: Engine, field: str, name: str, value: object
) -> None:
    file = File(engine, loaded())
    await file.edit(cached(**{field: value}))
    assert [each[field] for each in engine.taken] == [value]
    assert file.starts_with(name) == [value]


async def test_an_engine_that_is_started_again_begins_with_what_it_was_told(engine: Engine) -> None:
    file = File(engine, loaded(), loaded("two"))
    before = [file.starts_with("strategy")[1], file.starts_with("track_interval")[1]]
    await file.edit(cached(strategy="ExtraBuffer", trackInterval=512), loaded("two"))
    assert file.starts_with("strategy") == ["ExtraBuffer", before[0]]
    assert file.starts_with("track_interval") == [512, before[1]]
    engine.refusals = [(409, "no")]
    await file.edit(cached(strategy="NoBuffer"), loaded("two"))
    assert file.starts_with("strategy")[0] == "ExtraBuffer"


async def test_extra_arguments_keep_the_last_word_after_an_edit(engine: Engine) -> None:
    extra = {"extraArgs": ["--strategy", "ExtraBuffer"]}
    file = File(engine, loaded(engine=extra))
    await file.edit(loaded(engine=extra, stateCache={"strategy": "NoBuffer"}))
    unit = file.units[0]
    assert unit.commands()[unit.engines[0].name].argv[-2:] == ("--strategy", "ExtraBuffer")


async def test_auto_is_sent_as_the_strategy_that_the_planner_chose(engine: Engine) -> None:
    file = File(engine, cached(strategy="NoBuffer"))
    await file.edit(cached(strategy="Auto"))
    assert [each["strategy"] for each in engine.taken] == [replan(loaded())[0].outcome.plan.strategy]  # type: ignore[union-attr]


async def test_saving_the_same_again_does_nothing(engine: Engine) -> None:
    file = File(engine, loaded())
    await file.edit(cached(strategy="NoBuffer"))
    assert await file.edit(cached(strategy="NoBuffer")) == ["nothing that runs is affected"]
    assert len(engine.taken) == 1


async def test_a_live_and_a_later_field_in_one_edit_are_both_said(engine: Engine) -> None:
    file = File(engine, loaded())
    lines = await file.edit(cached(trackInterval=1024, minCheckpointDepth=64))
    assert [each["trackInterval"] for each in engine.taken] == [1024]
    assert lines[1:] == ["one: spec.stateCache.minCheckpointDepth: takes effect at the next start"]


@pytest.mark.parametrize("status", [404, 409, 500])
async def test_a_refusal_is_shown_and_the_next_edit_tries_again(engine: Engine, status: int) -> None:
    file = File(engine, loaded())
    engine.refusals = [(status, "not now")]
    [line] = await file.edit(cached(strategy="NoBuffer"))
    assert (
        line == f"one: the engine did not switch to strategy NoBuffer: the engine answered {status}: not now"
    )
    assert engine.taken == []
    lines = await file.edit(cached(strategy="NoBuffer"))
    assert "now runs NoBuffer" in lines[0]
    assert len(engine.taken) == 1


async def test_a_refused_strategy_that_is_taken_back_needs_no_call(engine: Engine) -> None:
    file = File(engine, loaded())
    engine.refusals = [(409, "no")]
    await file.edit(cached(strategy="NoBuffer"))
    assert await file.edit(loaded()) == ["nothing that runs is affected"]
    assert engine.taken == []


async def test_later_fields_beside_a_refused_strategy_are_said_once(engine: Engine) -> None:
    file = File(engine, loaded())
    engine.refusals = [(409, "no"), (409, "no")]
    first = await file.edit(cached(strategy="NoBuffer", minCheckpointDepth=64))
    assert "one: spec.stateCache.minCheckpointDepth: takes effect at the next start" in first
    [only] = await file.edit(cached(strategy="NoBuffer", minCheckpointDepth=64))
    assert "did not switch to strategy" in only


async def test_an_engine_that_is_away_is_named() -> None:
    file = File(Engine("http://127.0.0.1:9"), loaded())
    [line] = await file.edit(cached(strategy="NoBuffer"))
    assert line.startswith(
        "one: the engine did not switch to strategy NoBuffer: the engine cannot be reached: "
    )


async def test_a_strategy_that_does_not_fit_is_told_with_the_numbers_and_not_sent(engine: Engine) -> None:
    file = File(engine, loaded())
    tight = loaded(memory={"arena": "30Mi"}, stateCache={"strategy": "NoBuffer"})
    lines = await file.edit(tight)
    assert engine.taken == []
    assert "one sequence of 4096 tokens needs" in lines[0]
    assert "one: spec.memory.arena: takes effect at the next start" in lines


async def test_a_file_with_a_mistake_changes_nothing_and_its_repair_is_taken_over(engine: Engine) -> None:
    file = File(engine, loaded())
    file.objects = InvalidInput("f.yaml: spec.a: unknown\nf.yaml: spec.b: unknown")
    assert await file.look() == [
        "f.yaml: spec.a: unknown", "f.yaml: spec.b: unknown", "nothing that runs is changed"
    ]  # fmt: skip
    assert engine.taken == []
    await file.edit(cached(strategy="NoBuffer"))
    assert len(engine.taken) == 1


async def test_an_object_that_was_planned_only_is_no_news_when_another_changes(engine: Engine) -> None:
    planned = loaded("planned", mode="Plan")
    file = File(engine, loaded(), planned)
    lines = await file.edit(cached(strategy="NoBuffer"), planned)
    assert [line.partition(" with ")[0] for line in lines] == ["one: now runs NoBuffer"]


async def test_the_strategy_of_an_object_that_does_not_run_waits_for_the_next_start(engine: Engine) -> None:
    file = File(engine, loaded(), loaded("planned", mode="Plan"))
    changed = loaded("planned", mode="Plan", stateCache={"strategy": "NoBuffer"})
    assert await file.edit(loaded(), changed) == [
        "planned: spec.stateCache.strategy: takes effect at the next start"
    ]
    assert engine.taken == []


async def test_an_object_added_while_it_runs_may_be_edited_further(engine: Engine) -> None:
    file = File(engine, loaded())
    assert await file.edit(loaded(), loaded("two")) == [
        "two: the object was added: takes effect at the next start"
    ]
    assert await file.edit(loaded(), loaded("two", stateCache={"strategy": "NoBuffer"})) == [
        "two: spec.stateCache.strategy: takes effect at the next start"
    ]
    assert await file.edit(loaded()) == ["two: the object was removed: it does not run"]
    assert engine.taken == []


async def test_a_running_object_that_is_taken_out_and_put_back_is_still_the_same(engine: Engine) -> None:
    file = File(engine, loaded(), loaded("two"))
    assert await file.edit(loaded("two")) == ["one: the object was removed: takes effect at the next start"]
    assert await file.edit(loaded(), loaded("two")) == ["one: the object is back and equals the running one"]
    await file.edit(cached(strategy="NoBuffer"), loaded("two"))
    assert len(engine.taken) == 1


async def test_a_field_that_is_set_back_is_as_it_runs_again(engine: Engine) -> None:
    file = File(engine, loaded())
    await file.edit(cached(minCheckpointDepth=64))
    assert await file.edit(loaded()) == ["one: spec.stateCache.minCheckpointDepth: again as running"]
    assert await file.edit(loaded()) == ["nothing that runs is affected"]


async def test_an_object_that_comes_back_changed_is_compared_with_what_runs(engine: Engine) -> None:
    file = File(engine, loaded(), loaded("two"))
    await file.edit(loaded("two"))
    lines = await file.edit(cached(strategy="NoBuffer", minCheckpointDepth=64), loaded("two"))
    assert "now runs NoBuffer" in lines[0]
    assert lines[1:] == ["one: spec.stateCache.minCheckpointDepth: takes effect at the next start"]


async def test_an_edit_of_one_pool_goes_to_its_engine_alone(engine: Engine) -> None:
    def pools(strategy: str, replicas: int = 1) -> LoadedDeployment:
        decode = {"stateCache": {"strategy": strategy}, "replicas": replicas}
        return loaded(disaggregation={"decode": decode, "prefill": {"stateCache": {"strategy": "NoBuffer"}}})

    file = File(engine, pools("ExtraBuffer"))
    lines = await file.edit(pools("NoBuffer", replicas=2))

    assert [line.partition(" with ")[0] for line in lines] == [
        "one-decode: now runs NoBuffer",
        "one: spec.disaggregation.decode.replicas: takes effect at the next start",
    ]
    assert [each["strategy"] for each in engine.taken] == ["NoBuffer"]
    assert file.starts_with("strategy") == ["NoBuffer", "NoBuffer"]
    assert await file.look() == ["nothing that runs is affected"]


def test_a_file_that_is_gone_is_said_at_the_second_look_and_so_is_its_return() -> None:
    here, gone = FileStamp(Path("f"), "1"), FileStamp(Path("f"), "")
    absent = MissingFiles()
    assert [absent.lines([each]) for each in (here, gone, here, gone)] == [[], [], [], []]
    assert absent.lines([gone]) == ["f can no longer be read: nothing that runs is changed"]
    assert absent.lines([gone]) == []
    assert absent.lines([here]) == ["f is back"]


async def test_a_model_that_cannot_be_read_again_is_said_and_nothing_is_sent(engine: Engine) -> None:
    def failing(_: LoadedDeployment) -> list[PlannedPool]:
        raise RunFailed("the free memory cannot be read")

    file = File(engine, loaded(), replan=failing)
    assert await file.edit(cached(trackInterval=64)) == ["one: the free memory cannot be read"]
    assert engine.taken == []
