"""Ports for servers of tests."""

from pathlib import Path

import pytest

from testcluster.free_ports import free_ports

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not OUTGOING.exists(), reason="the range of outgoing connections is read from Linux")
def test_no_outgoing_connection_takes_a_port_before_its_server_binds_it() -> None:
    ports = free_ports(50)

    assert len(set(ports)) == 50
    # A Redis Cluster's nodes listen on port + 10,000, too.
    assert max(ports) + 10_000 < int(OUTGOING.read_text().split()[0])
