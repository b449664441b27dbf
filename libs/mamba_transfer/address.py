"""Addresses of transfer servers: an IP address and a port."""

import ipaddress
from typing import NamedTuple, Self

from mamba_transfer.errors import UnusableAddress


class Address(NamedTuple):
    """IP address and port on which a transfer server listens.

    The host is an IP address and no name, because looking up a name could take longer than a deadline allows.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address in `text`, such as 10.0.0.7:9000 or [fd00::7]:9000. Raises UnusableAddress."""
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
    """Another engine to fetch from: the address of its transfer server, and which run of its process."""

    address: Address
    incarnation: str
