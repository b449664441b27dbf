"""Listening sockets and their URLs."""

import socket

import pytest

from ipv6 import has_ipv6
from mamba_edge.listener import CannotListen, authority, is_loopback, listen, url_of


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::"])
def test_port_0_takes_a_free_port_that_the_url_tells(host: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


@pytest.mark.parametrize(
    ("host", "said"), [("fd00::7", "[fd00::7]:8000"), ("10.0.0.7", "10.0.0.7:8000"), ("m.svc", "m.svc:8000")]
)
def test_an_address_of_ipv6_is_told_in_brackets(host: str, said: str) -> None:
    assert authority(host, 8000) == said


def test_every_address_is_of_both_families() -> None:
    with listen("::", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", *(["::1"] if has_ipv6() else [])):
            socket.create_connection((host, port), timeout=5).close()


def test_every_address_of_a_kernel_without_ipv6_is_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen("::", 0) as listener:
        assert listener.family == socket.AF_INET
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5).close()


@pytest.mark.parametrize(
    ("host", "option"), [("127.0.0.1", "--port"), ("no.such.host.invalid", "--host"), ("192.0.2.1", "--host")]
)
def test_an_address_that_cannot_be_had_is_told(host: str, option: str) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"{host}:{port}") as caught:
            listen(host, port)
        assert caught.value.option == option


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_an_address_of_ipv6_that_cannot_be_had_is_told_in_brackets() -> None:
    with pytest.raises(CannotListen, match=r"cannot listen on \[2001:db8::1\]:80: "):
        listen("2001:db8::1", 80)


def test_the_url_of_a_socket_of_ipv6_has_brackets() -> None:
    try:
        bound = listen("::1", 0)
    except CannotListen:
        pytest.skip("::1 is not an address of this machine")
    with bound:
        assert url_of(bound) == f"http://[::1]:{bound.getsockname()[1]}"
