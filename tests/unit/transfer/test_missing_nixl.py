"""NIXL is optional: an engine without it refuses to use it, by its name and with what to do."""

import sys

import pytest

from mamba_transfer.nixl_transport import NixlMissing, NixlTransport


def test_an_engine_without_the_package_refuses_the_transport_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pytest.raises(NixlMissing, match=r"mambaserve\[nixl\]"):
        NixlTransport("engine-1", memoryview(bytearray(16)))
