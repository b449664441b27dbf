"""Builds container images as OCI archives, byte for byte the same for the same content. Pure.

No registry and no build tool is needed: an image here is one small layer. `containerd` imports it.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class File:
    """A regular file of a layer."""

    data: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Image:
    """Contents of an image; paths are relative to its root."""

    directories: Mapping[str, int] = field(default_factory=dict)
    """Mode per directory."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Target per symbolic link."""
    files: Mapping[str, File] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    machine: str = "x86_64"
    """Processor architecture as `os.uname().machine` reports it."""


def archive(name: str, image: Image) -> bytes:
    """Return the tar file that holds `image` under the reference `name`."""
    layer = _layer(image)
    config = _json(
        {
            "architecture": ARCHITECTURES.get(image.machine, image.machine),
            "os": "linux",
            "config": {
                "Entrypoint": list(image.entrypoint),
                "Env": [f"{key}={value}" for key, value in sorted(image.environment.items())],
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config),
            "layers": [_descriptor(LAYER, layer)],
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "manifests": [{**_descriptor(MANIFEST, manifest), "annotations": names}]}
    blobs = {f"blobs/sha256/{digest(blob)[7:]}": blob for blob in (layer, config, manifest)}
    entries = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, data in entries.items():
            _add_file(tar, path, File(data))
    return out.getvalue()


def digest(blob: bytes) -> str:
    """Return the content address of a blob: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _layer(image: Image) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        # Sorted, so that a directory comes before what is in it and the order of a mapping is no content.
        for path in sorted(image.directories):
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, image.directories[path]
            tar.addfile(entry)
        for path in sorted(image.links):
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, image.links[path]
            tar.addfile(entry)
        for path in sorted(image.files):
            _add_file(tar, path, image.files[path])
    return out.getvalue()


def _add_file(tar: tarfile.TarFile, path: str, file: File) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(file.data), file.mode
    tar.addfile(entry, io.BytesIO(file.data))


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(blob), "size": len(blob)}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
