"""NIXL is optional: an engine without it refuses to use it, by its name and with what to do."""

import sys

import pytest

from mamba_server.engine.transfers.transports import TransfersUnusable, check_transport
from mamba_settings.engine_settings import EngineSettings
from mamba_transfer.nixl_transport import NixlTransport, NixlUnusable


def test_an_engine_without_the_package_refuses_the_transport_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pytest.raises(NixlUnusable, match=r"mambaserve\[nixl\]"):
        NixlTransport("engine-1", memoryview(bytearray(16)))


def test_an_engine_without_the_package_ends_before_it_loads_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    check_transport(EngineSettings(model="m", transfer_port=0))
    with pytest.raises(TransfersUnusable, match=r"--transfer-transport nixl: .*mambaserve\[nixl\]") as caught:
        check_transport(EngineSettings(model="m", transfer_port=0, transfer_transport="nixl"))
    assert caught.value.exit_code == 2
