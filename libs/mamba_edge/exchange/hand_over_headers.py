"""Headers by which a gateway moves the state of a prompt between engines: names, form and parser. Pure.

Gateways write them and engines read them; both know the form from here alone.
"""

import re
from typing import NamedTuple

HAND_OVER_HEADER = b"x-mambaserve-hand-over"
"""Header by which a gateway moves a prompt's state. `export` = compute the prompt and keep its state;
`address=…;incarnation=…;export=…;depth=…` = fetch this state; `release=…` = end an export."""
PEER_HEADER = b"x-mambaserve-peer"
"""Header with `address=…;incarnation=…;depth=…` of an engine that has more of the prompt cached."""
EXPORT = b"export"
RELEASE = "/v1/handover"
"""Path to which a gateway sends `release=…`."""
_ADDRESS = r"(?:\[[0-9a-fA-F:.]{2,45}\]|[0-9.]{7,15}):[0-9]{1,5}"
_NAME = r"[A-Za-z0-9._-]{1,64}"
_address, _name = re.compile(_ADDRESS), re.compile(_NAME)
_source = re.compile(
    rf"address=(?P<address>{_ADDRESS});incarnation=(?P<incarnation>{_NAME})"
    rf"(?:;export=(?P<export>{_NAME}))?;depth=(?P<depth>[1-9][0-9]{{0,8}})".encode()
)
_release = re.compile(rf"release=({_NAME})".encode())


class SourceName(NamedTuple):
    """Names a state in the cache of an engine, in headers between gateways and engines."""

    address: str
    """Address of the engine's transfer server: IP:PORT."""
    incarnation: str
    """Name of the engine process."""
    depth: int
    """Number of tokens that the state covers."""
    export: str = ""
    """Name of the export; "" = the state is looked up by its prompt."""

    def header(self) -> tuple[bytes, bytes]:
        """Return the header, with its name, that sends an engine to the state."""
        export = f"export={self.export};" if self.export else ""
        value = f"address={self.address};incarnation={self.incarnation};{export}depth={self.depth}"
        return HAND_OVER_HEADER if self.export else PEER_HEADER, value.encode()


def parse_source(header: bytes, value: bytes) -> SourceName | None:
    """Return the state that `header` names; None if the value has not the form of this header.

    The form of `HAND_OVER_HEADER` has an export, the form of `PEER_HEADER` has none.
    """
    match = _source.fullmatch(value)
    if match is None or (match["export"] is not None) != (header == HAND_OVER_HEADER):
        return None
    address = match["address"].decode()
    if not 0 < int(address.rpartition(":")[2]) <= 65535:
        return None
    export = (match["export"] or b"").decode()
    return SourceName(address, match["incarnation"].decode(), int(match["depth"]), export)


def release_header(export: str) -> tuple[bytes, bytes]:
    """Return the header, with its name, that ends an export."""
    return HAND_OVER_HEADER, f"release={export}".encode()


def parse_release(value: bytes) -> str | None:
    """Return the export that a value of the form `release=…` names; None = it has another form."""
    match = _release.fullmatch(value)
    return None if match is None else match[1].decode()


def is_address(text: str) -> bool:
    """Return whether a header can carry `text` as an address."""
    return _address.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Return whether a header can carry `text` as the name of an incarnation or export."""
    return _name.fullmatch(text) is not None
