"""Models in buckets: s3:// and gs://, read by `obstore`, which the extra `buckets` installs.

`store_of` makes it. Credentials, region and endpoint are those of the environment: the variables of the
clouds' own programs, or the identity of the workload.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

from mamba_api.model_uri import ModelUri
from mamba_server.model.remote.errors import (
    AccessDenied,
    FilesChanged,
    Interrupted,
    MissingExtra,
    MissingFiles,
    RemoteError,
)
from mamba_server.model.remote.remote_file import (
    Checksum,
    RemoteFile,
    digest_of_listing,
    is_model_file,
    packing_of,
    require_model,
)

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the identity of the workload; "
    "AWS_SKIP_SIGNATURE=true reads a public bucket",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT_KEY, or the identity of the workload; "
    "GOOGLE_SKIP_SIGNATURE=true reads a public bucket",
}
_CHUNK = 1 << 20
_SMALL = 1 << 20
"""Bytes up to which a file is read to find out whether entity tags are checksums."""
_DENIED = re.compile(
    r"\b(401 Unauthorized|403 Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|ExpiredToken"
    r"|InvalidToken)\b"
)
_WITHOUT_CREDENTIALS = re.compile(r"metadata|credential|169\.254|token", re.IGNORECASE)
_OTHER_CLIENT_ERROR = re.compile(r"status code: (4\d\d [A-Za-z ]+|3\d\d [A-Za-z ]+)")


class BucketStore:
    """The objects below one prefix of a bucket, or one archive."""

    def __init__(self, uri: ModelUri, text: str) -> None:
        """Prepare reading.

        Args:
            uri: the parsed URI.
            text: the URI as it was written, for messages.

        Raises MissingExtra, RemoteError.
        """
        self._uri, self._text = uri, text
        try:
            import obstore
        except ImportError as error:
            raise MissingExtra(
                f"{text}: reading {uri.scheme}:// needs obstore: pip install 'mambaserve[buckets]'"
            ) from error
        self._client = obstore
        try:
            self._store = _opened(uri)
        except Exception as error:  # the client reads credentials here, and raises errors of several kinds
            raise AccessDenied(
                f"{text}: the credentials cannot be read ({_first_line(error)}): check "
                f"{CREDENTIALS[uri.scheme]}"
            ) from error

    def files(self) -> Sequence[RemoteFile]:
        """List the objects. Raises RemoteError."""
        prefix = self._uri.path
        is_archive = bool(packing_of(prefix))
        try:
            objects: list[Mapping[str, Any]]
            if is_archive:
                objects = [self._client.head(self._store, prefix)]
            else:
                listing = self._client.list(self._store, prefix=prefix or None)
                objects = [item for batch in listing for item in batch]
        except Exception as error:
            raise self._failure(error, prefix) from error
        files = [self._file(item, prefix) for item in objects]
        files = self._comparable([file for file in files if file.packing or is_model_file(file.path)])
        if is_archive:
            return files
        return require_model(files, self._text, "name the prefix under which the model's files are")

    def commit(self, files: Sequence[RemoteFile]) -> str:
        """Return the digest of the listing, or the beginning of the archive's checksum."""
        return self._uri.sha256[:40] if self._uri.sha256 else digest_of_listing(files)

    def is_divisible(self, _file: RemoteFile) -> bool:
        """Return True: buckets send any range."""
        return True

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of [start, end). Raises RemoteError."""
        options: Any = {"range": (start, end)}
        if file.version:
            options["if_match"] = file.version
        try:
            for chunk in self._client.get(self._store, file.address, options=options).stream(_CHUNK):
                yield memoryview(chunk)
        except Exception as error:
            raise self._failure(error, file.address) from error

    def _file(self, item: Mapping[str, Any], prefix: str) -> RemoteFile:
        key, version = str(item["path"]), str(item.get("e_tag") or "")
        packing = packing_of(prefix) if key == prefix else ""
        path = key.rsplit("/", 1)[-1] if packing else key.removeprefix(f"{prefix}/" if prefix else "")
        if packing and self._uri.sha256:
            checksum: Checksum | None = Checksum("sha256", self._uri.sha256)
        else:
            checksum = _checksum(version)
        return RemoteFile(path, int(item["size"]), key, version, checksum, packing)

    def _comparable(self, files: list[RemoteFile]) -> list[RemoteFile]:
        """Return the files, without checksums if the bucket's entity tags are no MD5, as with KMS."""
        small = [
            file
            for file in files
            if file.checksum is not None and file.checksum.algorithm == "md5" and file.size <= _SMALL
        ]
        if not small or self._is_md5(min(small, key=lambda file: file.size)):
            return files
        return [
            RemoteFile(
                file.path, file.size, file.address, file.version,
                None if file.checksum and file.checksum.algorithm.startswith("md5") else file.checksum,
                file.packing,
            )
            for file in files
        ]  # fmt: skip

    def _is_md5(self, file: RemoteFile) -> bool:
        content = b"".join(self.read(file, 0, file.size)) if file.size else b""
        assert file.checksum is not None
        return hashlib.md5(content, usedforsecurity=False).hexdigest() == file.checksum.digest

    @cached_property
    def _bucket(self) -> str:
        endpoint = _endpoint(self._uri)
        return f"bucket {self._uri.name}" + (f" at {endpoint}" if endpoint else "")

    def _failure(self, error: Exception, key: str) -> RemoteError:
        """Translate an error of the client."""
        if isinstance(error, RemoteError):
            return error
        text, scheme = str(error), self._uri.scheme
        line = _first_line(error)
        if "NoSuchBucket" in text or "The specified bucket does not exist" in text:
            return MissingFiles(f"{self._text}: there is no {self._bucket}: check its name and the endpoint")
        if isinstance(error, FileNotFoundError):
            return MissingFiles(f"{self._text}: {self._bucket} has no object {key}: check the name")
        if type(error).__name__ == "PreconditionError":
            return FilesChanged(f"{self._text}: {key} was replaced during the download: start again")
        denied = type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")
        if denied or _DENIED.search(text):
            return AccessDenied(
                f"{self._text}: {self._bucket} refuses the credentials ({line}): check {CREDENTIALS[scheme]}"
            )
        if (refused := _OTHER_CLIENT_ERROR.search(text)) and not refused[1].startswith(("408", "429")):
            return MissingFiles(
                f"{self._text}: {self._bucket} answers {refused[1].strip()}: check the region and the "
                f"endpoint ({line})"
            )
        if _WITHOUT_CREDENTIALS.search(line):
            return AccessDenied(
                f"{self._text}: there are no credentials for {self._bucket} ({line}): set "
                f"{CREDENTIALS[scheme]}"
            )
        return Interrupted(
            f"{self._text}: {self._bucket} cannot be reached ({line}): check the network and the endpoint"
        )


def _opened(uri: ModelUri) -> Any:
    from obstore.store import GCSStore, S3Store

    endpoint = _endpoint(uri)
    client: Any = {
        "allow_http": endpoint.startswith("http://"), "connect_timeout": "15s", "read_timeout": "60s",
        # A part of a large file may take long; the pause between two packets decides instead.
        "timeout": "3600s",
    }  # fmt: skip
    # Parts of files are tried again by the download, from where they stopped.
    retry: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=30)}
    if uri.scheme == "s3":
        options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        if not any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION")):
            options["region"] = "us-east-1"
        return S3Store(uri.name, client_options=client, retry_config=retry, **options)
    options = {}
    if endpoint:
        # The form in which the client takes another address; an emulator checks no credentials.
        options["service_account_key"] = json.dumps(
            {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": "",
             "private_key_id": ""}
        )  # fmt: skip
    return GCSStore(uri.name, client_options=client, retry_config=retry, **options)


def _endpoint(uri: ModelUri) -> str:
    """Return the address of a store that is not the cloud's own; empty = the cloud's own."""
    if uri.scheme == "s3":
        return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    address = os.environ.get("STORAGE_EMULATOR_HOST") or ""
    return address if not address or "://" in address else f"http://{address}"


def _checksum(version: str) -> Checksum | None:
    """Return the checksum in an entity tag; None if the tag has another form.

    It is the MD5 of the content, or of the MD5 of its parts.
    """
    match = re.fullmatch(r'"?([0-9a-f]{32})(?:-([0-9]{1,5}))?"?', version)
    if match is None:
        return None
    if match[2] is None:
        return Checksum("md5", match[1])
    return Checksum("md5-of-parts", match[1], int(match[2]))


def _first_line(error: Exception) -> str:
    """Return the message of an error, without the client's internal state and the store's document."""
    text = str(error).partition("\n")[0].partition("<?xml")[0].strip().rstrip(":")
    code = re.search(r"<Code>([^<]+)</Code>", str(error))
    return f"{text[:300]}{f': {code[1]}' if code else ''}"
