"""The bill of materials of an image, as CycloneDX: its Debian packages and its Python distributions."""

from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

PACKAGES = "var/lib/dpkg/status.d"
STATUS = "var/lib/dpkg/status"
LIBRARIES = "opt/mambaserve/lib"


def of_materials(name: str, root: Path) -> str:
    """Return CycloneDX 1.6 as JSON, of the image `name` whose files lie below `root`."""
    bom = Bom()
    bom.metadata.component = Component(name=name, type=ComponentType.CONTAINER)
    parts = [*_debian(root), *_python(root)]
    bom.components.update(parts)
    bom.register_dependency(bom.metadata.component, parts)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def _debian(root: Path) -> Iterator[Component]:
    single = root / PACKAGES
    if single.is_dir():
        texts = [path.read_text(encoding="utf-8") for path in sorted(single.iterdir())]
    else:
        texts = (root / STATUS).read_text(encoding="utf-8").split("\n\n")
    for text in texts:
        fields = HeaderParser().parsestr(text.strip())
        if name := fields["Package"]:
            url = PackageURL("deb", "debian", name, fields["Version"], {"arch": fields["Architecture"]})
            yield _library(url)


def _python(root: Path) -> Iterator[Component]:
    folders = (root / LIBRARIES).glob("python*/site-packages")
    for found in distributions(path=[str(folder) for folder in folders]):
        yield _library(PackageURL("pypi", name=found.metadata["Name"].lower(), version=found.version))


def _library(url: PackageURL) -> Component:
    return Component(
        name=url.name, version=url.version, purl=url, bom_ref=str(url), type=ComponentType.LIBRARY
    )
