"""The clock of tests whose API server lives in their own process."""

import asyncio
from typing import Any

import pytest

from virtual_loop import loop_factories

OVER_SOCKETS = ("test_client", "test_client_faults")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Any:
    """Run clients and servers with sockets on virtual time: load cannot delay anything."""
    return loop_factories(item) if item.path.stem in OVER_SOCKETS else {"real": asyncio.new_event_loop}
