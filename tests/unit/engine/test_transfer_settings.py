"""Settings of transfers and tiers that cannot work are refused at the start, with what to do."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import mamba_server
from engines import make_engine
from mamba_server.engine.boot import Engine
from mamba_server.engine.transfers.start import start_transfers
from mamba_server.engine.transfers.transports import TransfersUnusable
from mamba_settings.engine_settings import EngineSettings


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"role": "prefill"}, "set transfer_port"),
        ({"role": "decode"}, "set transfer_port"),
        ({"disk_cache": "/tmp/x"}, "set both"),
        ({"disk_cache_bytes": "1Gi"}, "set both"),
        ({"transfer_port": 0, "prefix_caching": False}, "prefix_caching is off"),
        ({"host_memory": "1Gi", "prefix_caching": False}, "prefix_caching is off"),
        ({"transfer_lease": 0}, "greater than 0"),
        ({"transfer_transport": "nixl"}, "set transfer_port"),
        ({"transfer_transport": "nixl", "transfer_port": 0, "device": "cuda"}, "refused on a GPU"),
        ({"transfer_transport": "rdma", "transfer_port": 0}, "'sockets' or 'nixl'"),
    ],
)
def test_a_combination_that_cannot_work_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        EngineSettings(model="m", **values)


def test_a_unified_engine_moves_nothing_by_default() -> None:
    settings = EngineSettings(model="m")
    assert (settings.role, settings.transfer_port, settings.disk_cache, settings.host_memory) == (
        "unified", None, None, None,
    )  # fmt: skip


@pytest.fixture
def shipped_engine() -> Iterator[Engine]:
    assert mamba_server.__file__ is not None
    engine = make_engine(Path(mamba_server.__file__).parent / "builtin" / "tiny-recall")
    yield engine
    engine.stream.close()


def test_a_port_that_is_taken_is_named(shipped_engine: Engine) -> None:
    first, second = shipped_engine, EngineSettings(model="m", transfer_port=0)

    def begin(settings: EngineSettings) -> Any:
        return start_transfers(
            first.core, settings, first.stream, first.memory, first.state_layout, lambda: None
        )

    endpoint = begin(second)
    port = int(endpoint.address.rpartition(":")[2])
    transfers = first.core.transfers
    try:
        with pytest.raises(TransfersUnusable, match="--transfer-port"):
            begin(EngineSettings(model="m", transfer_port=port))
        with pytest.raises(TransfersUnusable, match="--transfer-host"):
            begin(EngineSettings(model="m", transfer_port=0, transfer_host="no.such.host"))
    finally:
        transfers.close(save=True)


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_an_engine_that_listens_everywhere_names_the_address_of_its_pod(
    shipped_engine: Engine, monkeypatch: pytest.MonkeyPatch, everywhere: str
) -> None:
    engine, settings = shipped_engine, EngineSettings(model="m", transfer_port=0, transfer_host=everywhere)
    for pod, address in (("10.1.2.3", "10.1.2.3:"), ("fd00::7", "[fd00::7]:")):
        monkeypatch.setenv("POD_IP", pod)
        endpoint = start_transfers(
            engine.core, settings, engine.stream, engine.memory, engine.state_layout, lambda: None
        )
        assert engine.core.transfers is not None
        port = int(endpoint.address.rpartition(":")[2])
        # Pods of a cluster with IPv4 reach it, too.
        socket.create_connection(("127.0.0.1", port)).close()
        engine.core.transfers.close(save=True)
        assert endpoint.address.startswith(address)
