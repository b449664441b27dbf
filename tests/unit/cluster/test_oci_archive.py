"""The image archives that the test node imports: complete, addressed by content, the same every time."""

import hashlib
import io
import json
import tarfile
from typing import Any

import pytest

from testcluster.oci_archive import File, Image, archive, digest

IMAGE = Image(
    directories={"tmp": 0o1777, "app": 0o755},
    links={"bin": "usr/bin"},
    files={"app/run": File(b"#!/bin/sh\n", 0o755)},
    entrypoint=("/app/run",),
    environment={"PATH": "/app", "HOME": "/tmp"},
)


def entries(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: _content(tar, member) for member in tar.getmembers()}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    handle = tar.extractfile(member)
    return handle.read() if handle else b""


def blob(found: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    data = found["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
    assert len(data) == descriptor["size"]
    assert digest(data) == descriptor["digest"]
    return data


def parts(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return (index, configuration, layer), each found by following the references from the index."""
    found = entries(data)
    index = json.loads(found["index.json"])
    manifest = json.loads(blob(found, index["manifests"][0]))
    config = json.loads(blob(found, manifest["config"]))
    return index, config, blob(found, manifest["layers"][0])


def test_the_same_content_gives_the_same_bytes() -> None:
    shuffled = Image(
        directories={"app": 0o755, "tmp": 0o1777},
        links=IMAGE.links,
        files=IMAGE.files,
        entrypoint=["/app/run"],
        environment={"HOME": "/tmp", "PATH": "/app"},
    )

    assert archive("example.test/a:1", IMAGE) == archive("example.test/a:1", shuffled)


def test_the_digest_of_a_known_image_does_not_change() -> None:
    # Imported images are compared by digest: a change here makes every node import all of them anew.
    layer = parts(archive("example.test/a:1", IMAGE))[2]

    assert digest(layer) == "sha256:bb816e2958def63f7cb5bfef5db1278185ee9bb7b983575aa2ed3ffefb481c10"


@pytest.mark.parametrize(
    "other",
    [
        Image(directories={"tmp": 0o755}),
        Image(links={"bin": "usr/sbin"}),
        Image(files={"app/run": File(b"#!/bin/sh\n", 0o644)}),
        Image(files={"app/run": File(b"#!/bin/bash\n", 0o755)}),
        Image(entrypoint=("/other",)),
        Image(environment={"PATH": "/bin"}),
        Image(machine="aarch64"),
    ],
)
def test_any_other_content_gives_another_archive(other: Image) -> None:
    assert archive("example.test/a:1", other) != archive("example.test/a:1", IMAGE)
    assert archive("example.test/a:1", other) != archive("example.test/a:1", Image())


def test_the_archive_is_named_for_containerd_and_for_the_specification() -> None:
    index, _, _ = parts(archive("example.test/a:1", IMAGE))

    assert index["manifests"][0]["annotations"] == {
        "io.containerd.image.name": "example.test/a:1",
        "org.opencontainers.image.ref.name": "example.test/a:1",
    }
    assert json.loads(entries(archive("a", IMAGE))["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}


def test_the_configuration_says_how_the_image_starts() -> None:
    _, config, layer = parts(archive("example.test/a:1", IMAGE))

    assert config["config"] == {"Entrypoint": ["/app/run"], "Env": ["HOME=/tmp", "PATH=/app"]}
    assert (config["os"], config["architecture"]) == ("linux", "amd64")
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]


def test_the_layer_holds_folders_links_and_files_with_their_modes() -> None:
    _, _, layer = parts(archive("example.test/a:1", IMAGE))

    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        found = {member.name: member for member in tar.getmembers()}
        assert found["tmp"].isdir()
        assert found["tmp"].mode == 0o1777
        assert found["bin"].issym()
        assert found["bin"].linkname == "usr/bin"
        assert found["app/run"].mode == 0o755
        assert _content(tar, found["app/run"]) == b"#!/bin/sh\n"
        assert list(found).index("app") < list(found).index("app/run")


def test_an_arm_machine_gets_an_arm_image() -> None:
    _, config, _ = parts(archive("example.test/a:1", Image(machine="aarch64")))

    assert config["architecture"] == "arm64"
