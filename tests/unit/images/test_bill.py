"""The bill of materials names what lies in an image, wherever its packages are noted."""

import json
from pathlib import Path

from images import bill

DEBIAN = "Package: libc6\nVersion: 2.36-9\nArchitecture: amd64\nDescription: the C library\n more of it\n"


def urls(root: Path) -> set[str]:
    return {one["purl"] for one in json.loads(bill.of_materials("an image", root))["components"]}


def python(root: Path) -> None:
    info = root / "opt/mambaserve/lib/python3.11/site-packages/Thing-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Thing\nVersion: 1.2\n")


def test_packages_and_distributions_are_named_by_their_urls(tmp_path: Path) -> None:
    python(tmp_path)
    packages = tmp_path / bill.PACKAGES
    packages.mkdir(parents=True)
    (packages / "libc6").write_text(DEBIAN)

    assert urls(tmp_path) == {"pkg:deb/debian/libc6@2.36-9?arch=amd64", "pkg:pypi/thing@1.2"}


def test_a_base_with_a_package_manager_notes_all_packages_in_one_file(tmp_path: Path) -> None:
    python(tmp_path)
    status = tmp_path / bill.STATUS
    status.parent.mkdir(parents=True)
    status.write_text(f"{DEBIAN}\n{DEBIAN.replace('libc6', 'zlib1g')}\n")

    assert urls(tmp_path) >= {
        "pkg:deb/debian/zlib1g@2.36-9?arch=amd64",
        "pkg:deb/debian/libc6@2.36-9?arch=amd64",
    }
