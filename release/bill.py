"""The bill of materials of a release, as CycloneDX: what the locks of the images pin, with their hashes.

`build` calls it. Images have bills of their own, with Debian's packages (`images.bill`).
"""

import re
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

LOCKS = ("control", "server")
"""Locks of requirements/ whose packages are shipped."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass
class Pin:
    """One pinned package."""

    hashes: set[str] = field(default_factory=set)
    """SHA-256 of each file that is accepted."""
    locks: set[str] = field(default_factory=set)
    """Locks that pin it."""


def bill_of_materials(requirements: Path, version: str, seconds: int) -> str:
    """Return CycloneDX 1.6 as JSON, the same for the same locks.

    Args:
        requirements: the folder with the locks.
        version: version of the release.
        seconds: time of the commit, in seconds since 1970.
    """
    own = Component(
        name="mambaserve",
        version=version,
        type=ComponentType.APPLICATION,
        purl=PackageURL("pypi", name="mambaserve", version=version),
        bom_ref="mambaserve",
    )
    parts = list(_components(_pins(requirements)))
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"pkg:pypi/mambaserve@{version}?{seconds}"))
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, UTC)
    bom.metadata.component = own
    bom.components.update(parts)
    bom.register_dependency(own, parts)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _pins(requirements: Path) -> Mapping[tuple[str, str], Pin]:
    pins: defaultdict[tuple[str, str], Pin] = defaultdict(Pin)
    for lock in LOCKS:
        pin = Pin()
        for line in (requirements / f"{lock}.lock").read_text(encoding="utf-8").splitlines():
            if match := _PIN.match(line):
                pin = pins[match[1].lower(), match[2]]
                pin.locks.add(lock)
            pin.hashes.update(_HASH.findall(line))
    return pins


def _components(pins: Mapping[tuple[str, str], Pin]) -> Iterator[Component]:
    for (name, version), pin in sorted(pins.items()):
        url = PackageURL("pypi", name=name, version=version)
        yield Component(
            name=name,
            version=version,
            purl=url,
            bom_ref=str(url),
            type=ComponentType.LIBRARY,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in sorted(pin.hashes)],
            properties=[Property(name="mambaserve:lock", value=each) for each in sorted(pin.locks)],
        )
