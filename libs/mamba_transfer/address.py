"""Addresses of transfer servers: an IP address and a port."""

import ipaddress
from typing import NamedTuple, Self

from mamba_transfer.errors import UnusableAddress


class Address(NamedTuple):
    """The place where a transfer server listens.

    The host is an IP address, so that no look-up of a name outlasts a deadline.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address `text`: 10.0.0.7:9000 or [fd00::7]:9000. Raises UnusableAddress."""
        host, _, port = text.rpartition(":")
        try:
            number = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
            if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
                raise ValueError(f"{port!r} is no port")
            if (number.version == 6) != host.startswith("["):
                raise ValueError("an IPv6 address stands in brackets")
        except ValueError as error:
            raise UnusableAddress(
                f"{text!r} is no address of a transfer server ({error}): give IP:PORT, as in 10.0.0.7:9000"
            ) from error
        return cls(str(number), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Peer(NamedTuple):
    """One life of the engine behind an address."""

    address: Address
    incarnation: str
