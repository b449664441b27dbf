"""Source of a model: the kinds of URI in `spec.model.uri`.

The operator (mounts, weights download), local mode and the engine all read URIs through `parse_model_uri`.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

from mamba_api.errors import InvalidModelUri

Scheme = Literal["hf", "pvc", "file", "builtin", "s3", "gs", "oci", "http", "https"]
REMOTE: frozenset[str] = frozenset({"s3", "gs", "oci", "http", "https"})
"""Schemes of stores that hold a model's files, other than the Hub."""
DOWNLOADED = REMOTE | {"hf"}
"""Schemes of models that are downloaded into the model cache."""
REMOTE_PATTERN = "^(s3|gs|oci|https?)://"
DOWNLOADED_PATTERN = "^(hf|s3|gs|oci|https?)://"
PINNED_PATTERN = "(@[0-9a-f]{40}|@sha256:[0-9a-f]{64}|[?]revision=[0-9a-f]{40}|[?]sha256=[0-9a-f]{64})$"
"""Ending of a URI that always leads to the same weights."""

_ARCHIVE = re.compile(r"\.(tar|tar\.gz|tgz)$")
_QUERY = r"((\.tar|\.tar\.gz|\.tgz)[?]sha256=[0-9a-f]{64}|[?]revision=[0-9a-f]{40})?"
URI_PATTERN = (
    r"^(hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+(@[A-Za-z0-9._/-]+)?"
    r"|pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?/.+"
    r"|file://.+"
    rf"|(s3|gs)://[a-z0-9][a-z0-9._-]+[a-z0-9](/[^?#\s]*)?{_QUERY}"
    r"|oci://[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})"
    rf"|https?://[^/?#@\s]+/[^?#\s]*{_QUERY}"
    r"|builtin://[a-z0-9][a-z0-9-]*)$"
)
FORMS = (
    "hf://owner/name[@revision], pvc://claim/path, s3://bucket/prefix, gs://bucket/prefix, "
    "oci://registry/repository:tag, https://host/path/, file:///path or builtin://name"
)


@dataclass(frozen=True, slots=True)
class ModelUri:
    """A parsed model URI."""

    scheme: Scheme
    name: str
    """Name within the source. hf = owner/name; pvc = the claim; s3, gs = the bucket; oci, http, https = host
    and port; file = empty; builtin = the model's name."""
    path: str = ""
    """Path within `name`. pvc = path inside the claim, without a leading slash; s3, gs, http, https = prefix
    of the files or the archive, without slashes at its ends; oci = repository; file = the path as written."""
    revision: str | None = None
    """Version of the files. hf = branch, tag or commit; oci = tag, or sha256: and digest; s3, gs, http, https
    = digest of the list of the files, which the download reports."""
    sha256: str | None = None
    """s3, gs, http, https: checksum of an archive."""

    @property
    def short_name(self) -> str:
        """Last part of the URI, which people use as the name of the model."""
        last = (self.path or self.name).rstrip("/").rsplit("/", 1)[-1]
        return _ARCHIVE.sub("", last) if self.scheme in REMOTE else last

    @property
    def pin(self) -> str | None:
        """Commit to which a URI of `REMOTE` is pinned, as `pinned` takes it; None = the newest files."""
        if self.scheme == "oci":
            tag = self.revision or ""
            return tag.removeprefix("sha256:") if tag.startswith("sha256:") else None
        return self.sha256[:40] if self.sha256 else self.revision

    @property
    def folder(self) -> str:
        """Name of the folder below the model cache that holds all commits of a URI of `REMOTE`."""
        place = f"{self.scheme}://{self.name}/{self.path}"
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.scheme}-{self.name}-{self.path}").strip("-")[:120]
        return f"models--{readable}--{hashlib.sha256(place.encode()).hexdigest()[:12]}"

    def pinned(self, commit: str) -> str:
        """Return the URI of `commit`, which a download has reported; for `DOWNLOADED` schemes."""
        place = f"{self.scheme}://{self.name}" + (f"/{self.path}" if self.path else "")
        if self.scheme == "hf":
            return f"{place}@{commit}"
        if self.scheme == "oci":
            return f"{place}@sha256:{commit}"
        return f"{place}?sha256={self.sha256}" if self.sha256 else f"{place}?revision={commit}"


def is_model_uri(text: str) -> bool:
    """Return whether `parse_model_uri` reads the text."""
    return re.fullmatch(URI_PATTERN[1:-1], text, re.ASCII) is not None


def parse_model_uri(text: str) -> ModelUri:
    """Parse `text`. Raises `InvalidModelUri` with the accepted forms."""
    if not is_model_uri(text):
        raise InvalidModelUri(f"{text!r} is no model URI: use {FORMS}")
    scheme, rest = text.split("://", 1)
    match scheme:
        case "hf":
            name, _, revision = rest.partition("@")
            return ModelUri("hf", name, revision=revision or None)
        case "pvc":
            claim, _, path = rest.partition("/")
            if ".." in path.split("/"):
                raise InvalidModelUri(f"{text!r} leaves the claim: the path must not contain '..'")
            return ModelUri("pvc", claim, path=path.strip("/"))
        case "file":
            return ModelUri("file", "", path=rest)
        case "oci":
            registry, _, reference = rest.partition("/")
            separator = "@" if "@" in reference else ":"
            repository, _, tag = reference.partition(separator)
            return ModelUri("oci", registry, path=repository, revision=tag)
        case "s3" | "gs" | "http" | "https":
            return _files(scheme, rest)
        case _:
            return ModelUri("builtin", rest)


def _files(scheme: Literal["s3", "gs", "http", "https"], rest: str) -> ModelUri:
    """Return the URI of a folder or an archive in a bucket or on a web server.

    `rest` is the text of the URI behind its scheme.
    """
    place, _, query = rest.partition("?")
    option, _, digest = query.partition("=")
    host, _, path = place.partition("/")
    return ModelUri(
        scheme,
        host,
        path=path.strip("/"),
        revision=digest if option == "revision" else None,
        sha256=digest if option == "sha256" else None,
    )
