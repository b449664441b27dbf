"""The set of models: who is woken, and what a model that cannot start means for the others."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from random import Random

import pytest

from mamba_edge.errors import ModelNotFound
from mamba_gateway.admission.admission import Admission
from mamba_gateway.endpoints.pool import ProbeReport
from mamba_gateway.errors import NoEndpoint
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.models.model_parts import ModelParts, model_running
from mamba_gateway.models.model_set import ModelSet, closing
from mamba_gateway.models.models_file import model_settings
from mamba_gateway.settings import GatewaySettings
from mamba_settings.models_document import ModelEntry, ModelsDocument

NOWHERE = "http://127.0.0.1:9"


class Bench:
    """A set of models whose engines answer nothing, and which models were woken."""

    def __init__(self) -> None:
        self.parts: dict[str, ModelParts] = {}
        self.woken: list[str] = []
        self.broken: set[str] = set()
        settings = GatewaySettings(models_file="models.json")
        metrics = GatewayMetrics(lambda: ())

        @contextlib.asynccontextmanager
        async def start(entry: ModelEntry, on_change: Callable[[], None]) -> AsyncIterator[ModelParts]:
            if entry.name in self.broken:
                raise OSError("no cluster")
            own = model_settings(settings, entry)
            async with model_running(own, None, Random(1), lambda *_: metrics, on_change) as parts:
                self.parts[entry.name] = parts
                yield replace(parts, wake=lambda: self.woken.append(entry.name))

        self.models = ModelSet(settings, Admission(2, 2, 1.0, lambda: 0.0), start)

    async def serve(self, *entries: dict[str, object]) -> None:
        models = [{"settings": {"backend": [NOWHERE]}, **entry} for entry in entries]
        await self.models.apply(ModelsDocument.model_validate({"models": models}))

    def ready(self, name: str) -> None:
        self.parts[name].pool.report(NOWHERE, ProbeReport(ready=True, models=({"id": name},)))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    async with closing(bench.models):
        yield bench


async def test_a_request_that_a_fallback_takes_wakes_the_model_that_it_names_and_no_other(
    bench: Bench,
) -> None:
    await bench.serve({"name": "large", "fallbacks": ["none", "small"]}, {"name": "none"}, {"name": "small"})
    assert (bench.models.choose("large", "k").model, bench.woken) == ("large", [])
    bench.ready("small")
    assert (bench.models.choose("large", "k").model, bench.woken) == ("small", ["large"])
    assert bench.models.choose("small", "k").headers == []
    bench.ready("large")
    assert (bench.models.choose("large", "k").model, bench.woken) == ("large", ["large"])


async def test_a_model_that_cannot_start_is_tried_again_and_leaves_the_others_alone(bench: Bench) -> None:
    await bench.serve({"name": "a"})
    present = bench.parts["a"]
    bench.broken = {"b"}
    await bench.serve({"name": "a", "aliases": ["x"]}, {"name": "b"})
    assert bench.models.incomplete
    assert bench.models.choose("x", "k").lane is present.lane
    with pytest.raises(NoEndpoint, match="could not begin to serve 'b'"):
        bench.models.choose("b", "k")
    assert [card["state"] for card in bench.models.cards("k")] == ["starting", "starting", "stopped"]
    bench.broken = set()
    await bench.serve({"name": "b"})
    assert (bench.models.incomplete, bench.models.choose("b", "k").model) == (False, "b")
    with pytest.raises(ModelNotFound):
        bench.models.choose("a", "k")


async def test_an_adapter_is_served_by_the_engines_of_its_model_and_waited_for(bench: Bench) -> None:
    sql = {"name": "sql", "parent": "base", "aliases": ["analyst"], "settings": {}}
    await bench.serve({"name": "base"})
    lane = bench.parts["base"].lane
    await bench.serve({"name": "base"}, sql)
    choice = bench.models.choose("analyst", "k")
    assert (choice.lane, choice.model, choice.engine_name) == (lane, "sql", "sql")
    assert bench.parts["base"].pool.may_serve("sql")
    assert {card["id"]: card.get("parent") for card in bench.models.cards("k")} == {
        "base": None, "sql": "base", "analyst": "base",
    }  # fmt: skip
    assert bench.models.choose(None, "k").model == "base"
    await bench.serve({"name": "base"})
    assert not bench.parts["base"].pool.may_serve("sql")
    with pytest.raises(ModelNotFound):
        bench.models.choose("sql", "k")


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        ({"name": "sql", "parent": "nobody"}, "is no name of a model with engines of its own"),
        ({"name": "sql", "parent": "base", "settings": {"max_queue": 1}}, "has no settings of its own"),
    ],
)
def test_an_adapter_of_no_model_is_refused(adapter: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ModelsDocument.model_validate({"models": [{"name": "base"}, adapter]})
