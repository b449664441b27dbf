"""Frozen endpoints for the pure parts."""

from collections.abc import Callable
from typing import Any

import pytest

from mamba_gateway.endpoints import Endpoint


@pytest.fixture
def endpoint() -> Callable[..., Endpoint]:
    """An endpoint that is well and idle, but for what is said."""

    def make(name: str, **changes: Any) -> Endpoint:
        fields: dict[str, Any] = {
            "url": f"http://{name}",
            "name": name,
            "ready": True,
            "draining": False,
            "models": frozenset({"m"}),
            "running": 0,
            "waiting": 0,
            "kv_usage": 0.0,
            "in_flight": 0,
            "in_flight_at_report": 0,
        }
        return Endpoint(**{**fields, **changes})

    return make
