"""A change of adapters reaches running engines: no pod is replaced, and nothing served before is lost."""

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from fake_cluster import FakeCluster, Watched
from mamba_api import names
from mamba_operator.children.adapter_updates import ADAPTER_RETRY_SECONDS
from mamba_operator.children.admin_key import AdminKey
from mamba_operator.children.engine_admin import EngineAccess
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from operator_objects import NOW, fitting_owner, nano_config
from virtual_time import in_virtual_time

KEY = Key("models", "nano")
OLD = (NOW - timedelta(days=1)).isoformat()
SQL, NEW_SQL, FRENCH = "pvc://files/sql", "pvc://files/sql-v2", "pvc://files/french"
BROKEN = "pvc://files/broken"


class Engine:
    """The admin port of one engine that holds adapters."""

    def __init__(self, adapters: Mapping[str, str], places: int = 4) -> None:
        self.adapters, self.places = {**adapters}, places
        self.calls: list[str] = []
        self.busy: set[str] = set()
        """Adapters whose place is not free when they are unloaded, since a request uses them."""
        self.hangs = asyncio.Event()
        self.hangs.set()

    async def call(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Any]:
        if body is None:
            return 200, {"adapters": [{"name": name, "path": uri} for name, uri in self.adapters.items()]}
        name = body["lora_name"]
        if path.endswith("unload_lora_adapter"):
            self.calls.append(f"unload {name}")
            return (200, {}) if self.adapters.pop(name, None) else (404, "no such adapter")
        self.calls.append(f"load {name}")
        await self.hangs.wait()
        if body["lora_path"] == BROKEN:
            return 400, "the adapter was trained for another model"
        if len({*self.adapters} | self.busy) >= self.places:
            return 409, "there are places for no more"
        self.adapters[name] = body["lora_path"]
        return 200, {}


class World:
    """A served deployment with adapters, and an operator that reaches its engines."""

    def __init__(self, **adapters: str) -> None:
        self.cluster = FakeCluster(self.owner(adapters))
        self.engines: dict[str, Engine] = {}
        self.now = NOW
        self.again = self.operator()

    def owner(self, adapters: Mapping[str, str], **model: Any) -> Manifest:
        listed = [{"name": name, "uri": uri} for name, uri in adapters.items()]
        return fitting_owner(
            model={"uri": "pvc://files/nano", "config": nano_config(), "adapters": listed, **model}
        )

    def operator(self) -> Reconciler:
        return Reconciler(
            self.cluster, OperatorMetrics(), PassSettings("test", resync=lambda: 300.0),
            indices=Watched(self.cluster), engines=EngineAccess(AdminKey(b"k" * 32), call=self.call),
            runtime=Runtime(now=lambda: self.now),
        )  # fmt: skip

    async def call(
        self, address: str, token: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, Any]:
        assert token
        return await self.engines[address].call(path, body)

    async def passes(self, count: int = 4) -> None:
        for _ in range(count):
            await self.again(KEY)

    def change(self, **adapters: str) -> None:
        old = self.cluster.find("MambaDeployment", "nano")
        assert old is not None
        self.cluster.put({**self.owner(adapters), "status": old["status"]})
        self.now += timedelta(seconds=10)

    @property
    def template(self) -> Manifest:
        deployment = self.cluster.find("Deployment", "nano-engine")
        assert deployment is not None
        template: Manifest = deployment["spec"]["template"]
        return template

    @property
    def gateway(self) -> Manifest:
        deployment = self.cluster.find("Deployment", "nano")
        assert deployment is not None
        template: Manifest = deployment["spec"]["template"]
        return template

    @property
    def names_for_gateways(self) -> str:
        """Text of the file that gateways read, by the volume that they mount."""
        [volume] = [one for one in self.gateway["spec"]["volumes"] if one["name"] == "adapter-names"]
        config = self.cluster.find("ConfigMap", volume["configMap"]["name"])
        assert config is not None
        return str(config["data"][volume["configMap"]["items"][0]["key"]])

    @property
    def of_new_engines(self) -> list[str]:
        """Adapters with which an engine would start now."""
        config = self.cluster.find("ConfigMap", "nano-engine")
        assert config is not None
        return list(json.loads(config["data"]["engine.json"]).get("lora", ()))

    def condition(self, type_: str) -> tuple[str, str, str]:
        status = (self.cluster.find("MambaDeployment", "nano") or {})["status"]
        [condition] = [each for each in status["conditions"] if each["type"] == type_]
        return condition["status"], condition["reason"], condition["message"]

    async def serve(self, *engines: Engine) -> None:
        await self.passes(2)
        for number, engine in enumerate(engines, 1):
            self.engines[f"10.0.0.{number}"] = engine
            self.cluster.put(
                {
                    "kind": "Pod",
                    "metadata": {
                        "name": f"nano-engine-{number}", "namespace": "models", "creationTimestamp": OLD,
                        "labels": self.template["metadata"]["labels"],
                    },
                    "status": {
                        "phase": "Running", "podIP": f"10.0.0.{number}",
                        "conditions": [{"type": "Ready", "status": "True"}],
                        "containerStatuses": [{"name": "engine", "ready": True, "restartCount": 0}],
                    },
                }
            )  # fmt: skip
        for name in ("nano-engine", "nano"):
            child = self.cluster.find("Deployment", name)
            assert child is not None
            count = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "observedGeneration": 1}
            self.cluster.put({**child, "status": count})
        await self.passes(2)


@in_virtual_time
async def test_a_change_of_adapters_reaches_each_engine_and_replaces_no_pod() -> None:
    world, engines = World(sql=SQL, old=FRENCH), [Engine({"sql": SQL, "old": FRENCH}) for _ in range(2)]
    await world.serve(*engines)
    template, gateway = world.template, world.gateway
    assert engines[0].calls == [], "nothing has changed yet"

    world.change(sql=NEW_SQL, french=FRENCH)
    await world.passes()

    for engine in engines:
        assert engine.adapters == {"sql": NEW_SQL, "french": FRENCH}
        assert engine.calls == ["load sql", "load french", "unload old"], "what served goes last"
    assert world.template == template
    assert world.gateway == gateway
    assert world.names_for_gateways == "sql\nfrench\n"
    assert world.of_new_engines == [f"sql={NEW_SQL}", f"french={FRENCH}"]
    assert world.condition("Progressing")[1] != "SwitchingAdapters"
    calls = [*engines[0].calls]
    world.again = world.operator()
    await world.passes()
    assert engines[0].calls == calls, "an operator that starts again changes nothing"


@in_virtual_time
async def test_an_adapter_that_cannot_be_loaded_is_named_with_its_engine_and_nothing_is_lost() -> None:
    world, engine = World(sql=SQL), Engine({"sql": SQL})
    await world.serve(engine)
    world.change(french=FRENCH, wrong=BROKEN)
    await world.passes()

    assert engine.adapters == {"sql": SQL, "french": FRENCH}, "requests for the earlier adapters go on"
    assert world.of_new_engines == [f"sql={SQL}"], "an engine that starts again serves what served before"
    status, reason, message = world.condition("Degraded")
    assert (status, reason) == ("True", "AdapterNotLoaded")
    assert "engine nano-engine-1: adapter wrong: the adapter was trained for another model" in message
    assert world.condition("Progressing")[:2] == ("True", "SwitchingAdapters")
    assert world.condition("UpToDate")[0] == "False"

    world.change(sql=SQL)
    await world.passes()
    assert engine.adapters == {"sql": SQL}, "what the failed change had loaded is gone as well"
    assert world.condition("Degraded")[1] == "AsExpected"


@in_virtual_time
async def test_an_adapter_is_unloaded_first_only_where_no_place_is_free() -> None:
    world, engine = World(sql=SQL), Engine({"sql": SQL}, places=1)
    engine.busy = {"sql"}
    await world.serve(engine)
    world.change(french=FRENCH)
    await world.passes()
    assert engine.calls == ["load french", "unload sql", "load french"]
    assert world.condition("Degraded")[1] == "AsExpected", "its last request has not ended yet"
    assert "adapter french" in world.condition("Progressing")[2]

    engine.busy.clear()
    await asyncio.sleep(ADAPTER_RETRY_SECONDS)
    await world.passes()
    assert engine.adapters == {"french": FRENCH}
    assert world.of_new_engines == [f"french={FRENCH}"]


@in_virtual_time
async def test_an_engine_that_loads_for_long_delays_neither_the_pass_nor_other_engines() -> None:
    world, engines = World(sql=SQL), [Engine({"sql": SQL}), Engine({"sql": SQL})]
    await world.serve(*engines)
    engines[0].hangs.clear()
    world.change(sql=NEW_SQL)
    await world.passes()
    assert engines[1].adapters == {"sql": NEW_SQL}
    assert world.of_new_engines == [f"sql={NEW_SQL}"]
    assert world.condition("Progressing")[1] == "SwitchingAdapters"
    engines[0].hangs.set()
    await world.passes()
    assert engines[0].adapters == {"sql": NEW_SQL}
    assert world.condition("Progressing")[1] != "SwitchingAdapters"


@in_virtual_time
async def test_more_places_than_engines_have_need_new_pods() -> None:
    world, engine = World(sql=SQL), Engine({"sql": SQL})
    await world.serve(engine)
    revision = world.template["metadata"]["labels"][names.LABEL_REVISION]
    world.change(**{f"sql{number}": SQL for number in range(3)})
    await world.passes()
    assert world.template["metadata"]["labels"][names.LABEL_REVISION] == revision, "three of four places"
    world.change(**{f"sql{number}": SQL for number in range(4)})
    calls = [*engine.calls]
    await world.passes()
    assert world.template["metadata"]["labels"][names.LABEL_REVISION] != revision
    assert engine.calls == calls


@in_virtual_time
async def test_a_newer_operator_asks_no_engine_of_an_older_one() -> None:
    world = World(sql=SQL)
    await world.serve()
    config = world.cluster.find("ConfigMap", "nano-engine")
    assert config is not None
    del config["metadata"]["annotations"][names.ANNOTATION_ADAPTERS]
    world.cluster.put(config)
    silent = Engine({})
    world.again = world.operator()
    await world.serve(silent)
    assert silent.calls == [], "it may be too old to answer"
    assert world.condition("Progressing")[1] != "SwitchingAdapters"
