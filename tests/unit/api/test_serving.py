"""Admission: what one request may ask for, and how many may wait."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from mamba_edge.errors import InvalidRequest, ModelNotFound, TooManyRequests
from mamba_server.api.drain import Drain
from mamba_server.api.engine_link.engine_client import EngineClient
from mamba_server.api.metrics.request_metrics import RequestMetrics
from mamba_server.api.serving import MAX_SEQUENCES, Serving
from mamba_settings.engine_settings import EngineSettings


@dataclass
class Waiting:
    """An engine with so many requests waiting."""

    waiting: int


def serving(waiting: int = 0) -> Serving:
    settings = EngineSettings(model="m", max_waiting_requests=16)
    engine = cast("EngineClient", Waiting(waiting))
    return Serving(settings, "m", engine, RequestMetrics(CollectorRegistry(), "m"), Drain())


@pytest.mark.parametrize(("waiting", "prompts"), [(0, 16), (15, 1), (8, 8)])
def test_up_to_the_limit_prompts_may_wait(waiting: int, prompts: int) -> None:
    with serving(waiting).admit(prompts, 1):
        pass


@pytest.mark.parametrize(("waiting", "prompts"), [(16, 1), (1, 16), (9, 8)])
def test_beyond_it_the_client_is_told_to_come_back(waiting: int, prompts: int) -> None:
    with pytest.raises(TooManyRequests) as caught, serving(waiting).admit(prompts, 1):
        pass
    assert caught.value.headers() == {"retry-after": "1"}


def test_a_request_that_could_never_be_admitted_is_wrong_rather_than_early() -> None:
    with pytest.raises(InvalidRequest) as caught, serving().admit(17, 1):
        pass
    assert caught.value.param == "prompt"


def test_the_sequences_of_one_request_are_bounded() -> None:
    with serving().admit(8, MAX_SEQUENCES // 8):
        pass
    with pytest.raises(InvalidRequest) as caught, serving().admit(9, 128):
        pass
    assert caught.value.param == "n"


def test_what_is_being_prepared_waits_too_and_makes_room_when_it_is_given_up() -> None:
    made = serving(waiting=8)
    with made.admit(8, 1), pytest.raises(TooManyRequests), made.admit(1, 1):
        pass
    with made.admit(8, 1):
        pass


@pytest.mark.parametrize("name", [None, "", "m"])
def test_the_served_model_or_none_is_right(name: Any) -> None:
    serving().check_model(name)


def test_another_model_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="serves 'm'"):
        serving().check_model("x")
