"""Models on web servers: http:// and https://, as a directory or as one archive.

`store_of` makes it. A directory is read by its SHA256SUMS, which `sha256sum * > SHA256SUMS` writes; without
one, the files are those of a published checkpoint (config.json, the tokenizer's, and the weights that the
index names) or of an adapter.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from mamba_api.model_uri import ModelUri
from mamba_server.model.remote.errors import MissingFiles
from mamba_server.model.remote.http_client import Answer, HttpClient
from mamba_server.model.remote.remote_file import (
    Checksum,
    RemoteFile,
    digest_of_listing,
    is_model_file,
    packing_of,
    require_model,
)

SUMS = "SHA256SUMS"
TOKEN = "MAMBASERVE_MODEL_TOKEN"  # noqa: S105 - the name of the variable
"""Variable with the bearer token for the server."""
INDEX = "model.safetensors.index.json"
KNOWN_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "chat_template.json", INDEX,
)  # fmt: skip
WEIGHTS = "model.safetensors"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Files of an adapter, in a directory that has no config.json."""
_SUM_LINE = re.compile(r"^\\?([0-9a-fA-F]{64}) [ *](.+)$")
_THREADS = 8
_ADVICE = f"check the URI, or set {TOKEN}"


class WebStore:
    """The files below one address, or one archive."""

    def __init__(self, uri: ModelUri, text: str) -> None:
        """Prepare reading.

        Args:
            uri: the parsed URI.
            text: the URI as it was written, for messages.
        """
        self._uri, self._text = uri, text
        self._base = f"{uri.scheme}://{uri.name}/{quote(uri.path, safe='/%~')}"
        self._client = HttpClient(text)
        token = os.environ.get(TOKEN)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def files(self) -> Sequence[RemoteFile]:
        """Return the files that SHA256SUMS lists, or those that are there. Raises RemoteError."""
        if packing := packing_of(self._uri.path):
            name = self._uri.path.rsplit("/", 1)[-1]
            checksum = Checksum("sha256", self._uri.sha256) if self._uri.sha256 else None
            return [self._file(self._answer("HEAD", self._base), name, checksum, packing)]
        self._base = f"{self._base.rstrip('/')}/"
        sums = self._sums()
        if sums is None:
            names, required = self._known_names()
        else:
            names = required = [name for name in sums if is_model_file(name)]
        with ThreadPoolExecutor(_THREADS) as threads:
            answers = threads.map(lambda name: self._head(name, name in required), names)
            heads = [head for head in answers if head is not None]
        files = [
            self._file(head, name, Checksum("sha256", sums[name]) if sums is not None else None)
            for name, head in heads
        ]
        return require_model(files, self._text, f"name the directory that holds it, or list it in {SUMS}")

    def commit(self, files: Sequence[RemoteFile]) -> str:
        """Return the digest of the listing, or the beginning of the archive's checksum."""
        return self._uri.sha256[:40] if self._uri.sha256 else digest_of_listing(files)

    def is_divisible(self, file: RemoteFile) -> bool:
        """Return whether the server sends a part of the file. Raises RemoteError."""
        answer = self._answer("HEAD", file.address)
        return answer.header("Accept-Ranges").lower() == "bytes"

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of [start, end). Raises RemoteError."""
        headers = dict(self._headers)
        if file.version.startswith('"'):
            # A weak tag says nothing about bytes.
            headers["If-Match"] = file.version
        return self._client.part(file.address, start, end, headers)

    def _sums(self) -> dict[str, str] | None:
        """Return the checksum of each file; None = the directory has no list."""
        answer = self._client.answer("GET", f"{self._base}{SUMS}", self._headers)
        if answer.status in (404, 410):
            return None
        if answer.status != 200:
            raise self._client.refusal(answer.status, answer.url, _ADVICE)
        lines = [_SUM_LINE.match(line) for line in answer.content.decode("utf-8", "replace").splitlines()]
        sums = {line[2].removeprefix("./"): line[1].lower() for line in lines if line}
        return sums or None

    def _known_names(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names that a checkpoint may have, and those that it must have. Raises MissingFiles."""
        if self._is_adapter():
            return ADAPTER_FILES, ADAPTER_FILES
        answer = self._client.answer("GET", f"{self._base}{INDEX}", self._headers)
        shards: list[str] = [WEIGHTS]
        if answer.status == 200:
            try:
                index: Any = json.loads(answer.content)
                shards = sorted({str(shard) for shard in index["weight_map"].values()})
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise MissingFiles(
                    f"{self._text}: {INDEX} cannot be read ({error!r}): upload it again"
                ) from error
            shards = [shard for shard in shards if is_model_file(shard)]
        return [*KNOWN_FILES, *shards], ["config.json", *shards]

    def _is_adapter(self) -> bool:
        """Return whether the directory holds an adapter and no model."""
        return self._head(KNOWN_FILES[0], False) is None and self._head(ADAPTER_FILES[0], False) is not None

    def _head(self, name: str, required: bool) -> tuple[str, Answer] | None:
        answer = self._client.answer("HEAD", f"{self._base}{quote(name)}", self._headers)
        if not required and answer.status != 200:
            return None
        if answer.status != 200:
            raise self._client.refusal(answer.status, answer.url, _ADVICE)
        return name, answer

    def _answer(self, method: str, url: str) -> Answer:
        answer = self._client.answer(method, url, self._headers)
        if answer.status != 200:
            raise self._client.refusal(answer.status, answer.url, _ADVICE)
        return answer

    def _file(self, head: Answer, name: str, checksum: Checksum | None, packing: Any = "") -> RemoteFile:
        length = head.header("Content-Length")
        if not length.isdecimal():
            raise MissingFiles(
                f"{self._text}: the server does not tell the size of {name} (Content-Length): use a server "
                "of plain files"
            )
        version = head.header("ETag") or (checksum.digest if checksum else head.header("Last-Modified"))
        return RemoteFile(name, int(length), head.url, version, checksum, packing)
