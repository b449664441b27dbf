"""Models in OCI registries: oci://REGISTRY/REPOSITORY:TAG or @sha256:DIGEST.

`store_of` makes it. An artifact may hold each file in a layer of its own, named by an annotation (ModelPack,
ORAS), or archives (ModelPack, KitOps, images that hold a model). Every layer is compared with its digest.
"""

import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any
from urllib.parse import urlencode

from mamba_api.model_uri import ModelUri
from mamba_server.model.remote.errors import AccessDenied, DamagedFile, MissingFiles, RemoteError
from mamba_server.model.remote.http_client import Answer, HttpClient
from mamba_server.model.remote.registry_credentials import VARIABLE, basic_credentials
from mamba_server.model.remote.remote_file import Checksum, Packing, RemoteFile, is_model_file, require_model

PLAIN = "MAMBASERVE_PLAIN_HTTP_REGISTRIES"
"""Variable with the registries, separated by commas, that speak HTTP without TLS, as local ones always do."""
PATHS = ("org.cncf.model.filepath", "org.cnai.model.filepath", "org.opencontainers.image.title")
"""Annotations of a layer with the path of its file."""
_INDEXES = (
    "application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"
)  # fmt: skip
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"
)  # fmt: skip
_DIGEST = re.compile(r"^(sha256):([0-9a-f]{64})$|^(sha512):([0-9a-f]{128})$")
_NO_MODEL = re.compile(r"\.(dataset|doc|docs)\.v\d")
"""Part of the media type of layers beside the model, in the formats of ModelPack and KitOps."""
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_ADVICE = f"check the reference, and the credentials in ~/.docker/config.json or {VARIABLE}"


class RegistryStore:
    """Store that reads a model's files from the layers of one artifact of an OCI registry."""

    def __init__(self, uri: ModelUri, text: str) -> None:
        """Prepare reading.

        Args:
            uri: the parsed URI.
            text: the URI as it was written, for messages.
        """
        self._uri, self._text = uri, text
        self._client = HttpClient(text)
        scheme = "http" if _is_plain(uri.name) else "https"
        host = "registry-1.docker.io" if uri.name == "docker.io" else uri.name
        self._base = f"{scheme}://{host}/v2/{uri.path}"
        self._lock = Lock()
        self._authorization: dict[str, str] = {}
        self._commit = ""
        self._divisible: bool | None = None

    def files(self) -> Sequence[RemoteFile]:
        """Return the layers that hold files of a model. Raises RemoteError."""
        manifest = self._manifest(self._uri.revision or "", outermost=True)
        layers = manifest.get("layers")
        if not isinstance(layers, list) or not layers:
            raise MissingFiles(f"{self._text}: the artifact has no layers: it is no model")
        files = [file for layer in layers if (file := self._file(layer)) is not None]
        return require_model(files, self._text, "choose an artifact with a model's files or archives of them")

    def commit(self, _files: Sequence[RemoteFile]) -> str:
        """Return the digest of the manifest to which the reference leads, without `sha256:`."""
        return self._commit

    def is_divisible(self, file: RemoteFile) -> bool:
        """Return whether the registry sends a part of a layer, which one request finds out."""
        if self._divisible is None:
            answer = self._signed("GET", file.address, {"Range": "bytes=0-0"})
            self._divisible = answer.status == 206
        return self._divisible

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of [start, end). Raises RemoteError."""
        authorization = self._authorization
        try:
            yield from self._client.part(file.address, start, end, authorization)
        except AccessDenied:
            # Tokens of registries end after minutes. What was yielded before can only be nothing.
            self._sign_in(self._client.answer("HEAD", file.address), authorization)
            yield from self._client.part(file.address, start, end, self._authorization)

    def _manifest(self, reference: str, *, outermost: bool = False) -> Mapping[str, Any]:
        answer = self._signed(
            "GET", f"{self._base}/manifests/{reference}", {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))}
        )
        if answer.status != 200:
            raise self._refusal(answer)
        digest = hashlib.sha256(answer.content).hexdigest()
        if reference.startswith("sha256:") and reference != f"sha256:{digest}":
            raise DamagedFile(
                f"{self._text}: the manifest differs from its digest {reference}: check the registry, and "
                "proxies before it"
            )
        if outermost:
            self._commit = digest
        try:
            document = json.loads(answer.content)
        except (ValueError, RecursionError) as error:
            raise MissingFiles(f"{self._text}: {answer.url} is no manifest: check the address") from error
        if not isinstance(document, dict):
            raise MissingFiles(f"{self._text}: {answer.url} is no manifest: check the address")
        if outermost and isinstance(members := document.get("manifests"), list):
            return self._manifest(_chosen(members, self._text))
        return document

    def _file(self, layer: Any) -> RemoteFile | None:
        """Return the file of a layer; None = it holds nothing that a model needs. Raises MissingFiles."""
        match = _DIGEST.match(str(layer.get("digest"))) if isinstance(layer, dict) else None
        if match is None or not isinstance(size := layer.get("size"), int):
            raise MissingFiles(
                f"{self._text}: the manifest has a layer without digest or size: push it again"
            )
        notes: Any = layer.get("annotations") or {}
        path = next((str(notes[name]) for name in PATHS if name in notes), "")
        media_type = str(layer.get("mediaType"))
        packing = _packing(media_type, path, notes, self._text)
        if _NO_MODEL.search(media_type) or (not packing and not is_model_file(path)):
            return None
        digest = str(layer["digest"])
        algorithm, _, hexadecimal = digest.partition(":")
        checksum = Checksum("sha512" if algorithm == "sha512" else "sha256", hexadecimal)
        name = f"layer-{hexadecimal[:16]}.tar" if packing else path
        return RemoteFile(name, size, f"{self._base}/blobs/{digest}", digest, checksum, packing)

    def _signed(self, method: str, url: str, headers: Mapping[str, str]) -> Answer:
        """Return the answer, after signing in if the registry asks for it. Raises RemoteError."""
        authorization = self._authorization
        answer = self._client.answer(method, url, {**headers, **authorization})
        if answer.status == 401:
            self._sign_in(answer, authorization)
            answer = self._client.answer(method, url, {**headers, **self._authorization})
        return answer

    def _sign_in(self, answer: Answer, used: Mapping[str, str]) -> None:
        """Set the header that the registry asks for. Raises RemoteError."""
        with self._lock:
            if self._authorization is not used:
                return  # another thread has signed in meanwhile
            kind, _, rest = answer.header("WWW-Authenticate").partition(" ")
            basic = basic_credentials(self._uri.name)
            credentials = {"Authorization": f"Basic {basic}"} if basic else {}
            if kind.lower() == "basic" and credentials:
                self._authorization = credentials
                return
            challenge = dict(_CHALLENGE.findall(rest))
            if kind.lower() != "bearer" or not challenge.get("realm", "").startswith(("http://", "https://")):
                raise self._client.refusal(401, answer.url, _ADVICE)
            query = {name: challenge[name] for name in ("service", "scope") if name in challenge}
            query.setdefault("scope", f"repository:{self._uri.path}:pull")
            realm = challenge["realm"]
            url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
            reply = self._client.answer("GET", url, credentials)
            if reply.status != 200:
                raise self._client.refusal(reply.status, url, _ADVICE)
            try:
                document = json.loads(reply.content)
                token = document.get("token") or document["access_token"]
            except (ValueError, KeyError, AttributeError) as error:
                raise AccessDenied(f"{self._text}: {realm} sent no token: {_ADVICE}") from error
            self._authorization = {"Authorization": f"Bearer {token}"}

    def _refusal(self, answer: Answer) -> RemoteError:
        if answer.status == 404:
            return MissingFiles(
                f"{self._text}: the registry {self._uri.name} has no {self._uri.path} with the reference "
                f"{self._uri.revision}: check the name, and the credentials if it is private"
            )
        return self._client.refusal(answer.status, answer.url, _ADVICE)


def _chosen(members: Sequence[Any], text: str) -> str:
    """Return the digest of the manifest to read: the first one for amd64, or else without a platform.

    Raises MissingFiles if the index has neither.
    """

    by_platform: dict[str, str] = {}
    for member in members:
        if isinstance(member, dict) and _DIGEST.match(str(member.get("digest"))):
            platform: Any = member.get("platform") or {}
            by_platform.setdefault(str(platform.get("architecture", "")), str(member["digest"]))
    digest = by_platform.get("amd64") or by_platform.get("")
    if digest is None:
        raise MissingFiles(f"{text}: the index has no manifest for amd64: name the digest of the one to read")
    return digest


def _packing(media_type: str, path: str, notes: Mapping[str, Any], text: str) -> Packing:
    """Return how a layer is packed; empty = it is one file. Raises MissingFiles."""
    if notes.get("io.deis.oras.content.unpack") == "true":
        return "gzip"
    is_archive = bool(re.search(r"[.+](tar|gzip|zstd)\b", media_type))
    if not is_archive and path and not path.endswith((".tar", ".tar.gz", ".tgz")):
        return ""
    if "zstd" in media_type:
        raise MissingFiles(
            f"{text}: a layer is compressed by zstd, which is not read: push it raw, tar or gzip"
        )
    if "gzip" in media_type or path.endswith((".tar.gz", ".tgz")):
        return "gzip"
    return "tar" if "tar" in media_type or path.endswith(".tar") else ""


def _is_plain(registry: str) -> bool:
    """Return whether the registry speaks HTTP without TLS."""
    if registry in (os.environ.get(PLAIN) or "").replace(" ", "").split(","):
        return True
    host = registry.rpartition(":")[0] if ":" in registry else registry
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
